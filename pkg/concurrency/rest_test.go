package concurrency_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/sluice-qos/sluice/pkg/concurrency"
)

// An agent that is left alone while it rests asks and reports the same at the same times as
// one that is called every 5 ms.
func TestRestMissesNothing(t *testing.T) {
	inAnyOrder := cmp.Options{ // many users change at once when HAProxy is replaced
		cmpopts.IgnoreFields(concurrency.Ask{}, "Seq"),
		cmpopts.SortSlices(func(a, b concurrency.Ask) bool { return a.User < b.User }),
	}
	rapid.Check(t, func(t *rapid.T) {
		instances := rapid.IntRange(1, 3).Draw(t, "instances")
		began := func() *concurrency.Agent {
			a := concurrency.NewAgent(concurrency.Config{Instance: "a", DrainFor: time.Second})
			a.Cluster(t0.Add(-time.Hour), instances, 0)
			return a
		}
		often, seldom := began(), began()
		now, until := t0, t0
		var tracked, active [3]int64
		for range rapid.IntRange(1, 20).Draw(t, "steps") {
			user := rapid.IntRange(0, 2).Draw(t, "user")
			name := string(rune('a' + user))
			switch rapid.SampledFrom([]string{"start", "end", "replaced"}).Draw(t, "what") {
			case "start":
				v, _ := often.Start(now, name, 4, count{}, concurrency.Places{})
				seldom.Start(now, name, 4, count{}, concurrency.Places{})
				if v.Allowed {
					tracked[user], active[user] = tracked[user]+1, active[user]+1
				}
			case "end":
				active[user] = max(0, active[user]-1)
				for _, a := range []*concurrency.Agent{often, seldom} {
					a.Progress(now, name, 4, count{Tracked: tracked[user], Active: active[user]})
				}
			case "replaced":
				often.Replaced(now)
				seldom.Replaced(now)
				tracked, active = [3]int64{}, [3]int64{}
			}
			for range rapid.IntRange(1, 300).Draw(t, "ticks") {
				often.TakeOutput()
				if out := seldom.TakeOutput(); out.Sooner || out.Urgent {
					until = now
				}
				now = now.Add(5 * time.Millisecond)
				often.Tick(now)
				want := often.Collect(now, true, nil)
				var got []concurrency.Ask
				if !now.Before(until) {
					seldom.Tick(now)
					got = seldom.Collect(now, true, nil)
				}
				if diff := cmp.Diff(want, got, inAnyOrder); diff != "" {
					t.Fatalf("asks differ, it rests until %v: %s", until.Sub(now), diff)
				}
				if often.Stats() != seldom.Stats() || often.Draining() != seldom.Draining() {
					t.Fatalf("it rests until %v, and knows %+v, want %+v", until.Sub(now), seldom.Stats(), often.Stats())
				}
				for _, ask := range want {
					often.Reply(now, ask, concurrency.Grant{Held: ask.Want})
				}
				for _, ask := range got {
					seldom.Reply(now, ask, concurrency.Grant{Held: ask.Want})
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
	a := concurrency.NewAgent(concurrency.Config{Instance: "a"})
	a.Tick(t0)
	if got := a.IdleFor(t0, time.Second); got != time.Second {
		t.Errorf("IdleFor() of an agent without users = %v, want 1 s", got)
	}
	if a.TakeOutput().Sooner {
		t.Error("nothing has happened, and it is due sooner")
	}
	a.Start(t0, "alice", 4, count{}, concurrency.Places{})
	if !a.TakeOutput().Sooner {
		t.Error("a request has started, and nothing is due sooner")
	}
	if a.TakeOutput().Sooner {
		t.Error("it is said twice")
	}
}
