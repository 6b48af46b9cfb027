package agent

import (
	"fmt"
	"slices"
	"strings"
	"sync"
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

func TestSlotsOfALoneAgent(t *testing.T) {
	get := limits.Rate{Class: "GET", Max: 3}
	allowed := verdict{allowed: true}
	type step struct {
		after time.Duration
		what  any // question, or push: HAProxy tells of the user
		n     int // the same question n times
		want  verdict
	}
	type push struct {
		user            string
		tracked, active uint64
	}
	ask := func(user string) question { return question{user: user, verb: "GET"} }
	for _, tt := range []struct {
		name  string
		steps []step
	}{
		{"the limit, and not one more", []step{
			{0, ask("alice"), 2, allowed}, {0, ask("alice"), 3, verdict{limit: 2}}}},
		{"each user their own", []step{
			{0, ask("alice"), 2, allowed}, {0, ask("bob"), 2, allowed}, {0, ask("bob"), 1, verdict{limit: 2}}}},
		{"all classes together", []step{
			{0, ask("alice"), 1, allowed}, {0, question{user: "alice", verb: "PUT"}, 1, allowed},
			{0, question{user: "alice", verb: "PUT"}, 1, verdict{limit: 2}}}},
		{"the end of a request makes room", []step{
			{0, ask("alice"), 2, allowed}, {0, push{"alice", 2, 2}, 0, verdict{}}, {0, ask("alice"), 1, verdict{limit: 2}},
			{0, push{"alice", 2, 1}, 0, verdict{}}, {0, ask("alice"), 1, allowed}, {0, ask("alice"), 1, verdict{limit: 2}}}},
		{"what HAProxy says when it asks counts at once", []step{
			{0, ask("alice"), 2, allowed},
			{0, question{user: "alice", verb: "GET", seen: concurrency.Count{Tracked: 2, Active: 1}}, 1, allowed},
			{0, ask("alice"), 1, verdict{limit: 2}}}},
		{"what HAProxy runs counts, admitted or not", []step{
			{0, push{"alice", 9, 5}, 0, verdict{}}, {0, ask("alice"), 1, verdict{limit: 2}}}},
		{"a request that HAProxy never tracks counts for a second", []step{
			{0, ask("alice"), 2, allowed}, {time.Second - ms, ask("alice"), 1, verdict{limit: 2}},
			{ms + flushEvery, ask("alice"), 2, allowed}}},
		{"who has no limits is not limited", []step{{0, ask("staff"), 1000, allowed}}},
		{"nor who has only other ones", []step{{0, ask("rate"), 4, allowed}, {0, ask("rate"), 1, verdict{rate: limits.Rate{Class: "GET", Max: 4}}}}},
		{"a request refused for want of a slot takes no token", []step{
			{0, ask("both"), 2, allowed}, {0, ask("both"), 9, verdict{limit: 2}},
			{0, push{"both", 2, 0}, 0, verdict{}}, {0, ask("both"), 1, allowed}, {0, ask("both"), 1, verdict{rate: get}}}},
		{"one refused for want of a token gives its slot back", []step{
			{900 * ms, ask("both"), 2, allowed}, {0, push{"both", 2, 0}, 0, verdict{}}, {0, ask("both"), 1, allowed},
			{0, ask("both"), 9, verdict{rate: get}},
			{100 * ms, ask("both"), 1, allowed}, {0, ask("both"), 1, verdict{limit: 2}}}},
		{"a tier's priority goes with what is allowed, and only with that", []step{
			{0, ask("first"), 1, verdict{allowed: true, priority: -5}}, {0, ask("first"), 1, verdict{limit: 1, wait: 2 * time.Second}}}},
		{"told to wait again and again, where the tier says so", []step{
			{0, ask("patient"), 1, allowed}, {0, ask("patient"), 3, verdict{limit: 1, wait: 2 * time.Second}}}},
		{"but not for want of a token", []step{
			{0, ask("patient"), 1, allowed}, {0, push{"patient", 1, 0}, 0, verdict{}}, {0, ask("patient"), 1, allowed},
			{0, push{"patient", 2, 0}, 0, verdict{}}, {0, ask("patient"), 1, allowed},
			{0, push{"patient", 3, 0}, 0, verdict{}}, {0, ask("patient"), 1, verdict{rate: get}}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newSlotRig(t, nil).run()
				for i, s := range tt.steps {
					wait(s.after)
					switch what := s.what.(type) {
					case push:
						r.progress(what.user, what.tracked, what.active)
					case question:
						for n := range s.n {
							began := time.Now()
							if got := r.verdict(what); got != s.want || time.Since(began) != 0 {
								t.Errorf("step %d: verdict(%+v), the %d., = %+v after %v, want %+v at once", i, what, n+1, got, time.Since(began), s.want)
							}
						}
					}
				}
			})
		})
	}
}

// A cluster's agents on one pool.
func slotCluster(t *testing.T, names ...string) (*pool, []*rig) {
	t.Helper()
	p := newPool()
	var rigs []*rig
	for _, name := range names {
		r := newRigOn(t, p, func(o *Options) { o.Instance = name })
		r.limiter.inForce.set.Store(parse(t, slotLimits))
		r.joined(redisbus.Registry{Instances: names})
		rigs = append(rigs, r.run())
	}
	return p, rigs
}

// wantSlot asks and checks the whole verdict, and how long it took.
func (r *rig) wantSlot(user string, want verdict, took time.Duration) {
	r.t.Helper()
	began := time.Now()
	if got := r.ask(user, "GET"); got != want || time.Since(began) != took {
		r.t.Errorf("verdict(%s) at %s = %+v after %v, want %+v after %v", user, began.Format("05.000"), got, time.Since(began), want, took)
	}
}

// A question has one deadline, whatever it waits for: the longest wait is shorter than
// HAProxy's, which lets the request pass at the end of its own.
func TestQuestionWaitsOnce(t *testing.T) {
	for _, tt := range []struct {
		name          string
		slots, tokens time.Duration // until the pools answer
		used, running int           // of 3 tokens and 2 slots, elsewhere
		want          verdict
		took          time.Duration
	}{
		{"both pools are asked at the same time", 8 * ms, 9 * ms, 0, 0, verdict{allowed: true}, 9 * ms},
		{"no slot, for which it waits as long as it may: the token goes back", 2 * ms, 4 * ms, 0, 2, verdict{limit: 2}, 20 * ms},
		{"no slot, and no token yet", 2 * ms, time.Minute, 0, 2, verdict{limit: 2}, 20 * ms},
		{"no token: nobody waits for the slot", 9 * ms, 4 * ms, 3, 0, verdict{rate: limits.Rate{Class: "GET", Max: 3}}, 4 * ms},
		{"neither answers, and the even part of both is one", time.Minute, time.Minute, 0, 0, verdict{allowed: true}, 20 * ms},
		{"tokens do not come, and slots do just in time", 9 * ms, time.Minute, 0, 0, verdict{allowed: true}, 20 * ms},
		{"slots do not come, and tokens do just in time", time.Minute, 9 * ms, 0, 0, verdict{allowed: true}, 20 * ms},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, rigs := slotCluster(t, "a", "b")
				a := rigs[0]
				p.occupy("both", "b", tt.running)
				p.setSlots(tt.slots, nil)
				p.setTokens(tt.tokens, nil)
				key := ratelimit.Key{Class: "GET", User: "both"}
				p.fill(key, tt.used)
				a.wantSlot("both", tt.want, tt.took)
				if n := a.waiting(); n != 0 {
					t.Errorf("%d requests still wait for a slot", n)
				}
				a.limiter.mu.Lock()
				waiting := len(a.limiter.forTokens)
				left, _, _ := a.limiter.allCores()[0].tokens.Left(time.Now(), "both", []limits.Rate{{Class: "GET", Max: 3}})
				a.limiter.mu.Unlock()
				if waiting != 0 {
					t.Errorf("%d requests still wait for a token", waiting)
				}
				if want := 3 - tt.used; !tt.want.allowed && left != want {
					t.Errorf("tokens left of a request that was refused = %d, want %d", left, want)
				}
				want := 0
				if tt.want.allowed {
					want = 1
				}
				if got := a.inProgress("both"); got != want {
					t.Errorf("in progress = %d, want %d", got, want)
				}
			})
		})
	}
}

// inLine asks for a request that has been told to wait.
func (r *rig) inLine(user string) verdict {
	return r.verdict(question{user: user, verb: "GET", inLine: true})
}

// A second question is held until there is room, in the order of arrival, and no
// longer than the tier says.
func TestLine(t *testing.T) {
	const wait2s = 2 * time.Second
	type end struct {
		at              time.Duration
		tracked, active uint64
	}
	for _, tt := range []struct {
		name     string
		user     string
		arrivals []time.Duration // after the first request, which runs
		ends     []end
		want     []string // verdicts, in order of their decision
	}{
		{"nobody ends", "first", []time.Duration{0}, nil, []string{"0 refused at 2s"}},
		{"when the first ends", "first", []time.Duration{0}, []end{{500 * ms, 1, 0}}, []string{"0 allowed at 500ms"}},
		{"at the very last", "first", []time.Duration{0}, []end{{wait2s - ms, 1, 0}}, []string{"0 allowed at 1.999s"}},
		{"too late", "first", []time.Duration{0}, []end{{wait2s + ms, 1, 0}}, []string{"0 refused at 2s"}},
		{"who comes first is served first", "first", []time.Duration{10 * ms, 20 * ms, 30 * ms},
			[]end{{100 * ms, 1, 1}, {200 * ms, 1, 0}, {210 * ms, 2, 1}, {900 * ms, 2, 0}, {910 * ms, 3, 1}},
			[]string{"0 allowed at 200ms", "1 allowed at 900ms", "2 refused at 2.03s"}},
		{"each has a time of their own", "first", []time.Duration{0, time.Second}, []end{{2500 * ms, 1, 0}},
			[]string{"0 refused at 2s", "1 allowed at 2.5s"}},
		{"at once when there is room by now", "first", []time.Duration{10 * ms}, []end{{5 * ms, 1, 0}}, []string{"0 allowed at 10ms"}},
		{"by then the tier lets nobody wait", "alice", []time.Duration{0, 0}, nil, []string{"0 allowed at 0s", "1 refused at 0s"}},
		{"by then they are not limited", "staff", []time.Duration{0}, nil, []string{"0 allowed at 0s"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newSlotRig(t, nil).run()
				r.wantSlot(tt.user, verdict{allowed: true, priority: r.limiter.inForce.set.Load().User(tt.user).Priority}, 0)
				if tt.user == "first" {
					r.progress("first", 1, 1)
				}
				began := time.Now()
				var (
					mu  sync.Mutex
					wg  sync.WaitGroup
					got []string
				)
				for i, at := range tt.arrivals {
					wg.Go(func() {
						time.Sleep(at + time.Duration(i)) // the nanosecond keeps the order
						v := r.inLine(tt.user)
						mu.Lock()
						defer mu.Unlock()
						word := "allowed"
						if !v.allowed {
							word = "refused"
							if want := (verdict{limit: r.limiter.inForce.set.Load().User(tt.user).Concurrent}); v != want {
								t.Errorf("the verdict of %d is %+v, want %+v", i, v, want)
							}
						}
						got = append(got, fmt.Sprintf("%d %s at %v", i, word, time.Since(began).Round(ms)))
					})
				}
				for _, e := range tt.ends {
					wg.Go(func() {
						time.Sleep(e.at)
						r.progress(tt.user, e.tracked, e.active)
					})
				}
				wg.Wait()
				if !slices.Equal(got, tt.want) {
					t.Errorf("verdicts = %q, want %q", got, tt.want)
				}
				if n := r.waiting(); n != 0 {
					t.Errorf("%d requests are still waiting", n)
				}
			})
		})
	}
}

// A place in the line is not all that a request needs.
func TestLineAndTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newSlotRig(t, nil).run()
		wait(500 * ms)
		for n := range uint64(3) { // all of the second's tokens
			r.wantSlot("patient", verdict{allowed: true}, 0)
			r.progress("patient", n+1, 0)
		}
		r.progress("patient", 4, 1) // one that nobody asked about
		go func() {
			time.Sleep(100 * ms)
			r.progress("patient", 4, 0)
		}()
		if got, want := r.inLine("patient"), (verdict{rate: limits.Rate{Class: "GET", Max: 3}}); got != want {
			t.Errorf("verdict in line, without a token = %+v, want %+v", got, want)
		}
		if got := r.inProgress("patient"); got != 0 {
			t.Errorf("in progress after that = %d, want 0", got)
		}
	})
}

// When the agent ends, who waits is refused at once; who is asked about a first
// time is not made to hurry.
func TestLineIsOverWhenTheAgentEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newSlotRig(t, nil).run()
		r.wantSlot("first", verdict{allowed: true, priority: -5}, 0)
		r.progress("first", 1, 1)
		go func() {
			time.Sleep(300 * ms)
			close(r.limiter.over)
		}()
		for _, took := range []time.Duration{300 * ms, 0} {
			began := time.Now()
			if got, want := r.inLine("first"), (verdict{limit: 1}); got != want || time.Since(began) != took {
				t.Errorf("verdict in line = %+v after %v, want %+v after %v", got, time.Since(began), want, took)
			}
		}
		r.joined(redisbus.Registry{Instances: []string{"a", "b"}})
		r.pool.set(3*ms, nil)
		wait(10 * ms) // the others' news are exchanged
		r.wantSlot("alice", verdict{allowed: true}, 3*ms)
		if got := testutil.ToFloat64(r.metrics.timeouts); got != 0 {
			t.Errorf("timeouts = %v, want 0: who waits in line has not waited for the cluster", got)
		}
	})
}

func TestLineIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newSlotRig(t, nil).run()
		r.ask("first", "GET")
		r.progress("first", 1, 1)
		var wg sync.WaitGroup
		for range 3 {
			r.ask("first", "GET")
			wg.Go(func() { r.inLine("first") })
		}
		wait(time.Second)
		r.limiter.showCores()
		for _, m := range []struct {
			name string
			want string
		}{
			{"sluice_line_requests", "sluice_line_requests 3"},
			{"sluice_concurrent_users", "sluice_concurrent_users 1"},
			{"sluice_requests_total", `sluice_requests_total{limit="concurrent",verdict="wait"} 3`},
		} {
			r.wantMetric(m.name, m.want)
		}
		wg.Wait()
		wait(flushEvery)
		r.limiter.showCores()
		r.wantMetric("sluice_line_requests", "sluice_line_requests 0")
		r.wantMetric("sluice_requests_total", `sluice_requests_total{limit="concurrent",verdict="refused"} 3`)
		r.wantMetric("sluice_line_wait_seconds", "sluice_line_wait_seconds_count 3", "sluice_line_wait_seconds_sum 6")
		r.wantMetric("sluice_verdict_wait_seconds", "sluice_verdict_wait_seconds_count 0")
	})
}

// wantMetric checks samples of a metric, as in the text that operators see.
func (r *rig) wantMetric(name string, samples ...string) {
	r.t.Helper()
	families, err := r.registry.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	var got []string
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			id := name
			if len(labels) > 0 {
				id += "{" + strings.Join(labels, ",") + "}"
			}
			if h := m.GetHistogram(); h != nil {
				got = append(got, fmt.Sprintf("%s_count %d", id, h.GetSampleCount()), fmt.Sprintf("%s_sum %v", id, h.GetSampleSum()))
				continue
			}
			got = append(got, fmt.Sprintf("%s %v", id, m.GetCounter().GetValue()+m.GetGauge().GetValue()))
		}
	}
	for _, want := range samples {
		if !slices.Contains(got, want) {
			r.t.Errorf("%s has %q, want %q among it", name, got, want)
		}
	}
}

// Requests of an excepted class need no slot while there is none, and HAProxy is told not to count them, nor to refuse the user by
// itself. Others have the limit, and there is no credit.
func TestSlotsWithExceptions(t *testing.T) {
	const file = "version: 1\ndefault_tier: free\nclasses: {STREAM: {path_prefix: /s}}\ntiers: {free: {concurrent: {limit: 2, except: [STREAM, OPTIONS]%s}}}\n"
	synctest.Test(t, func(t *testing.T) {
		r := newSlotRig(t, nil).run()
		r.force(parse(t, fmt.Sprintf(file, "")))
		ask := func(verb, op string) verdict {
			return r.verdict(question{user: "alice", verb: verb, op: op, credit: haproxyCredit{classes: "*"}})
		}
		for _, s := range []struct {
			verb, op string
			n        int
			want     verdict
		}{
			{"GET", "STREAM", 5, verdict{allowed: true, uncounted: true}},
			{"GET", "", 2, verdict{allowed: true}},
			{"GET", "", 3, verdict{limit: 2}},
			{"GET", "STREAM", 5, verdict{allowed: true, uncounted: true}},
			{"OPTIONS", "", 5, verdict{allowed: true, uncounted: true}},
			{"PUT", "LIST", 1, verdict{limit: 2}},
		} {
			for range s.n {
				if got := ask(s.verb, s.op); got != s.want {
					t.Errorf("%s %s: %+v, want %+v", s.verb, s.op, got, s.want)
				}
			}
		}
		r.teachBlock(concurrency.TableEntry{User: "alice", Until: time.Now().Unix() + 2, Limit: 2, Cap: 1})
		if got, want := r.taught["/block alice"], (peers.Values{peers.GPC0: 2, peers.GPC1: 1}); got != want {
			t.Errorf("HAProxy was taught the block %v, want %v: to refuse nobody by itself", got, want)
		}
		r.force(parse(t, fmt.Sprintf(file, ", mode: dry-run")))
		before := testutil.ToFloat64(r.metrics.dryRefused.WithLabelValues("concurrent"))
		ask("GET", "STREAM")
		if n := testutil.ToFloat64(r.metrics.dryRefused.WithLabelValues("concurrent")) - before; n != 0 {
			t.Errorf("a dry run would have refused %v of the excepted requests, want none", n)
		}
	})
}
