package spoa

import (
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"pgregory.net/rapid"

	"github.com/sluice-qos/sluice/internal/bus"
	"github.com/sluice-qos/sluice/internal/clock"
	"github.com/sluice-qos/sluice/internal/policy"
	"github.com/sluice-qos/sluice/pkg/concurrency"
	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

// togetherLimits limit users at each endpoint, and at all of them together.
const togetherLimits = `version: 1
default_tier: free
endpoints: [one, two]
tiers:
  free: {requests: {GET: 4}, endpoints: {"*": {requests: {GET: 6}}}}
  both: {requests: {GET: 3}, concurrent: 2, endpoints: {"*": {requests: {GET: 4}}}}
  patient: {requests: {GET: 3}, concurrent: 1, over_limit: {concurrent: wait 2s}, endpoints: {"*": {requests: {GET: 2}}}}
  only: {endpoints: {"*": {requests: {"*": {hour: 3}}}}}
  slots: {concurrent: 1, endpoints: {"*": {requests: {GET: 2}}}}
  dry: {requests: {GET: 4}, endpoints: {"*": {mode: dry-run, requests: {GET: 2}}}}
  staff: {}
  random: {requests: {"*": {hour: 7}}, concurrent: 2, endpoints: {"*": {requests: {"*": {hour: 12}}}}}
users:
  both: both
  patient: patient
  only: only
  slots: slots
  dry: dry
  staff: staff
  random: random
`

// togetherCluster is a cluster of agents with togetherLimits on one pool.
func togetherCluster(t *testing.T, names ...string) (*pool, []*rig) {
	t.Helper()
	p := newPool()
	var rigs []*rig
	for _, name := range names {
		r := newRigOn(t, p, func(o *Options) { o.Instance = name })
		r.limiter.inForce.set.Store(parse(t, togetherLimits))
		r.joined(bus.Registry{Instances: names})
		rigs = append(rigs, r.run())
	}
	return p, rigs
}

func TestTogetherOfALoneAgent(t *testing.T) {
	allowed := verdict{allowed: true}
	own := func(most int) verdict { return verdict{rate: limits.Rate{Class: "GET", Max: most}} }
	all := func(most int) verdict { return verdict{rate: limits.Rate{Class: "GET", Max: most}, together: true} }
	hour := verdict{rate: limits.Rate{Class: "*", Window: limits.Hour, Max: 3}, together: true}
	type step struct {
		after time.Duration
		user  string
		n     int // the same request n times
		want  verdict
	}
	for _, tt := range []struct {
		name  string
		steps []step
	}{
		{"each endpoint has its limit, and all have one", []step{
			{0, "@one/alice", 4, allowed}, {0, "@one/alice", 9, own(4)},
			{0, "@two/alice", 2, allowed}, {0, "@two/alice", 9, all(6)}, {0, "alice", 9, all(6)}, {0, "@one/alice", 9, all(6)},
			{time.Second, "alice", 4, allowed}, {0, "alice", 1, own(4)}, {0, "@one/alice", 2, allowed}, {0, "@one/alice", 1, all(6)}}},
		{"each user their own", []step{
			{0, "@one/alice", 4, allowed}, {0, "alice", 2, allowed}, {0, "alice", 1, all(6)}, {0, "bob", 4, allowed}, {0, "@two/bob", 2, allowed}}},
		{"an endpoint that the file does not declare is no way around it", []step{
			{0, "@one/alice", 4, allowed}, {0, "@three/alice", 2, allowed}, {0, "@four/alice", 1, all(6)}}},
		{"a refusal by the endpoint's limit takes nothing of all", []step{
			{0, "@one/alice", 4, allowed}, {0, "@one/alice", 50, own(4)}, {0, "@two/alice", 2, allowed}, {0, "@two/alice", 1, all(6)}}},
		{"a limit over all endpoints alone", []step{
			{0, "@one/only", 1, allowed}, {0, "only", 1, allowed}, {time.Second, "@two/only", 1, allowed}, {0, "@two/only", 3, hour},
			{5 * time.Second, "only", 3, hour}, {0, "@one/only", 1, hour}}},
		{"no slot: no token of all is taken", []step{
			{0, "@one/slots", 1, allowed}, {0, "@one/slots", 9, verdict{limit: 1}}, {0, "@two/slots", 1, allowed},
			{0, "slots", 1, all(2)}}},
		{"no token of all: the slot goes back", []step{
			{900 * ms, "@one/slots", 1, allowed}, {0, "@two/slots", 1, allowed}, {0, "slots", 9, all(2)}, {100 * ms, "slots", 1, allowed}}},
		{"who has no limits", []step{{0, "@one/staff", 100, allowed}, {0, "staff", 100, allowed}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, rigs := togetherCluster(t, "a")
				r := rigs[0]
				for i, s := range tt.steps {
					wait(s.after)
					for n := range s.n {
						q := question{user: s.user, verb: "GET"}
						r.countUndeclared(&q)
						if got := r.verdict(q); got != s.want {
							t.Errorf("step %d: verdict(%s), the %d., = %+v, want %+v", i, s.user, n+1, got, s.want)
						}
					}
				}
			})
		})
	}
}

// Three pools may be asked for one question, which has one deadline all the same. What
// is taken in vain goes back.
func TestTogetherWaitsOnce(t *testing.T) {
	own := ratelimit.Key{Class: "GET", User: "@one/both"}
	all := ratelimit.Key{Class: "GET", User: "@*/both"}
	for _, tt := range []struct {
		name           string
		slots, tokens  time.Duration // until the pools answer
		running        int           // of 2 slots, elsewhere
		ownUsed, taken int           // of 3 tokens of the endpoint and 4 of all, elsewhere
		want           verdict
		took           time.Duration
	}{
		{"all pools are asked at the same time", 8 * ms, 9 * ms, 0, 0, 0, verdict{allowed: true}, 9 * ms},
		{"no token of all", 2 * ms, 4 * ms, 0, 0, 4, verdict{rate: limits.Rate{Class: "GET", Max: 4}, together: true}, 4 * ms},
		{"no token of the endpoint", 2 * ms, 4 * ms, 0, 3, 0, verdict{rate: limits.Rate{Class: "GET", Max: 3}}, 4 * ms},
		{"neither, before the slot comes", 9 * ms, 4 * ms, 0, 3, 4, verdict{rate: limits.Rate{Class: "GET", Max: 4}, together: true}, 4 * ms},
		{"no slot, for which it waits as long as it may", 2 * ms, 4 * ms, 2, 0, 0, verdict{limit: 2}, 20 * ms},
		{"no slot, and no token yet", 2 * ms, time.Minute, 2, 0, 0, verdict{limit: 2}, 20 * ms},
		{"nobody answers, and the even part of all is one at least", time.Minute, time.Minute, 0, 0, 0, verdict{allowed: true}, 20 * ms},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, rigs := togetherCluster(t, "a", "b")
				a := rigs[0]
				p.occupy(own.User, "b", tt.running)
				p.setSlots(tt.slots, nil)
				p.setTokens(tt.tokens, nil)
				p.fill(own, tt.ownUsed)
				p.fill(all, tt.taken)
				a.wantSlot(own.User, tt.want, tt.took)
				if n := a.waiting(); n != 0 {
					t.Errorf("%d requests still wait for a slot", n)
				}
				a.limiter.mu.Lock()
				waiting := len(a.limiter.forTokens)
				ownLeft, _, _ := a.limiter.allCores()[0].tokens.Left(time.Now(), own.User, []limits.Rate{{Class: "GET", Max: 3}})
				allLeft, _, _ := a.limiter.allCores()[0].tokens.Left(time.Now(), all.User, []limits.Rate{{Class: "GET", Max: 4}})
				a.limiter.mu.Unlock()
				if waiting != 0 {
					t.Errorf("%d requests still wait for a token", waiting)
				}
				if !tt.want.allowed && (ownLeft != 3-tt.ownUsed || allLeft != 4-tt.taken) {
					t.Errorf("tokens left of a request that was refused = %d of the endpoint and %d of all, want %d and %d",
						ownLeft, allLeft, 3-tt.ownUsed, 4-tt.taken)
				}
				want := 0
				if tt.want.allowed {
					want = 1
				}
				if got := a.inProgress(own.User); got != want {
					t.Errorf("in progress = %d, want %d", got, want)
				}
			})
		})
	}
}

// Who waited in line for a slot needs the tokens of both keys, of the second in which
// the slot comes; without them the slot goes back.
func TestTogetherInLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, rigs := togetherCluster(t, "a", "b")
		p.set(ms, nil)
		a := rigs[0]
		start := func() verdict { return a.ask("@one/patient", "GET") }
		if got := start(); !got.allowed {
			t.Fatalf("the first verdict = %+v, want allowed", got)
		}
		a.progress("@one/patient", 1, 1)
		if got, want := start(), (verdict{limit: 1, wait: 2 * time.Second}); got != want {
			t.Fatalf("the second verdict = %+v, want %+v", got, want)
		}
		time.AfterFunc(1200*ms, func() {
			p.fill(ratelimit.Key{Class: "GET", User: "@*/patient"}, 2)
			a.progress("@one/patient", 1, 0)
		})
		if got, want := a.inLine("@one/patient"), (verdict{rate: limits.Rate{Class: "GET", Max: 2}, together: true}); got != want {
			t.Errorf("verdict in line = %+v, want %+v", got, want)
		}
		if got := a.inProgress("@one/patient"); got != 0 {
			t.Errorf("in progress = %d, want 0: the slot goes back", got)
		}
		time.Sleep(time.Second)
		if got := a.inLine("@one/patient"); !got.allowed {
			t.Errorf("verdict in line in the next second = %+v, want allowed", got)
		}
	})
}

// Whatever the arrivals at three agents, at two endpoints and away from them, no limit
// is passed, and what is taken in vain is not lost: all that the limits admit is admitted
// in the end.
func TestTogetherNeverPassesTheLimit(t *testing.T) {
	const ownMost, most = 7, 12
	users := []string{"random", "@one/random", "@two/random"}
	rapid.Check(t, func(rt *rapid.T) {
		type event struct {
			after, runs time.Duration
			agent, user int
		}
		var events []event
		for range rapid.IntRange(1, 60).Draw(rt, "events") {
			events = append(events, event{
				after: time.Duration(rapid.IntRange(0, 30).Draw(rt, "after")) * ms,
				runs:  time.Duration(rapid.IntRange(0, 60).Draw(rt, "runs")) * ms,
				agent: rapid.IntRange(0, 2).Draw(rt, "agent"),
				user:  rapid.IntRange(0, 2).Draw(rt, "user"),
			})
		}
		slots := time.Duration(rapid.IntRange(1, 8).Draw(rt, "slots")) * ms
		tokens := time.Duration(rapid.IntRange(1, 8).Draw(rt, "tokens")) * ms
		longest := time.Duration(rapid.SampledFrom([]int{60, 200}).Draw(rt, "wait")) * ms
		var problems []string
		synctest.Test(t, func(t *testing.T) {
			p, rigs := togetherCluster(t, "a", "b", "c")
			p.setSlots(slots, nil)
			p.setTokens(tokens, nil)
			var (
				mu               sync.Mutex
				wg               sync.WaitGroup
				admitted         [3]int
				tracked, running [3][3]uint64 // by agent and user
			)
			tell := func(e event) {
				rigs[e.agent].progress(users[e.user], tracked[e.agent][e.user], running[e.agent][e.user])
			}
			start := func(e event) {
				if !rigs[e.agent].ask(users[e.user], "GET").allowed {
					return
				}
				mu.Lock()
				admitted[e.user]++
				tracked[e.agent][e.user]++
				running[e.agent][e.user]++
				tell(e)
				mu.Unlock()
				time.Sleep(e.runs)
				mu.Lock()
				defer mu.Unlock()
				running[e.agent][e.user]--
				tell(e)
			}
			for _, r := range rigs {
				r.limiter.shards[0].reach.wait.Store(int64(longest)) // the pools always answer in time
			}
			for _, e := range events {
				time.Sleep(e.after)
				wg.Go(func() { start(e) })
			}
			wg.Wait()
			time.Sleep(6 * time.Second) // what agents have leased of users who are away goes back
			for user := range users {
				for range ownMost + 1 {
					start(event{user: user})
				}
			}
			total := 0
			for i, n := range admitted {
				total += n
				if n > ownMost {
					problems = append(problems, fmt.Sprintf("%d requests of %s are admitted, want %d at most", n, users[i], ownMost))
				}
			}
			if total != most {
				problems = append(problems, fmt.Sprintf("%d requests are admitted in all, want %d", total, most))
			}
			for _, r := range rigs {
				r.stop()
				for _, user := range users {
					if n := r.inProgress(user); n != 0 {
						problems = append(problems, fmt.Sprintf("%d requests of %s are in progress in the end", n, user))
					}
				}
				if n := len(r.limiter.forTokens) + len(r.limiter.forSlots); n != 0 {
					problems = append(problems, fmt.Sprintf("%d questions still wait", n))
				}
			}
		})
		for _, problem := range problems {
			rt.Error(problem)
		}
	})
}

// Names beyond the quota share the limit over all endpoints, too.
func TestTogetherOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(o *Options) { o.UnknownUsers = 1 })
		r.limiter.inForce.set.Store(parse(t, strings.Replace(togetherLimits, "default_tier: free", "default_tier: only", 1)))
		r.run()
		r.ask("known", "GET")
		admitted := 0
		for i := range 20 {
			v := r.ask(fmt.Sprintf("%snew-%d", []string{"", "@one/", "@two/"}[i%3], i), "GET")
			if v.allowed {
				admitted++
			}
			if !strings.HasSuffix(v.others, limits.OthersKey) {
				t.Errorf("request %d counts for %q, want %s", i, v.others, limits.OthersKey)
			}
		}
		if admitted != 3 {
			t.Errorf("%d requests of names beyond the quota are admitted, want 3", admitted)
		}
	})
}

// People see that it was the limit over all endpoints.
func TestTogetherIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, rigs := togetherCluster(t, "a")
		time.Sleep(time.Second)
		r := rigs[0]
		c := r.haproxy()
		check := func(user string, want vars) {
			t.Helper()
			with := args{"user": user, "class": "GET", "log": true}
			if got := c.ask("start-message", with); !maps.Equal(got, want) {
				t.Errorf("%v = %v, want %v", with, got, want)
			}
		}
		left := func(class string, limit, remaining uint32) vars {
			return vars{"class": class, "limit": limit, "remaining": remaining}
		}
		check("@one/alice", left("GET", 4, 3))
		check("@one/alice", left("GET", 4, 2))
		check("@one/alice", left("GET", 4, 1))
		check("@two/alice", left("@*/GET", 6, 2))
		check("@two/alice", left("@*/GET", 6, 1))
		check("alice", left("@*/GET", 6, 0))
		check("alice", vars{"reason": "request-rate", "cause": "own-count", "class": "@*/GET", "limit": uint32(6), "retry": uint32(1)})
		if got := testutil.ToFloat64(r.metrics.refused.WithLabelValues("@*/GET")); got != 1 {
			t.Errorf("refusals counted = %v, want 1", got)
		}
		check("@one/dry", left("GET", 4, 3))
		check("@two/dry", left("GET", 4, 3))
		check("dry", vars{"verdict": "dry-run", "class": "@*/GET", "limit": uint32(2), "remaining": uint32(0)})
		if got := r.dry("@*/GET"); got != 1 {
			t.Errorf("refusals of the dry run counted = %v, want 1", got)
		}
	})
}

// HAProxy never looks the key of all endpoints up: it is not taught it, whatever
// polygen says. The agent refuses as before, and again admits when there is room.
func TestTogetherIsNotTaughtToHAProxy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, rigs := togetherCluster(t, "a", "b")
		p.set(ms, nil)
		a := rigs[0]
		all := ratelimit.Key{Class: "GET", User: "@*/alice"}
		throttle := func(k ratelimit.Key) {
			second := time.Now().Unix()
			a.applyPolicies([]policy.Message{policy.Hot{Key: k, Until: time.Now().Add(3 * time.Second), Instances: 2},
				policy.Throttle{Key: k, Second: second, Limit: 6}})
		}
		throttle(all) // of a user whom the agent does not know
		p.fill(all, 5)
		if got := a.ask("@one/alice", "GET"); !got.allowed {
			t.Errorf("verdict = %+v, want allowed", got)
		}
		throttle(all)
		for range 3 {
			if got := a.ask("@two/alice", "GET"); got.allowed || !got.together {
				t.Errorf("verdict = %+v, want refused over all endpoints", got)
			}
		}
		if len(a.told()) == 0 {
			t.Error("the core has nothing to tell HAProxy: nothing was tested")
		}
		if len(a.taught) > 0 || testutil.ToFloat64(a.metrics.throttled) != 0 {
			t.Errorf("HAProxy was taught %v, want nothing", a.taught)
		}
		time.Sleep(time.Second)
		if got := a.ask("@two/alice", "GET"); !got.allowed {
			t.Errorf("verdict in the next second = %+v, want allowed", got)
		}
	})
}

// What a question needs stays on the stack: only the key of all endpoints together costs
// an allocation, and only where the file has such limits.
func TestDecideAllocates(t *testing.T) {
	for _, tt := range []struct {
		name, user string
		want       float64
	}{
		{"a rate and a slot", "plain", 0},
		{"and a limit over all endpoints", "@one/both", 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newLimiter(&clock.Clock{}, newMetrics(nil), concurrency.Config{}, 1, nil)
			l.inForce.set.Store(parse(t, `version: 1
default_tier: plain
endpoints: [one]
tiers:
  plain: {requests: {GET: 1000000}, concurrent: 1000000}
  both: {requests: {GET: 1000000}, concurrent: 1000000, endpoints: {"*": {requests: {GET: 1000000}}}}
users: {both: both}
`))
			q := question{user: tt.user, verb: "GET"}
			if got := testing.AllocsPerRun(1000, func() {
				if v := l.decideNow(q); !v.allowed {
					t.Fatalf("verdict = %+v, want allowed", v)
				}
			}); got != tt.want {
				t.Errorf("%v allocations, want %v", got, tt.want)
			}
		})
	}
}
