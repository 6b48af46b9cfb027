package agent

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sluice-qos/sluice/internal/agent/peers"
	"github.com/sluice-qos/sluice/internal/daemon"
	"github.com/sluice-qos/sluice/internal/redisbus"

	"github.com/sluice-qos/sluice/pkg/bandwidth"
	"github.com/sluice-qos/sluice/pkg/cause"
	"github.com/sluice-qos/sluice/pkg/concurrency"
	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

func TestValidUser(t *testing.T) {
	for _, tt := range []struct {
		name, user string
		want       bool
	}{
		{"a name", "alice", true},
		{"one byte", "a", true},
		{"no name", "", false},
		{"blanks and bars", "a b|c", true},
		{"a hashed name", "~" + strings.Repeat("A", 64), true},
		{"UTF-8", "zoë", true},
		{"bytes that are no UTF-8", "\xff\xfe\x80", true},
		{"the longest", strings.Repeat("x", maxUser), true},
		{"one byte longer", strings.Repeat("x", maxUser+1), false},
		{"NUL", "a\x00b", false},
		{"a newline at the end", "alice\n", false},
		{"the last control byte", "\x1f", false},
		{"the first that is none", " ", true},
		{"DEL", "a\x7f", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := validUser(tt.user); got != tt.want {
				t.Errorf("validUser(%q) = %v, want %v", tt.user, got, tt.want)
			}
		})
	}
}

// Every name that the shipped HAProxy configuration sends is valid.
func TestKeysAreValidUsers(t *testing.T) {
	for _, name := range []string{"", "alice", "\x00", strings.Repeat("x", 5000), "~", "~" + strings.Repeat("A", 64)} {
		if key := limits.Key(name); !validUser(key) {
			t.Errorf("validUser(%q), the key of %.10q, = false, want true", key, name)
		}
	}
}

func TestVerdictsOfALoneAgent(t *testing.T) {
	get, all := limits.Rate{Class: "GET", Max: 4}, limits.Rate{Class: "*", Max: 6}
	type step struct {
		after       time.Duration
		user, class string
		n           int         // the same request n times
		refused     limits.Rate // zero: allowed
	}
	for _, tt := range []struct {
		name  string
		steps []step
	}{
		{"the limit, and not one more", []step{{0, "alice", "GET", 4, limits.Rate{}}, {0, "alice", "GET", 2, get}}},
		{"anew with each second", []step{
			{0, "alice", "GET", 4, limits.Rate{}}, {999 * time.Millisecond, "alice", "GET", 1, get},
			{time.Millisecond, "alice", "GET", 4, limits.Rate{}}, {0, "alice", "GET", 1, get}}},
		{"all classes together", []step{
			{0, "alice", "GET", 3, limits.Rate{}}, {0, "alice", "PUT", 3, limits.Rate{}}, {0, "alice", "PUT", 1, all}, {0, "alice", "GET", 1, all}}},
		{"a refused request takes no token of another limit", []step{
			{0, "alice", "GET", 4, limits.Rate{}}, {0, "alice", "GET", 9, get}, {0, "alice", "PUT", 2, limits.Rate{}}, {0, "alice", "PUT", 1, all}}},
		{"each user their own", []step{{0, "alice", "GET", 4, limits.Rate{}}, {0, "bob", "GET", 4, limits.Rate{}}, {0, "bob", "GET", 1, get}}},
		{"who has no limits is not limited", []step{{0, "staff", "GET", 1000, limits.Rate{}}}},
		{"a class without limits is not limited", []step{{0, "wilma", "PUT", 1000, limits.Rate{}}}},
		{"a name that HAProxy cannot have sent is not limited", []step{{0, "al\nice", "GET", 10, limits.Rate{}}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, nil).run()
				for _, s := range tt.steps {
					time.Sleep(s.after)
					for i := range s.n {
						want := verdict{allowed: s.refused == limits.Rate{}, rate: s.refused}
						got := r.ask(s.user, s.class)
						if got != want {
							t.Errorf("verdict(%q, %s), the %d., = %+v, want %+v", s.user, s.class, i+1, got, want)
						}
					}
				}
			})
		})
	}
}

func TestRequestWaitsForTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil).run()
		r.joined(redisbus.Registry{Instances: []string{"a", "b"}})
		r.pool.set(3*time.Millisecond, nil)

		r.want("alice", "PUT", true, 3*time.Millisecond)
		r.pool.fill(alice, 4) // the others were faster
		r.want("alice", "GET", false, 3*time.Millisecond)
		r.want("alice", "GET", false, 0) // that is known now
		if got := testutil.ToFloat64(r.metrics.timeouts); got != 0 {
			t.Errorf("timeouts = %v, want 0", got)
		}
		if got, want := waited(t, r), "2 requests waited for 0.006 s"; got != want {
			t.Errorf("%s, want %s", got, want)
		}
	})
}

// waited reads the histogram of waits.
func waited(t *testing.T, r *rig) string {
	t.Helper()
	families, err := r.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "sluice_verdict_wait_seconds" {
			h := f.GetMetric()[0].GetHistogram()
			return fmt.Sprintf("%d requests waited for %.3g s", h.GetSampleCount(), h.GetSampleSum())
		}
	}
	return "no histogram"
}

func TestOpenLimiterAdmitsEverything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		for range 4 {
			r.want("alice", "GET", true, 0)
		}
		r.want("alice", "GET", false, 0)
		r.limiter.shards[0].reach.open.Store(true)
		r.want("alice", "GET", true, 0)
		r.force(parse(t, "version: 1\ndefault_tier: free\ntiers: {free: {requests: 0}}\n"))
		r.want("alice", "GET", false, 0)
	})
}

// A limit of 0 refuses before a place is taken or waited for, HAProxy is told once until it has forgotten, and credit of before is
// taken back.
func TestLimitOfZero(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil).run()
		r.force(parse(t, `version: 1
default_tier: free
costs: {tokens: {estimate: {default: 5}}}
tiers:
  free: {requests: {GET: 0, POST: {second: 0, mode: dry-run}}, concurrent: 1, over_limit: {concurrent: wait 2s}}
  budget: {costs: {tokens: {day: 0}}}
users: {bob: budget}
`))
		r.want("alice", "PUT", true, 0) // the only place
		begin := time.Now().Unix()
		for i := range 3 {
			want := verdict{cause: cause.LimitZero, rate: limits.Rate{Class: "GET"}, window: 1}
			got := r.Agent.verdict(question{user: "alice", verb: "GET", credit: haproxyCredit{places: concurrency.Places{Lent: i == 2}}})
			if got.retry = 0; got != want {
				t.Errorf("a GET: %+v, want %+v", got, want)
			}
		}
		teach := func() peers.Values { return r.taught["/throttle GET|alice"] }
		for _, n := range r.told() {
			r.teachThrottle(n)
		}
		if got := teach(); got[peers.GPC0] != 0 || got[peers.GPC1] != 1 || int64(got[peers.GPT0]) < begin+100 {
			t.Errorf("HAProxy was taught %v, want a limit of 0 without an end", got)
		}
		if n := testutil.ToFloat64(r.metrics.throttled); n != 1 {
			t.Errorf("HAProxy was taught %v times, want once for the three", n)
		}
		if r.limiter.credits.withdrawals["alice"] == nil {
			t.Error("the credit of before is not taken back")
		}
		if got := r.Agent.verdict(question{user: "bob", verb: "GET"}); got.allowed || got.cause != cause.LimitZero || got.cost.Name() != "tokens/day" {
			t.Errorf("what costs tokens: %+v, want refused by tokens/day", got)
		}
		r.force(parse(t, "version: 1\ndefault_tier: free\ntiers: {free: {requests: {GET: 9}}}\n"))
		if got := teach(); got != (peers.Values{}) {
			t.Errorf("HAProxy has %v after the limit was raised, want it lifted", got)
		}
		r.want("dave", "GET", true, 0)
	})
}

// HAProxy is told to refuse by itself, and no longer when tokens are found.
func TestNativeThrottleIsLifted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil).run()
		r.joined(redisbus.Registry{Instances: []string{"a", "b"}})
		r.pool.fill(alice, 3)
		r.want("alice", "GET", true, 0)
		r.want("alice", "GET", false, 0)

		second := time.Now().Unix()
		r.applyPolicies([]redisbus.Message{redisbus.Throttle{Key: alice, Second: second, Limit: 4}})
		throttle := ratelimit.TableEntry{Key: alice, End: second + 1, Limit: 4}
		if told := r.told(); !slices.Equal(told, []ratelimit.TableEntry{throttle}) {
			t.Fatalf("HAProxy was told %+v, want %+v", told, throttle)
		}

		r.pool.fill(alice, 2) // another agent gave some back
		time.Sleep(100 * time.Millisecond)
		lift := throttle
		lift.Lift = true
		if told := r.told(); !slices.Equal(told, []ratelimit.TableEntry{throttle, lift}) {
			t.Fatalf("HAProxy was told %+v, want %+v and its end", told, throttle)
		}
		if throttled, lifted := testutil.ToFloat64(r.metrics.throttled), testutil.ToFloat64(r.metrics.lifted); throttled != 1 || lifted != 1 {
			t.Errorf("native throttles counted: %v, lifted: %v, want 1 and 1", throttled, lifted)
		}
		r.want("alice", "GET", true, 0)
	})
}

// Whoever decides, what HAProxy is told of a key stays in order: a throttle and
// its end take turns.
func TestNativeOrderUnderLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil).run()
		r.joined(redisbus.Registry{Instances: []string{"a", "b"}})
		r.pool.set(time.Millisecond, nil)
		r.ask("alice", "GET") // of users that it does not know an agent passes on every throttle
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				for range 300 {
					r.ask("alice", "GET")
					time.Sleep(time.Duration(i+1) * time.Millisecond)
				}
			})
		}
		wg.Go(func() {
			for i := range 300 {
				r.applyPolicies([]redisbus.Message{redisbus.Throttle{Key: alice, Second: time.Now().Unix(), Limit: 4}})
				r.pool.fill(alice, 3+i%2)
				time.Sleep(7 * time.Millisecond)
			}
		})
		wg.Wait()
		r.stop()

		last := map[int64]bool{} // by second: HAProxy refuses
		lifts := 0
		for _, n := range r.told() {
			if last[n.End] == !n.Lift {
				t.Fatalf("HAProxy was told %+v twice", n)
			}
			last[n.End] = !n.Lift
			if n.Lift {
				lifts++
			}
		}
		if lifts == 0 {
			t.Error("no throttle was lifted: nothing was tested")
		}
	})
}

func TestRoundTripsMedian(t *testing.T) {
	ms := func(n ...int) (d []time.Duration) {
		for _, n := range n {
			d = append(d, time.Duration(n)*time.Millisecond)
		}
		return d
	}
	for _, tt := range []struct {
		name string
		in   []time.Duration
		want time.Duration
	}{
		{"of nothing", nil, 0},
		{"of one", ms(7), 7 * time.Millisecond},
		{"of an even number, the larger", ms(1, 9), 9 * time.Millisecond},
		{"an outlier does not matter", ms(1, 500, 2), 2 * time.Millisecond},
		{"of the last 31", append(ms(slices.Repeat([]int{9}, 100)...), ms(slices.Repeat([]int{1}, 16)...)...), time.Millisecond},
		{"of the last 31, still", append(ms(slices.Repeat([]int{9}, 100)...), ms(slices.Repeat([]int{1}, 15)...)...), 9 * time.Millisecond},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var r roundTrips
			for _, d := range tt.in {
				r.add(d)
			}
			if got := r.median(); got != tt.want {
				t.Errorf("median of %v = %v, want %v", tt.in, got, tt.want)
			}
		})
	}
}

// BenchmarkDecide measures verdicts from as many goroutines as HAProxy has
// questions under way: the lock, the clock and the core.
func BenchmarkDecide(b *testing.B) {
	for _, bb := range []struct {
		name      string
		limits    string
		users     int
		instances int
	}{
		{"one user, far below the limit", "GET: 1000000000", 1, 1},
		{"10 000 users, far below their limits", "GET: 1000000000", 10_000, 1},
		{"10 000 users, two limits each", `GET: 1000000000, "*": 1000000000`, 10_000, 1},
		{"one user, far above the limit", "GET: 10", 1, 1},
		{"one user without limits", "PUT: 1", 1, 1},
	} {
		b.Run(bb.name, func(b *testing.B) {
			l := newLimiter(&daemon.Clock{}, newMetrics(nil), concurrency.Config{}, 1, nil)
			l.inForce.set.Store(parse(b, "version: 1\ndefault_tier: t\ntiers: {t: {requests: {"+bb.limits+"}}}\n"))
			users := make([]string, bb.users)
			for i := range users {
				users[i] = fmt.Sprintf("user-%d", i)
			}
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for i := 0; pb.Next(); i++ {
					l.decideNow(question{user: users[i%len(users)], verb: "GET"})
				}
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "starts/s")
		})
	}
}

// BenchmarkMemoryOfUsers measures what an agent keeps of a user with each kind of limit and a request
// in progress.
func BenchmarkMemoryOfUsers(b *testing.B) {
	const users = 100_000
	for b.Loop() {
		l := newLimiter(&daemon.Clock{}, newMetrics(nil), concurrency.Config{}, 1, nil)
		l.inForce.set.Store(parse(b, "version: 1\ndefault_tier: t\ntiers: {t: {requests: {GET: 100}, concurrent: 20, bandwidth: {down: 10MiB}}}\n"))
		l.tables.share = func(bandwidth.TableEntry) {}
		limit := bandwidth.Limit{Bytes: [2]int64{10 << 20, 0}}
		before := heapInUse()
		for i := range users {
			name := fmt.Sprintf("user-%06d", i)
			l.decideNow(question{user: name, verb: "GET"})
			l.update(func(now time.Time) {
				l.coresOf(name).slots.Progress(now, name, 20, concurrency.Count{Tracked: 1, Active: 1})
				l.bytes.Progress(now, name, limit, bandwidth.Asked, bandwidth.Count{Active: 1})
			})
		}
		b.ReportMetric(float64(heapInUse()-before)/users, "B/user")
		runtime.KeepAlive(l)
	}
}

func heapInUse() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
