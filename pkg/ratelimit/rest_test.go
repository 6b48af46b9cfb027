package ratelimit_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

// An agent that is left alone while it rests asks and reports the same at the same times as
// one that is called every 5 ms.
func TestRestMissesNothing(t *testing.T) {
	rate := []limits.Rate{{Class: "GET", Max: 20, Window: limits.Second}}
	rapid.Check(t, func(t *rapid.T) {
		instances := rapid.IntRange(1, 3).Draw(t, "instances")
		often, seldom := shared(instances), shared(instances)
		pool := map[poolKey]int{}
		now, until := t0, t0
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			for range rapid.IntRange(0, 30).Draw(t, "starts") {
				name := string(rune('a' + rapid.IntRange(0, 2).Draw(t, "user")))
				often.Start(now, name, rate, ratelimit.NoCredit)
				seldom.Start(now, name, rate, ratelimit.NoCredit)
			}
			for range rapid.IntRange(1, 300).Draw(t, "ticks") {
				often.TakeOutput()
				if out := seldom.TakeOutput(); out.Sooner || out.Urgent {
					until = now
				}
				now = now.Add(5 * time.Millisecond)
				often.Tick(now)
				want := often.Collect(now, true, nil)
				var got []ratelimit.Ask
				if !now.Before(until) {
					seldom.Tick(now)
					got = seldom.Collect(now, true, nil)
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Fatalf("asks differ, it rests until %v: %s", until.Sub(now), diff)
				}
				for _, ask := range want {
					grant := pools{totals: pool}.take(now, ask)
					often.Reply(now, ask, grant)
					seldom.Reply(now, ask, grant)
				}
				if !now.Before(until) {
					until = now.Add(seldom.IdleFor(now, 250*time.Millisecond))
				}
			}
		}
	})
}

// An agent without users rests for as long as it may.
func TestRestOfNobody(t *testing.T) {
	a := shared(2)
	a.Tick(t0)
	if got := a.IdleFor(t0, time.Second); got != time.Second {
		t.Errorf("IdleFor() of an agent without users = %v, want 1 s", got)
	}
	if a.TakeOutput().Sooner {
		t.Error("nothing has happened, and it is due sooner")
	}
	a.Start(t0, "alice", []limits.Rate{{Class: "GET", Max: 20, Window: limits.Second}}, ratelimit.NoCredit)
	if !a.TakeOutput().Sooner {
		t.Error("a user has started, and nothing is due sooner")
	}
	if a.TakeOutput().Sooner {
		t.Error("it is said twice")
	}
}
