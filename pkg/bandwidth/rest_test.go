package bandwidth_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/sluice-qos/sluice/pkg/bandwidth"
)

// An agent that is left alone while it rests reports the same at the same times as one that is
// called every 5 ms.
func TestRestMissesNothing(t *testing.T) {
	limit := bandwidth.Limit{Bytes: [2]int64{1 << 20, 1 << 20}}
	// Of users who are due at the same time any may be first: the agenda was filled at other times.
	inAnyOrder := cmp.Options{
		cmpopts.SortSlices(func(a, b bandwidth.TableEntry) int { return strings.Compare(a.User, b.User) }),
		cmpopts.SortSlices(func(a, b bandwidth.Report) int { return strings.Compare(a.User, b.User) }),
	}
	rapid.Check(t, func(t *rapid.T) {
		instances := rapid.IntRange(1, 2).Draw(t, "instances")
		began := func() *bandwidth.Agent {
			a := bandwidth.NewAgent(bandwidth.Config{Instance: "a"})
			a.Cluster(t0, instances)
			return a
		}
		often, seldom := began(), began()
		now := t0
		until := now
		var moved int64
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			name := string(rune('a' + rapid.IntRange(0, 2).Draw(t, "user")))
			moved += int64(rapid.IntRange(0, 1<<20).Draw(t, "bytes"))
			active := int64(rapid.IntRange(0, 2).Draw(t, "active"))
			for _, a := range []*bandwidth.Agent{often, seldom} {
				a.Start(now, name, limit)
				a.Progress(now, name, limit, bandwidth.Asked, bandwidth.Count{Active: active, Moved: [2]int64{moved, 0}})
			}
			for range rapid.IntRange(1, 600).Draw(t, "ticks") {
				want := often.TakeOutput().TableEntries
				out := seldom.TakeOutput()
				if diff := cmp.Diff(want, out.TableEntries, inAnyOrder); diff != "" {
					t.Fatalf("entries differ: %s", diff)
				}
				if out.Sooner || out.Urgent {
					until = now
				}
				now = now.Add(5 * time.Millisecond)
				often.Tick(now)
				reports := often.Collect(now, nil)
				var got []bandwidth.Report
				if !now.Before(until) {
					seldom.Tick(now)
					got = seldom.Collect(now, nil)
					until = now.Add(seldom.IdleFor(now, 250*time.Millisecond))
				}
				if diff := cmp.Diff(reports, got, inAnyOrder); diff != "" {
					t.Fatalf("reports differ, it rests until %v: %s", until.Sub(now), diff)
				}
				if often.KnownUsers() != seldom.KnownUsers() {
					t.Fatalf("it knows %d users, want %d", seldom.KnownUsers(), often.KnownUsers())
				}
			}
		}
	})
}
