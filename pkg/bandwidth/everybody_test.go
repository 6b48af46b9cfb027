package bandwidth_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/sluice-qos/sluice/pkg/bandwidth"
)

// Users who hear of what concerns everybody only when something concerns them have the shares that
// they would have if they had heard of it at once.
func TestUsersCatchUpInTime(t *testing.T) {
	const others = 2500 // so many that the turn of those who come behind them comes late
	rapid.Check(t, func(t *rapid.T) {
		now := t0
		limit := bandwidth.Limit{Bytes: [2]int64{1 << 20, 1 << 20}}
		var crowded, empty *bandwidth.Agent
		for _, a := range []**bandwidth.Agent{&crowded, &empty} {
			*a = bandwidth.NewAgent(bandwidth.Config{Instance: "a"})
			(*a).Cluster(now, 1)
		}
		for i := range others {
			crowded.Start(now, fmt.Sprint("other ", i), limit)
		}
		var moved int64
		for range rapid.IntRange(1, 25).Draw(t, "steps") {
			name := string(rune('a' + rapid.IntRange(0, 2).Draw(t, "user")))
			var do func(a *bandwidth.Agent) any
			switch rapid.SampledFrom([]string{"start", "progress", "share", "cluster", "limits", "restarted", "pass"}).Draw(t, "what") {
			case "start":
				do = func(a *bandwidth.Agent) any { return a.Start(now, name, limit) }
			case "progress":
				active := int64(rapid.IntRange(0, 2).Draw(t, "active"))
				moved += int64(rapid.IntRange(0, 1<<20).Draw(t, "bytes"))
				do = func(a *bandwidth.Agent) any {
					a.Progress(now, name, limit, bandwidth.Asked, bandwidth.Count{Active: active, Moved: [2]int64{moved, 0}})
					return a.Active(name)
				}
			case "share":
				s := bandwidth.Sharing{User: name, Shares: []bandwidth.Share{{Instance: "a", Bytes: int64(rapid.IntRange(1, 1<<20).Draw(t, "share"))}}}
				do = func(a *bandwidth.Agent) any { a.Share(now, s); return a.Start(now, name, limit) }
			case "cluster":
				n := rapid.IntRange(1, 3).Draw(t, "instances")
				do = func(a *bandwidth.Agent) any { a.Cluster(now, n); return nil }
			case "limits":
				limit.Bytes[bandwidth.Down] = int64(rapid.IntRange(1, 4).Draw(t, "limit")) << 19
				of := limit
				do = func(a *bandwidth.Agent) any {
					a.Limits(now, func(string) bandwidth.Limit { return of })
					return nil
				}
			case "restarted":
				do = func(a *bandwidth.Agent) any { a.Restarted(now); return nil }
			case "pass":
				now = now.Add(time.Duration(rapid.IntRange(0, 700).Draw(t, "ms")) * time.Millisecond)
				continue
			}
			if diff := cmp.Diff(do(empty), do(crowded)); diff != "" {
				t.Fatalf("among few, and among many (-few +many):\n%s", diff)
			}
		}
		for _, name := range []string{"a", "b", "c"} {
			if diff := cmp.Diff(empty.Start(now, name, limit), crowded.Start(now, name, limit)); diff != "" {
				t.Fatalf("shares of %s in the end, among few, and among many (-few +many):\n%s", name, diff)
			}
		}
	})
}
