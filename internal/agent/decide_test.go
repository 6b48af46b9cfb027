package agent

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/sluice-qos/sluice/internal/daemon"
	"github.com/sluice-qos/sluice/internal/redisbus"
	"github.com/sluice-qos/sluice/pkg/concurrency"
)

// Whatever the arrivals at three agents, no limit is passed, and what is taken in vain is not
// lost: all that the limits admit is admitted in the end.
func TestNothingIsTakenInVain(t *testing.T) {
	const most = 7
	rapid.Check(t, func(rt *rapid.T) {
		type event struct {
			after, runs time.Duration
			agent       int
		}
		var events []event
		for range rapid.IntRange(1, 60).Draw(rt, "events") {
			events = append(events, event{
				after: time.Duration(rapid.IntRange(0, 30).Draw(rt, "after")) * ms,
				runs:  time.Duration(rapid.IntRange(0, 60).Draw(rt, "runs")) * ms,
				agent: rapid.IntRange(0, 2).Draw(rt, "agent"),
			})
		}
		slots := time.Duration(rapid.IntRange(1, 8).Draw(rt, "slots")) * ms
		tokens := time.Duration(rapid.IntRange(1, 8).Draw(rt, "tokens")) * ms
		longest := time.Duration(rapid.SampledFrom([]int{60, 200}).Draw(rt, "wait")) * ms
		var problems []string
		synctest.Test(t, func(t *testing.T) {
			p, names := newPool(), []string{"a", "b", "c"}
			var rigs []*rig
			for _, name := range names {
				r := newRigOn(t, p, func(o *Options) { o.Instance = name })
				r.limiter.inForce.set.Store(parse(t, "version: 1\ndefault_tier: free\ntiers: {free: {requests: {\"*\": {hour: 7}}, concurrent: 2}}\n"))
				r.joined(redisbus.Registry{Instances: names})
				rigs = append(rigs, r.run())
			}
			p.setSlots(slots, nil)
			p.setTokens(tokens, nil)
			var (
				mu               sync.Mutex
				wg               sync.WaitGroup
				admitted         int
				tracked, running [3]uint64 // by agent
			)
			tell := func(e event) {
				rigs[e.agent].progress("random", tracked[e.agent], running[e.agent])
			}
			start := func(e event) {
				if !rigs[e.agent].ask("random", "GET").allowed {
					return
				}
				mu.Lock()
				admitted++
				tracked[e.agent]++
				running[e.agent]++
				tell(e)
				mu.Unlock()
				time.Sleep(e.runs)
				mu.Lock()
				defer mu.Unlock()
				running[e.agent]--
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
			for range most + 1 {
				start(event{})
			}
			if admitted != most {
				problems = append(problems, fmt.Sprintf("%d requests are admitted, want %d", admitted, most))
			}
			for _, r := range rigs {
				r.stop()
				if n := r.inProgress("random"); n != 0 {
					problems = append(problems, fmt.Sprintf("%d requests are in progress in the end", n))
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

// What a question needs stays on the stack.
func TestDecideDoesNotAllocate(t *testing.T) {
	l := newLimiter(&daemon.Clock{}, newMetrics(nil), concurrency.Config{}, 1, nil)
	l.inForce.set.Store(parse(t, "version: 1\ndefault_tier: plain\ntiers: {plain: {requests: {GET: 1000000}, concurrent: 1000000}}\n"))
	q := question{user: "alice", verb: "GET"}
	if got := testing.AllocsPerRun(1000, func() {
		if v := l.decideNow(q); !v.allowed {
			t.Fatalf("verdict = %+v, want allowed", v)
		}
	}); got != 0 {
		t.Errorf("%v allocations, want none", got)
	}
}
