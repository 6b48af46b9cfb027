package polygen

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/internal/redisbus"

	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

func TestOptions(t *testing.T) {
	g := newGenerator(t, "127.0.0.1:1", "polygen", nil)
	for _, tt := range []struct {
		name   string
		change func(*Options)
		want   string // error; "" for none
	}{
		{"the least", func(o *Options) { o.Logger, o.Registerer = nil, nil }, ""},
		{"no name", func(o *Options) { o.Name = "" }, "polygen: no name"},
		{"no bus", func(o *Options) { o.Bus = nil }, "polygen: no bus"},
		{"no limits", func(o *Options) { o.Limits = nil }, "polygen: no limits"},
		{"the widest margin", func(o *Options) { o.Margin = 100 }, ""},
		{"a wider one", func(o *Options) { o.Margin = 101 }, "a margin of 101 %: want 0 to 100"},
		{"a negative margin", func(o *Options) { o.Margin = -1 }, "a margin of -1 %: want 0 to 100"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := g.options
			o.Registerer = nil
			tt.change(&o)
			got := ""
			if _, err := New(o); err != nil {
				got = err.Error()
			}
			if got != tt.want {
				t.Errorf("New() = %q, want %q", got, tt.want)
			}
		})
	}
}

func TestRateOf(t *testing.T) {
	set := parse(t, tenGets)
	for _, tt := range []struct {
		key  ratelimit.Key
		want int
	}{
		{ratelimit.Key{Class: "GET", User: "alice"}, 10},
		{ratelimit.Key{Class: "*", User: "alice"}, 20},
		{ratelimit.Key{Class: "PUT", User: "alice"}, 0}, // only as a part of "*"
		{ratelimit.Key{Class: "", User: "alice"}, 0},
		{ratelimit.Key{Class: "GET", User: "staff"}, 0},
		{ratelimit.Key{Class: "GET", User: "alice", Window: limits.Minute}, 0},
	} {
		if got := rateOf(set, tt.key); got.Max+got.Burst != tt.want {
			t.Errorf("rateOf(%v) = %+v, want %d", tt.key, got, tt.want)
		}
	}
}

// Usage in, policies out.
func TestUsageBecomesPolicies(t *testing.T) {
	type want = []redisbus.Message
	throttle := func(class string, limit int) redisbus.Message {
		return redisbus.Throttle{Key: ratelimit.Key{Class: class, User: "user"}, Limit: limit}
	}
	hot := func(class string) redisbus.Message {
		return redisbus.Hot{Key: ratelimit.Key{Class: class, User: "user"}} // how many instances share it is not known yet
	}
	for _, row := range []struct {
		name   string
		class  string
		used   int
		usual  want
		strict want
	}{
		{"far below the limit", "GET", 4, nil, nil},
		{"half of the limit", "GET", 5, nil, want{hot("GET")}},
		{"just below 80 %", "GET", 7, nil, want{hot("GET")}},
		{"80 %", "GET", 8, want{hot("GET")}, want{hot("GET")}},
		{"the limit", "GET", 10, want{throttle("GET", 10), hot("GET")}, want{throttle("GET", 10), hot("GET")}},
		{"more than the limit", "GET", 11, want{throttle("GET", 10), hot("GET")}, want{throttle("GET", 10), hot("GET")}},
		{"all classes together", "*", 20, want{throttle("*", 20), hot("*")}, want{throttle("*", 20), hot("*")}},
		{"a class without a limit of its own", "PUT", 1000, nil, nil},
	} {
		for _, strict := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				second := time.Now().Unix()
				usage := redisbus.Usage{Instance: "one", Entries: []redisbus.UsageEntry{{Key: ratelimit.Key{Class: row.class, User: "user"}, Second: second, Total: row.used}}}
				got, _ := play(t, tenGets, []any{usage}, func(o *Options) { o.Strict = strict })
				want := row.usual
				if strict {
					want = row.strict
				}
				if diff := cmp.Diff(want, got, cmpopts.EquateEmpty(), cmpopts.IgnoreFields(redisbus.Hot{}, "Until"), cmpopts.IgnoreFields(redisbus.Throttle{}, "Second")); diff != "" {
					t.Errorf("%s, strict %v: policies differ (-want +got):\n%s", row.name, strict, diff)
				}
				for _, m := range got {
					if m, ok := m.(redisbus.Throttle); ok && m.Second != second {
						t.Errorf("%s: throttled second %d, want %d", row.name, m.Second, second)
					}
				}
			})
		}
	}
}

// awaitWatched waits until a polygen hears of usage.
func (a *agents) awaitWatched(g *generator) {
	a.t.Helper()
	testkit.Eventually(a.t, g.options.Name+" hears of usage", func() error {
		if _, err := a.use("one", map[ratelimit.Key]int{{Class: "GET", User: "staff"}: 1}); err != nil {
			return err
		}
		if g.Users(api.ByRate, 1).Seen == 0 {
			return errors.New("nothing yet")
		}
		return nil
	})
}

// Agents that share a user are counted, once all that do must have reported.
func TestHotCountsInstances(t *testing.T) {
	t.Parallel()
	addr := redis(t)
	a := startAgents(t, addr)
	g := newGenerator(t, addr, "polygen", nil).run(t).awaitLead(t)
	a.awaitWatched(g)
	testkit.Eventually(t, "three instances are counted", func() error {
		for _, instance := range []string{"one", "two", "three"} {
			if _, err := a.use(instance, map[ratelimit.Key]int{{Class: "GET", User: "alice"}: 3}); err != nil {
				return err
			}
		}
		return testkit.Poll(200*time.Millisecond, func() error {
			var last redisbus.Hot
			for _, m := range a.about("alice") {
				if hot, ok := m.(redisbus.Hot); ok {
					last = hot
				}
			}
			if last.Instances != 3 {
				return fmt.Errorf("heard %+v last", last)
			}
			if left := time.Until(last.Until); left > 4*time.Second {
				t.Fatalf("hot for %v, want 3s", left)
			}
			return nil
		})
	})
}

// Two that were given one name are two: in containers even the host's name and the process
// id may be the same.
func TestTwoOfOneNameNeverBothLead(t *testing.T) {
	t.Parallel()
	addr := redis(t)
	first := newGenerator(t, addr, "polygen-1", nil).run(t).awaitLead(t)
	second := newGenerator(t, addr, "polygen-1", nil).run(t)
	testkit.Eventually(t, "the second one has asked for the lead", second.Ready)
	if !first.leads() || second.leads() {
		t.Errorf("the first one leads: %v, the second one: %v, want the first one alone", first.leads(), second.leads())
	}
	first.stop()
	if err := first.wait(t); err != nil {
		t.Errorf("Run() = %v when its context ended, want nil", err)
	}
	second.awaitLead(t)
}

func TestLeaderResigns(t *testing.T) {
	t.Parallel()
	addr := redis(t)
	heir := open(t, addr, 1)
	g := newGenerator(t, addr, "polygen", nil).run(t).awaitLead(t)
	if leader, err := heir.Lead(t.Context(), redisbus.Leader{Name: "heir"}, leadFor); leader.Name != g.candidate || err != nil {
		t.Errorf("Lead() beside a leader = %v, %v, want that it leads", leader, err)
	}
	g.stop()
	if err := g.wait(t); err != nil {
		t.Errorf("Run() = %v when its context ended, want nil", err)
	}
	if leader, err := heir.Lead(t.Context(), redisbus.Leader{Name: "heir"}, leadFor); leader.Name != "heir" || err != nil {
		t.Errorf("Lead() after the leader's end = %v, %v, want the lead at once", leader, err)
	}
}

// A leader that dies without a word leads for two seconds more.
func TestLeadLapses(t *testing.T) {
	t.Parallel()
	addr := redis(t)
	dead := open(t, addr, 1)
	testkit.Eventually(t, "another one leads", func() error {
		_, err := dead.Lead(t.Context(), redisbus.Leader{Name: "dead"}, leadFor)
		return err
	})
	a := startAgents(t, addr)
	g := newGenerator(t, addr, "heir", nil).run(t)
	testkit.Eventually(t, "it follows", func() error { return g.Ready() })
	g.awaitLead(t)
	a.published(tenGets)
}

func TestLimitsArePublished(t *testing.T) {
	t.Parallel()
	addr := redis(t)
	a := startAgents(t, addr)
	g := newGenerator(t, addr, "polygen", nil).run(t)
	a.published(tenGets)

	elevenGets := strings.Replace(tenGets, "GET: 10", "GET: 11", 1)
	g.write(t, elevenGets)
	if err := g.Reload(); err != nil {
		t.Fatalf("Reload() = %v", err)
	}
	a.published(elevenGets)

	g.write(t, "version: 2\n")
	if err := g.Reload(); err == nil || !strings.HasPrefix(err.Error(), g.file+":1:10: ") {
		t.Errorf("Reload() of a broken file = %v, want its position", err)
	}

	flush(t, addr) // Redis forgets: polygen does not, and what it has is the last good file
	a.published(elevenGets)

	want := []string{version(t, tenGets), version(t, elevenGets)}
	testkit.Eventually(t, "agents are told", func() error {
		if diff := cmp.Diff(want, a.versions()); diff != "" {
			return errors.New(diff)
		}
		return nil
	})
}

func version(t *testing.T, text string) string {
	t.Helper()
	return parse(t, text).Version()
}

// A follower with an older file must not publish it.
func TestFollowerKeepsItsLimitsToItself(t *testing.T) {
	t.Parallel()
	addr := redis(t)
	a := startAgents(t, addr)
	newGenerator(t, addr, "first", nil).run(t).awaitLead(t)
	a.published(tenGets)

	second := newGenerator(t, addr, "second", nil)
	second.write(t, strings.Replace(tenGets, "GET: 10", "GET: 99", 1))
	testkit.Must(t, second.Reload())
	second.run(t)
	testkit.Eventually(t, "it follows", second.Ready)
	second.wantPublication()
	testkit.Eventually(t, "the wish is looked at", func() error {
		if len(second.publish) > 0 {
			return errors.New("not yet")
		}
		return nil
	})
	a.published(tenGets)
	if diff := cmp.Diff([]string{version(t, tenGets)}, a.versions()); diff != "" {
		t.Errorf("versions heard of differ (-want +got):\n%s", diff)
	}
}

// Redis goes, and comes back empty.
func TestRedisLostAndFound(t *testing.T) {
	t.Parallel()
	server, addr := testkit.Redis(t)
	g := newGenerator(t, addr, "polygen", nil)
	if got := fmt.Sprint(g.Ready()); got != "redis cannot be reached: not asked yet" {
		t.Errorf("Ready() before Run = %s", got)
	}
	g.run(t)
	ready := func(want bool) {
		t.Helper()
		testkit.Eventually(t, fmt.Sprintf("ready %v", want), func() error {
			err := g.Ready()
			if lost := testutil.ToFloat64(g.metrics.lost); (err == nil) != want || (lost == 0) != want {
				return fmt.Errorf("Ready() = %w with the metric %v", err, lost)
			}
			return nil
		})
	}
	// says waits until those who ask, and metrics, are told who decides.
	says := func(leading bool, degraded string) {
		t.Helper()
		testkit.Eventually(t, fmt.Sprintf("it says that it leads: %v", leading), func() error {
			from, metric := g.Instances().From, testutil.ToFloat64(g.metrics.leading)
			if from.Leading != leading || (metric == 1) != leading || !strings.HasPrefix(from.Degraded, degraded) || (degraded == "") != (from.Degraded == "") {
				return fmt.Errorf("leading %v, metric %v, degraded %q, want %q", from.Leading, metric, from.Degraded, degraded)
			}
			return nil
		})
	}
	ready(true)
	says(true, "")
	server.Kill()
	ready(false)
	says(false, "redis cannot be reached")
	testkit.RedisAt(t, addr)
	ready(true)
	says(true, "")
	startAgents(t, addr).published(tenGets)
}

func TestRunFailsWithAnotherNumberOfShards(t *testing.T) {
	t.Parallel()
	addr := redis(t)
	other := open(t, addr, 3)
	testkit.Eventually(t, "another one leads", func() error {
		_, err := other.Lead(t.Context(), redisbus.Leader{Name: "other"}, leadFor)
		return err
	})
	g := newGenerator(t, addr, "polygen", nil).run(t)
	if err := g.wait(t); !errors.Is(err, redisbus.ErrShards) {
		t.Errorf("Run() = %v, want %v", err, redisbus.ErrShards)
	}
}

func TestRunEndsWithoutRedis(t *testing.T) {
	t.Parallel()
	g := newGenerator(t, testkit.FreeAddr(t), "polygen", nil).run(t)
	testkit.Eventually(t, "it says why it is not ready", func() error {
		if err := g.Ready(); !strings.Contains(fmt.Sprint(err), "connection refused") {
			return fmt.Errorf("Ready() = %w", err)
		}
		return nil
	})
	g.stop()
	if err := g.wait(t); err != nil {
		t.Errorf("Run() = %v when its context ended, want nil", err)
	}
}

// The names, labels and help that operators build on, and what they count: a
// history and what it leaves.
func TestMetrics(t *testing.T) {
	g := newGenerator(t, "127.0.0.1:1", "polygen", nil) // nobody is there
	now := time.Now()
	g.observe(now, redisbus.Usage{Instance: "one", Entries: []redisbus.UsageEntry{
		{Key: ratelimit.Key{Class: "GET", User: "alice"}, Second: now.Unix(), Total: 10},
		{Key: ratelimit.Key{Class: "GET", User: "staff"}, Second: now.Unix(), Total: 10},
		{Key: ratelimit.Key{Class: "GET", User: "bob"}, Second: now.Unix(), Total: 8},
	}})
	g.sendPolicies(t.Context()) // a follower sends nothing, and drops nothing
	g.pretend(true)
	g.observe(now, redisbus.Usage{Instance: "one", Entries: []redisbus.UsageEntry{
		{Key: ratelimit.Key{Class: "GET", User: "carol"}, Second: now.Unix(), Total: 10},
	}})
	g.sendPolicies(t.Context()) // in vain: a throttle and a hint
	g.observe(now, redisbus.Registry{Instances: []string{"one", "two"}})
	g.observe(now, redisbus.Progress{Instance: "one", Entries: []redisbus.ProgressEntry{
		{User: "alice", Active: 5, Limit: 5},
		{User: "dave", Active: 4, Limit: 5},
		{User: "staff", Active: 100, Limit: 5},
	}})
	g.tickSlots(now)
	g.sendPolicies(t.Context()) // in vain: a block, and two users' shares
	g.observe(now, redisbus.Demand{{Instance: "one", User: "mover", Active: 1}, {Instance: "one", User: "staff", Active: 1}})
	g.sendPolicies(t.Context()) // in vain: a user's shares, down and up
	g.forgetUsers(now)
	testkit.Must(t, g.renewLead(t.Context()))
	golden, err := os.Open("testdata/metrics.golden")
	testkit.Must(t, err)
	defer golden.Close()
	if err := testutil.GatherAndCompare(g.registry, golden,
		"sluice_policies_sent_total", "sluice_policies_dropped_total", "sluice_seen_users", "sluice_throttled_users", "sluice_unknown_users", "sluice_blocked_users", "sluice_polygen_leading", "sluice_polygen_redis_lost"); err != nil {
		t.Error(err)
	}
	if problems, err := testutil.GatherAndLint(g.registry); err != nil || len(problems) > 0 {
		t.Errorf("GatherAndLint() = %v, %v, want no problem", problems, err)
	}
}
