package polygen

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"pgregory.net/rapid"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/internal/redisbus"
	"github.com/sluice-qos/sluice/pkg/bandwidth"
	"github.com/sluice-qos/sluice/pkg/concurrency"
	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/limits/limitfile"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

const userMetricsLimits = `version: 1
default_tier: free
tiers:
  free: {requests: {GET: 10, "*": {minute: 100}}, concurrent: 5}
  moving: {bandwidth: {down: 10MiB, up: 5MiB}}
  staff: {}
users: {mover: moving, staff: staff}
`

// metered is a polygen that leads, does not run, and has seen these.
func metered(t *testing.T, m UserMetrics, events func(now time.Time) []redisbus.Event) *generator {
	t.Helper()
	g := newGenerator(t, "127.0.0.1:1", "one", func(o *Options) { o.UserMetrics = m })
	set, err := limitfile.Parse("limits.yaml", []byte(userMetricsLimits))
	if err != nil {
		t.Fatal(err)
	}
	g.set.Store(set)
	g.pretend(true)
	now := g.clock.Now()
	for _, e := range events(now) {
		g.showEvent(now, e)
	}
	return g
}

// A writer to Redis can name a user whom no label can have.
func TestUserMetricsOfAnOddName(t *testing.T) {
	g := metered(t, UserMetrics{Top: 5}, func(now time.Time) []redisbus.Event {
		return []redisbus.Event{redisbus.Demand{{Instance: "a", User: "\xff", Active: 1, Moved: [2]int64{bandwidth.Down: 1}}}}
	})
	if got := g.series(t); len(got) == 0 || !utf8.ValidString(strings.Join(got, "")) {
		t.Errorf("series %q, want some, in UTF-8", got)
	}
}

// used is that so many requests were counted in the last second, or in the present window.
func used(now time.Time, key, class string, w limits.Window, n int) redisbus.UsageEntry {
	at := now.Unix() - 1
	if w != limits.Second {
		at = now.Unix() - now.Unix()%w.Seconds()
	}
	return redisbus.UsageEntry{Key: ratelimit.Key{User: key, Class: class, Window: w}, Second: at, Total: n}
}

// series are the user metrics in the text format, without help and type.
func (g *generator) series(t *testing.T) []string {
	t.Helper()
	families, err := g.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, f := range families {
		if !strings.HasPrefix(f.GetName(), "sluice_user_") {
			continue
		}
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			all = append(all, fmt.Sprintf("%s{%s} %v", strings.TrimPrefix(f.GetName(), "sluice_user_"), strings.Join(labels, ","), m.GetGauge().GetValue()))
		}
	}
	return all
}

func TestUserMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := metered(t, UserMetrics{Users: []string{"alice", "mover", "never", "staff"}}, func(now time.Time) []redisbus.Event {
			return []redisbus.Event{
				redisbus.Usage{Entries: []redisbus.UsageEntry{
					used(now, "alice", "GET", limits.Second, 7), used(now, "alice", "*", limits.Minute, 42),
					used(now, "bob", "GET", limits.Second, 9),
				}},
				redisbus.Demand{{Instance: "a", User: "mover", Active: 2, Moved: [2]int64{bandwidth.Down: 1000, bandwidth.Up: 50}}},
			}
		})
		second := g.clock.Now().Unix()
		g.remember([]ratelimit.Throttle{{Key: ratelimit.Key{User: "alice", Class: "GET"}, WindowStart: second - 1, Limit: 10}}, concurrency.Decisions{})
		got := g.series(t)
		for _, want := range []string{
			`bytes_per_second{direction="down",user="mover"} 1000`,
			`bytes_per_second{direction="up",user="mover"} 50`,
			`limit{limit="GET",user="alice"} 10`,
			`limit{limit="*/minute",user="alice"} 100`,
			`limit{limit="concurrent",user="alice"} 5`,
			`limit{limit="bandwidth.down",user="mover"} 1.048576e+07`,
			`limited{reason="concurrent-requests",user="alice"} 0`,
			`requests_in_progress{user="mover"} 2`,
			`requests_in_progress{user="never"} 0`,
			`requests_per_second{tier="free",user="alice"} 7`,
			`requests_per_second{tier="free",user="never"} 0`,
			`requests_per_second{tier="staff",user="staff"} 0`,
			`used{limit="GET",user="alice"} 7`,
			`used{limit="*/minute",user="alice"} 42`,
			`used{limit="bandwidth.down",user="mover"} 1000`,
		} {
			if !slices.Contains(got, want) {
				t.Errorf("no series %s", want)
			}
		}
		for _, s := range got {
			if strings.Contains(s, `user="bob"`) {
				t.Errorf("series %s of a user who was not named", s)
			}
		}
		if t.Failed() {
			t.Logf("series:\n%s", strings.Join(got, "\n"))
		}

		if problems, err := testutil.GatherAndLint(g.registry); err != nil || len(problems) > 0 {
			t.Errorf("lint: %v, %v", problems, err)
		}
		g.pretend(false)
		if got := g.series(t); len(got) > 0 {
			t.Errorf("a standby has the series %q, want none", got)
		}
	})
}

// Who is limited now, and why; a limit in a dry run limits nobody.
func TestUserMetricsOfTheLimited(t *testing.T) {
	c := newUserCollector(nil, UserMetrics{})
	for _, row := range []struct {
		name string
		why  []api.Why
		want map[string]float64
	}{
		{"nothing", nil, map[string]float64{"request-rate": 0, "concurrent-requests": 0}},
		{"a rate", []api.Why{{Reason: api.RequestRate, Mode: "enforce"}}, map[string]float64{"request-rate": 1, "concurrent-requests": 0}},
		{"two rates", []api.Why{{Reason: api.RequestRate, Mode: "dry-run"}, {Reason: api.RequestRate, Mode: "enforce"}}, map[string]float64{"request-rate": 1, "concurrent-requests": 0}},
		{"in progress", []api.Why{{Reason: api.ConcurrentRequests, Mode: "enforce"}}, map[string]float64{"request-rate": 0, "concurrent-requests": 1}},
		{"a budget", []api.Why{{Reason: api.Cost, Mode: "enforce"}}, map[string]float64{"cost": 1}},
		{"a dry run", []api.Why{{Reason: api.RequestRate, Mode: "dry-run"}}, map[string]float64{"request-rate": 0, "concurrent-requests": 0}},
	} {
		t.Run(row.name, func(t *testing.T) {
			one := oneUser{c, userUse{User: api.User{Why: row.why}}}
			for reason, want := range row.want {
				text := fmt.Sprintf("# HELP sluice_user_limited %s\n# TYPE sluice_user_limited gauge\n", helpOf(t, c.limited))
				for _, r := range []string{"concurrent-requests", "cost", "request-rate"} {
					text += fmt.Sprintf("sluice_user_limited{reason=%q,user=\"u\"} %v\n", r, row.want[r])
				}
				if err := testutil.CollectAndCompare(one, strings.NewReader(text), "sluice_user_limited"); err != nil {
					t.Errorf("%s, want %v: %v", reason, want, err)
				}
			}
		})
	}
}

// oneUser sends one user's series.
type oneUser struct {
	c *userCollector
	u userUse
}

func (o oneUser) Describe(ch chan<- *prometheus.Desc) { o.c.Describe(ch) }
func (o oneUser) Collect(ch chan<- prometheus.Metric) { o.c.sendUser(ch, "u", o.u) }

func helpOf(t *testing.T, d *prometheus.Desc) string {
	t.Helper()
	_, rest, _ := strings.Cut(d.String(), `help: "`)
	help, _, found := strings.Cut(rest, `", `)
	if !found {
		t.Fatalf("no help in %s", d)
	}
	return help
}

// The users with most requests have series, and keep them for a while.
func TestUserMetricsOfTheTop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := metered(t, UserMetrics{Top: 2}, func(now time.Time) []redisbus.Event {
			return []redisbus.Event{redisbus.Usage{Entries: []redisbus.UsageEntry{
				used(now, "alice", "GET", limits.Second, 7), used(now, "bob", "GET", limits.Second, 9), used(now, "carol", "GET", limits.Second, 5),
				used(now, "alan", "GET", limits.Second, 8),
			}}}
		})
		rates := func() (of []string) {
			for _, s := range g.series(t) {
				if who, ok := strings.CutPrefix(s, "requests_per_second"); ok {
					of = append(of, who)
				}
			}
			slices.Sort(of)
			return of
		}
		want := []string{`{tier="free",user="alan"} 8`, `{tier="free",user="bob"} 9`}
		if diff := cmp.Diff(want, rates()); diff != "" {
			t.Errorf("the top (-want +got):\n%s", diff)
		}
		// Another one comes; those who were there stay.
		now := g.clock.Now()
		g.showEvent(now, redisbus.Usage{Entries: []redisbus.UsageEntry{used(now, "dave", "GET", limits.Second, 10)}})
		time.Sleep(topFor)
		want = append(want, `{tier="free",user="dave"} 10`)
		slices.Sort(want)
		if diff := cmp.Diff(want, rates()); diff != "" {
			t.Errorf("after another one came (-want +got):\n%s", diff)
		}
		time.Sleep(topStay)
		if got := rates(); len(got) > 0 {
			t.Errorf("after five minutes without requests %q have series, want nobody", got)
		}
	})
}

func TestBusiest(t *testing.T) {
	lists := map[api.Sort][]api.Summary{
		api.ByRate:       {{Name: api.Name{User: "a"}, Rate: 9}, {Name: api.Name{User: "b"}, Rate: 1}, {Name: api.Name{User: "zero"}}},
		api.ByDown:       {{Name: api.Name{User: "a"}, Down: 9}, {Name: api.Name{User: "c"}, Down: 1}},
		api.ByUp:         {{Name: api.Name{User: "d"}, Up: 1}},
		api.ByConcurrent: {{Name: api.Name{User: "f"}, InProgress: 1}, {Name: api.Name{User: "zero"}}},
	}
	for n, want := range map[int][]string{1: {"a"}, 2: {"a", "b"}, 3: {"a", "b", "c"}, 5: {"a", "b", "c", "d", "f"}, 9: {"a", "b", "c", "d", "f"}} {
		got := busiest(func(by api.Sort, n int) []api.Summary { return lists[by][:min(n, len(lists[by]))] }, n)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("busiest(%d) (-want +got):\n%s", n, diff)
		}
	}
}

// Who was in the top within five minutes is kept, but of more than twice the places
// the ones who were there last.
func TestTopUsers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k := rapid.IntRange(1, 4).Draw(t, "k")
		top, now := topUsers{most: 2 * k}, time.Unix(1e9, 0)
		kept := map[string]time.Time{} // and when they were last in the top
		for range rapid.IntRange(1, 60).Draw(t, "scrapes") {
			now = now.Add(time.Duration(rapid.IntRange(1, 200).Draw(t, "seconds")) * time.Second)
			for _, key := range rapid.SliceOfNDistinct(rapid.StringMatching(`[a-l]`), 0, k, rapid.ID).Draw(t, "top") {
				kept[key] = now
			}
			var present []string
			for key, at := range kept {
				if at.Equal(now) {
					present = append(present, key)
				}
			}
			got := top.update(now, present)
			if len(got) > 2*k || !slices.IsSorted(got) || len(slices.Compact(slices.Clone(got))) != len(got) {
				t.Fatalf("update = %q, want at most %d, sorted, each once", got, 2*k)
			}
			oldest := now // of those who have series
			for _, key := range got {
				at, known := kept[key]
				if !known || now.Sub(at) >= topStay {
					t.Fatalf("%s has series and was in the top %v ago", key, now.Sub(at))
				}
				if at.Before(oldest) {
					oldest = at
				}
			}
			for key, at := range kept {
				if slices.Contains(got, key) {
					continue
				}
				if now.Sub(at) < topStay && (len(got) < 2*k || at.After(oldest) || at.Equal(now)) {
					t.Fatalf("%s, in the top %v ago, gave way to one of %v ago; %d of %d have series", key, now.Sub(at), now.Sub(oldest), len(got), 2*k)
				}
				delete(kept, key)
			}
		}
	})
}

func TestUserLabel(t *testing.T) {
	for _, row := range []struct{ name, want string }{
		{"alice", "alice"},
		{"jürgen", "jürgen"},
		{strings.Repeat("n", 100), strings.Repeat("n", 100)},
		{strings.Repeat("n", 101), strings.Repeat("n", 83) + "~"},
		{"ali\xffce", "ali\ufffdce~"},
		{strings.Repeat("é", 60), strings.Repeat("é", 41) + "~"},
	} {
		got := userLabel(row.name)
		same := got == row.want
		if strings.HasSuffix(row.want, "~") {
			same = strings.HasPrefix(got, row.want) && len(got) == len(row.want)+16
		}
		if !same {
			t.Errorf("userLabel(%q) = %q, want %q", row.name, got, row.want)
		}
	}
	if a, b := userLabel("\xff"), userLabel("\xfe"); a == b {
		t.Errorf("two names have the label %q", a)
	}
}

func FuzzUserLabel(f *testing.F) {
	for _, name := range []string{"", "alice", "\xff", strings.Repeat("\xf0\x9f\x98\x80", 40)} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if got := userLabel(name); !utf8.ValidString(got) || len(got) > maxUserLabel {
			t.Errorf("userLabel(%q) = %q, want UTF-8 of 100 bytes at most", name, got)
		}
	})
}

// Hostile names make no answer that Prometheus cannot read, and there are never more
// series than was said.
func TestUserMetricsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var names []string
		for i := range MaxUserMetrics {
			names = append(names, fmt.Sprintf("named-%d", i))
		}
		g := metered(t, UserMetrics{Top: MaxUserMetrics, Users: names}, func(now time.Time) []redisbus.Event {
			var usage []redisbus.UsageEntry
			for i := range 1000 {
				usage = append(usage, used(now, fmt.Sprintf("u\xff\"}\\%d", i), "GET", limits.Second, i+1))
			}
			return []redisbus.Event{redisbus.Usage{Entries: usage}}
		})
		rows := 0
		for _, s := range g.series(t) {
			if strings.HasPrefix(s, "requests_per_second") {
				rows++
			}
		}
		if rows != 2*MaxUserMetrics {
			t.Errorf("%d users have series, want the %d named and the %d with most", rows, MaxUserMetrics, MaxUserMetrics)
		}
	})
}

func TestUserMetricsErrors(t *testing.T) {
	for want, m := range map[string]UserMetrics{
		"metrics of the 101 users with most: want 0 to 100": {Top: 101},
		"metrics of the -1 users with most: want 0 to 100":  {Top: -1},
		"metrics of 101 users: want 100 at most":            {Users: make([]string, 101)},
		"metrics of a user without a name":                  {Users: []string{"a", ""}},
	} {
		if err := m.validate(); err == nil || err.Error() != want {
			t.Errorf("check(%+v) = %v, want %s", m, err, want)
		}
	}
	if err := errors.Join(UserMetrics{}.validate(), UserMetrics{Top: 100, Users: []string{"a"}}.validate()); err != nil {
		t.Errorf("check = %v, want nil", err)
	}
}
