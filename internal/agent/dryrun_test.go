package agent

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sluice-qos/sluice/internal/agent/peers"
	"github.com/sluice-qos/sluice/internal/redisbus"
	"github.com/sluice-qos/sluice/pkg/concurrency"
	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

const dryLimits = `version: 1
default_tier: free
tiers:
  free: {mode: dry-run, requests: {GET: 4, "*": {hour: 6}}, concurrent: 2}
  both: {requests: {GET: 2, PUT: {second: 3, mode: dry-run}, "*": {second: 4, mode: dry-run}}, concurrent: {limit: 1, mode: dry-run}}
  exempt-like: {}
exempt: {users: [probe]}
users: {both: both}
`

func (r *rig) dry(limit string) float64 {
	return testutil.ToFloat64(r.metrics.dryRefused.WithLabelValues(limit))
}

func TestDryRun(t *testing.T) {
	type ask struct {
		question question
		want     verdict
	}
	allowed := verdict{allowed: true}
	of := func(user, verb string) question { return question{user: user, verb: verb} }
	busy := func(user, verb string, active int64) question {
		return question{user: user, verb: verb, seen: concurrency.Count{Tracked: active, Active: active}}
	}
	for _, tt := range []struct {
		name string
		asks []ask
		want map[string]float64
	}{
		{"below the limits", []ask{{of("alice", "GET"), allowed}, {of("alice", "GET"), allowed}}, map[string]float64{}},
		{"above those of a second and of an hour", []ask{
			{of("alice", "GET"), allowed}, {of("alice", "GET"), allowed}, {of("alice", "GET"), allowed}, {of("alice", "GET"), allowed},
			{of("alice", "GET"), allowed}, // the fifth takes no token of the hour
			{of("alice", "PUT"), allowed}, {of("alice", "PUT"), allowed}, {of("alice", "PUT"), allowed},
		}, map[string]float64{"GET": 1, "*/hour": 1, "concurrent": 6}},
		{"above that of requests in progress", []ask{
			{busy("alice", "PUT", 1), allowed}, {busy("alice", "PUT", 2), allowed}, {busy("alice", "PUT", 3), allowed},
		}, map[string]float64{"concurrent": 2}},
		{"beside one that is enforced", []ask{
			{of("both", "GET"), allowed}, {of("both", "GET"), allowed},
			{of("both", "GET"), verdict{rate: limits.Rate{Class: "GET", Max: 2}}}, // and would not have come to the others
			{of("both", "PUT"), allowed}, {of("both", "PUT"), allowed}, {of("both", "PUT"), allowed}, {of("both", "PUT"), allowed},
		}, map[string]float64{"*": 2, "concurrent": 5}},
		{"who is exempt", []ask{{of("probe", "GET"), allowed}, {of(limits.ExemptKey, "GET"), allowed}}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, nil)
				r.limiter.inForce.set.Store(parse(t, dryLimits))
				r.pool.set(2*ms, nil)
				r.run()
				r.joined(redisbus.Registry{Instances: []string{"a"}})
				wait(time.Second)
				for i, a := range tt.asks {
					began := time.Now()
					got := r.verdict(a.question)
					if got != a.want || time.Since(began) != 0 {
						t.Errorf("step %d: verdict(%+v) = %+v after %v, want %+v at once", i, a.question, got, time.Since(began), a.want)
					}
					wait(5 * ms) // what was asked of the pool is known
				}
				if got := testutil.ToFloat64(r.metrics.exempt); (got > 0) != (tt.want == nil) {
					t.Errorf("%v requests were exempt", got)
				}
				// That a dry run waits for the pool is no request's wait.
				r.wantMetric("sluice_verdict_wait_seconds", "sluice_verdict_wait_seconds_count 0")
				for _, limit := range []string{"GET", "PUT", "*", "*/hour", "concurrent"} {
					if got := r.dry(limit); got != tt.want[limit] {
						t.Errorf("would have been refused by %s: %v, want %v", limit, got, tt.want[limit])
					}
				}
			})
		})
	}
}

// HAProxy hears nothing of limits in a dry run, whatever polygen says, and what it
// heard before is taken back.
func TestDryRunIsNotTaught(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil).run()
		of := func(mode string) *limits.Set {
			return parse(t, "version: 1\nmode: "+mode+"\ndefault_tier: free\ntiers: {free: {requests: {GET: {hour: 1}}, concurrent: 1, bandwidth: {down: 6400, up: 12800}}}\n")
		}
		r.force(of("enforce"))
		hour := ratelimit.Key{Class: "GET", User: "alice", Window: limits.Hour}
		r.limiter.update(func(time.Time) { r.limiter.bodies.transfers.enterTable("alice") }) // her share is in the table
		r.ask("alice", "GET")
		for range 9 {
			r.ask("alice", "GET")
		}
		r.limiter.update(func(now time.Time) {
			r.teachThrottle(ratelimit.TableEntry{Key: hour, End: now.Truncate(time.Hour).Unix() + 3600, Limit: 1})
			r.limiter.allCores()[0].slots.Block(now, "alice", concurrency.Limit{Max: 1})
		})
		entry := func(table, key string) peers.Values {
			t.Helper()
			r.limiter.mu.Lock()
			defer r.limiter.mu.Unlock()
			v, ok := r.taught[table+" "+key]
			if !ok {
				t.Errorf("%s has no entry %s", table, key)
			}
			return v
		}
		if v := entry("/throttle", "GET|alice"); v[peers.GPT0] == 0 || v[peers.GPC0] != 1 || v[peers.GPC1] != 3600 {
			t.Errorf("throttle = %v, want the hour's end, 1 and 3600", v)
		}
		if v := entry("/block", "alice"); v[peers.GPT0] == 0 || v[peers.GPC1] != 1 {
			t.Errorf("block = %v, want a deadline and a cap", v)
		}
		if v := entry("sluice_share", "alice"); v[peers.GPT0] != 100 || v[peers.GPC0] != 200 {
			t.Errorf("share = %v, want 100 and 200 units", v)
		}

		r.force(of("dry-run"))
		if v := entry("/block", "alice"); v != (peers.Values{}) {
			t.Errorf("block, just after the dry run has begun = %v, want nothing", v)
		}
		r.limiter.update(func(now time.Time) { // repeated, as long as polygen says so
			r.teachBlock(concurrency.TableEntry{User: "alice", Until: now.Unix() + 2, Limit: 1, Cap: 1})
		})
		if v := entry("/throttle", "GET|alice"); v != (peers.Values{}) {
			t.Errorf("throttle in a dry run = %v, want nothing", v)
		}
		if v := entry("/block", "alice"); v != (peers.Values{}) {
			t.Errorf("block in a dry run = %v, want nothing", v)
		}
		const none = 1<<32 - 1
		if v := entry("sluice_share", "alice"); v[peers.GPT0] != none || v[peers.GPC0] != none {
			t.Errorf("share in a dry run = %v, want not limited", v)
		}
		// polygen may speak of whom nothing is known here, and of a limit of before.
		r.limiter.update(func(now time.Time) {
			zoe := ratelimit.Key{Class: "*", User: "zoe"}
			r.limiter.allCores()[0].tokens.Throttle(now, zoe, now.Unix(), 5)
			r.teachThrottle(ratelimit.TableEntry{Key: hour, End: now.Truncate(time.Hour).Unix() + 3600, Limit: 1})
		})
		r.limiter.mu.Lock()
		if v, ok := r.taught["/throttle *|zoe"]; ok || r.taught["/throttle GET|alice"] != (peers.Values{}) {
			t.Errorf("throttles in a dry run = %v and %v, want none", v, r.taught["/throttle GET|alice"])
		}
		r.limiter.mu.Unlock()
		if got := r.ask("alice", "GET"); got != (verdict{allowed: true}) {
			t.Errorf("verdict = %+v, want allowed and nothing else", got)
		}
	})
}

func TestThrottles(t *testing.T) {
	now := time.Unix(1_800_000_010, 0)
	key := func(w limits.Window) ratelimit.Key { return ratelimit.Key{Class: "GET", User: "alice", Window: w} }
	native := func(w limits.Window, lift bool) ratelimit.TableEntry {
		return ratelimit.TableEntry{Key: key(w), End: now.Unix()/w.Seconds()*w.Seconds() + w.Seconds(), Limit: 5, Lift: lift}
	}
	const throttle, lift = false, true
	type step struct {
		window limits.Window
		lift   bool
		taken  bool
	}
	for _, tt := range []struct {
		name  string
		steps []step
	}{
		{"a second, lifted", []step{{limits.Second, throttle, true}, {limits.Second, lift, true}}},
		{"a longer one takes over, and holds", []step{
			{limits.Second, throttle, true}, {limits.Minute, throttle, true}, {limits.Second, throttle, false}, {limits.Second, lift, false},
			{limits.Hour, throttle, true}, {limits.Minute, throttle, false}, {limits.Minute, lift, false},
			{limits.Month, throttle, true}, {limits.Day, throttle, false}, {limits.Month, lift, true}, {limits.Day, throttle, true}}},
		{"lifted, shorter ones count again", []step{{limits.Hour, throttle, true}, {limits.Hour, lift, true}, {limits.Second, throttle, true}}},
		{"repeated", []step{{limits.Hour, throttle, true}, {limits.Hour, throttle, true}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			all := newThrottles()
			for i, s := range tt.steps {
				if got := all.shouldTeach(now, native(s.window, s.lift)); got != s.taken {
					t.Errorf("step %d: take(%v, lift %v) = %v, want %v", i, s.window, s.lift, got, s.taken)
				}
			}
		})
	}
	t.Run("HAProxy forgets", func(t *testing.T) {
		all := newThrottles()
		all.shouldTeach(now, native(limits.Hour, throttle))
		if !all.shouldTeach(now.Add(ratelimit.RefuseFor), native(limits.Second, throttle)) {
			t.Error("a throttle that HAProxy has forgotten holds off a shorter one")
		}
	})
	t.Run("outdated", func(t *testing.T) {
		for get, want := range map[string]int{"{hour: 5}": 0, "{hour: 6}": 1, "{hour: 5, mode: dry-run}": 1, "{minute: 5}": 1, "unlimited": 1} {
			all := newThrottles()
			all.shouldTeach(now, native(limits.Hour, throttle))
			set := parse(t, "version: 1\ndefault_tier: free\ntiers: {free: {requests: {GET: "+get+"}}}\n")
			if got := all.outdated(set); len(got) != want || all.len() != 1-want || want == 1 && !got[0].Lift {
				t.Errorf("GET: %s: outdated = %+v and %d left, want %d", get, got, all.len(), want)
			}
		}
	})
}

// Retry is until the window that refuses ends.
func TestRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil).run()
		r.force(parse(t, "version: 1\ndefault_tier: free\ntiers: {free: {requests: {GET: 1, PUT: {minute: 1}}}}\n"))
		wait(300 * ms)
		for _, tt := range []struct {
			verb string
			want time.Duration
		}{{"GET", 700 * ms}, {"PUT", time.Minute - 300*ms}} {
			r.ask("alice", tt.verb)
			got := r.Agent.verdict(question{user: "alice", verb: tt.verb})
			// Time begins with a full minute; the pool answers at once.
			if got.allowed || got.retry != tt.want {
				t.Errorf("the second %s: %+v, want refused, and %v to wait", tt.verb, got, tt.want)
			}
		}
	})
}

// An override that ends by itself is out of force a heartbeat later.
func TestOverrideEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		end := time.Now().Add(10 * time.Second)
		r.force(parse(t, "version: 1\ndefault_tier: free\ntiers: {free: {concurrent: 1}}\nusers: {alice: {concurrent: 3, until: "+end.UTC().Format(time.RFC3339)+"}}\n"))
		for _, tt := range []struct {
			at   time.Time
			want int
		}{{end.Add(-1), 3}, {end, 1}} {
			time.Sleep(time.Until(tt.at))
			r.expire()
			if got := r.limiter.inForce.set.Load().User("alice").Concurrent; got != tt.want {
				t.Errorf("at %v: %d at a time, want %d", tt.at, got, tt.want)
			}
		}
	})
}
