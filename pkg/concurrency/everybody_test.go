package concurrency_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/sluice-qos/sluice/pkg/concurrency"
	"github.com/sluice-qos/sluice/pkg/credit"
)

// Users who hear of what concerns everybody only when something concerns them fare as those do who
// hear of it at once.
func TestUsersCatchUpInTime(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit, creditable := 8, rapid.Bool().Draw(t, "creditable")
		lookup := func(string) (int, bool) { return limit, creditable }
		instances := rapid.IntRange(1, 4).Draw(t, "instances")
		var agents [2]*concurrency.Agent // the second one catches up at once
		for i := range agents {
			agents[i] = concurrency.NewAgent(concurrency.Config{Instance: "a", DrainFor: time.Second, Lookup: lookup})
			agents[i].Cluster(t0.Add(-time.Hour), instances, 0)
		}
		now, process := t0, int64(1)
		type state struct {
			Held, Bound, InProgress int
			Lendable                bool
		}
		both := func(do func(a *concurrency.Agent) any) any {
			got := do(agents[0])
			want := do(agents[1])
			agents[1].CatchUp()
			if diff := cmp.Diff(want, got); diff != "" {
				t.Fatalf("for who catches up at once, and who does not (-want +got):\n%s", diff)
			}
			return got
		}
		of := func(name string) {
			both(func(a *concurrency.Agent) any {
				return state{a.Held(name), a.Bound(name), a.InProgress(name), a.Lendable(now, name)}
			})
		}
		// So many are known that the others' turn comes late.
		for i := range 2 * concurrency.CatchUpAtOnce {
			both(func(a *concurrency.Agent) any {
				v, _ := a.Start(now, fmt.Sprint("of many ", i), limit, count{Process: process}, concurrency.Places{})
				return v
			})
		}
		users := []string{"u", "v", "w"}
		for range rapid.IntRange(1, 25).Draw(t, "steps") {
			name := rapid.SampledFrom(users).Draw(t, "user")
			switch rapid.SampledFrom([]string{"start", "start", "start", "end", "lend", "cluster", "limits", "lost", "replaced", "restarted", "drained", "synced", "pass"}).Draw(t, "what") {
			case "start":
				both(func(a *concurrency.Agent) any {
					v, w := a.Start(now, name, limit, count{Process: process}, concurrency.Places{})
					return []any{v, w != nil}
				})
			case "end":
				both(func(a *concurrency.Agent) any { a.Cancel(now, name, process); return nil })
			case "lend":
				both(func(a *concurrency.Agent) any { return a.Lend(now, name) })
			case "cluster":
				n := rapid.IntRange(1, 4).Draw(t, "instances")
				both(func(a *concurrency.Agent) any { a.Cluster(now, n, 0); return nil })
			case "limits":
				limit = rapid.SampledFrom([]int{4, 8, 40}).Draw(t, "limit")
				of := limit
				both(func(a *concurrency.Agent) any { a.Limits(now, func(string) int { return of }); return nil })
			case "lost":
				lost := rapid.Bool().Draw(t, "lost")
				both(func(a *concurrency.Agent) any { a.Lost(now, lost); return nil })
			case "replaced":
				process++
				both(func(a *concurrency.Agent) any { a.Replaced(now); return nil })
			case "restarted":
				process++
				both(func(a *concurrency.Agent) any { a.Restarted(now); return nil })
			case "drained":
				both(func(a *concurrency.Agent) any { a.Drained(now); return nil })
			case "synced":
				both(func(a *concurrency.Agent) any { a.Synced(now, now.Add(-time.Second)); return nil })
			case "pass":
				now = now.Add(time.Duration(rapid.IntRange(0, 400).Draw(t, "ms")) * time.Millisecond)
			}
			of(name)
		}
		for _, a := range agents {
			a.CatchUp()
		}
		for _, name := range users {
			of(name)
		}
		now = now.Add(time.Second) // what is put off for a moment is due in any case
		both(func(a *concurrency.Agent) any {
			a.Tick(now)
			withdrawn := a.TakeOutput().Withdraw
			slices.Sort(withdrawn)
			return slices.Compact(withdrawn)
		})
	})
}

// Users at rest who hear of several changes at a time have as much in progress, at most, as those who hear
// of each at once, and each is woken once.
func TestUsersAtRestCatchUpInTime(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := 40
		instances := rapid.IntRange(1, 4).Draw(t, "instances")
		var agents [2]*concurrency.Agent // the second one catches up at once
		now, process := t0, int64(1)
		replaced, tooMany := false, false
		var names []string
		for i := range 2 * concurrency.CatchUpAtOnce {
			names = append(names, fmt.Sprint("u", i))
		}
		for i := range agents {
			a := concurrency.NewAgent(concurrency.Config{Instance: "a", DrainFor: time.Minute, Lookup: func(string) (int, bool) { return limit, true }})
			a.Cluster(t0.Add(-time.Hour), instances, 0)
			for _, name := range names {
				a.Start(t0, name, limit, count{Process: process}, concurrency.Places{})
				a.Lend(t0, name)
				a.Cancel(t0, name, process)
			}
			for ms := 0; ms < 2000; ms += 100 {
				now = t0.Add(time.Duration(ms) * time.Millisecond)
				a.Tick(now)
				for _, ask := range a.Collect(now, true, nil) {
					a.Reply(now, ask, concurrency.Grant{Held: ask.Want, Free: limit})
				}
			}
			if got := a.Stats().Resting; got != len(names) {
				t.Fatalf("%d users are at rest, want %d", got, len(names))
			}
			agents[i] = a
		}
		lent := agents[0].Bound(names[0])
		both := func(do func(a *concurrency.Agent)) {
			for _, a := range agents {
				do(a)
			}
			agents[1].CatchUp()
			// A process that was replaced has no places to take back.
			tooMany = !replaced && (tooMany || credit.Portion(limit, instances) < lent)
		}
		for range rapid.IntRange(1, 6).Draw(t, "changes") {
			switch rapid.SampledFrom([]string{"cluster", "limits", "replaced", "drained", "start"}).Draw(t, "what") {
			case "cluster":
				instances = rapid.IntRange(1, 8).Draw(t, "instances then")
				both(func(a *concurrency.Agent) { a.Cluster(now, instances, 0) })
			case "limits":
				limit = rapid.SampledFrom([]int{4, 16, 40}).Draw(t, "limit")
				of := limit
				both(func(a *concurrency.Agent) { a.Limits(now, func(string) int { return of }) })
			case "replaced":
				replaced = true
				both(func(a *concurrency.Agent) { a.Replaced(now) })
			case "drained":
				both(func(a *concurrency.Agent) { a.Drained(now) })
				if rapid.Bool().Draw(t, "twice") {
					both(func(a *concurrency.Agent) { a.Drained(now) })
				}
			case "start":
				name := rapid.SampledFrom(names).Draw(t, "user")
				both(func(a *concurrency.Agent) {
					if v, w := a.Start(now, name, limit, count{}, concurrency.Places{}); w != nil {
						a.Abandon(now, w)
					} else if v.Allowed {
						a.Cancel(now, name, 0)
					}
				})
			}
		}
		for _, a := range agents {
			a.CatchUp()
			inProgress := 0
			for _, name := range names {
				inProgress += a.InProgress(name)
			}
			if got := a.Stats().InProgress; got != inProgress {
				t.Fatalf("in progress of all = %d, want %d", got, inProgress)
			}
			if known, records := a.Stats().Users+a.Stats().Resting, a.Records(); known != records {
				t.Fatalf("%d users are known, and %d records hear of what concerns everybody", known, records)
			}
		}
		for i, a := range agents {
			withdrawn := a.TakeOutput().Withdraw
			slices.Sort(withdrawn)
			if n := len(slices.Compact(withdrawn)); tooMany && n < len(names) {
				t.Fatalf("agent %d takes back the places of %d users, want of %d, who have more than they may", i, n, len(names))
			}
		}
		for _, name := range names {
			if late, at := agents[0].Bound(name), agents[1].Bound(name); late != at {
				t.Fatalf("%s has %d in progress at most for who hears late, and %d for who hears at once", name, late, at)
			}
		}
	})
}
