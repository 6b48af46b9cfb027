package ratelimit_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-qos/sluice/pkg/cause"
	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

// A limit of 0 refuses with nothing counted and no pool asked, whatever the second, and HAProxy is to refuse as well. A limit in a dry
// run is not HAProxy's to know.
func TestLimitOfZero(t *testing.T) {
	rate := func(class string, w limits.Window, n int) limits.Rate {
		return limits.Rate{Class: class, Window: w, Max: n}
	}
	dry := rate("GET", limits.Second, 0)
	dry.Mode = limits.DryRun
	for _, tt := range []struct {
		name   string
		rates  []limits.Rate
		denied int // which refuses
	}{
		{"of a second", []limits.Rate{rate("GET", limits.Second, 0)}, 0},
		{"of a day", []limits.Rate{rate("*", limits.Day, 0)}, 0},
		{"beside another", []limits.Rate{rate("GET", limits.Second, 5), rate("*", limits.Month, 0)}, 1},
		{"a dry run", []limits.Rate{dry}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := ratelimit.NewAgent(ratelimit.Config{})
			a.Cluster(t0, 2, 0)
			by := tt.rates[tt.denied]
			for _, at := range []time.Time{t0, t0.Add(time.Second), t0.Add(24 * time.Hour)} {
				a.Tick(at)
				v, w := a.Start(at, "alice", tt.rates, ratelimit.NoCredit)
				if want := (ratelimit.Verdict{Limit: by, Cause: cause.LimitZero, Second: at.Unix()}); w != nil || v != want {
					t.Errorf("Start = %+v, waits %v, want %+v", v, w != nil, want)
				}
				var want []ratelimit.TableEntry
				if by.Mode == limits.Enforce {
					want = []ratelimit.TableEntry{{Key: ratelimit.Key{Class: by.Class, User: "alice", Window: by.Window}, End: at.Unix() + limits.Month.Seconds()}}
				}
				got := a.TakeOutput().TableEntries
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("HAProxy's entries (-want +got):\n%s", diff)
				}
			}
			if asks := a.Collect(t0.Add(24*time.Hour), true, nil); len(asks) != 0 || a.KnownUsers() != 0 {
				t.Errorf("%d asks and %d users known, want none", len(asks), a.KnownUsers())
			}
			// The limit is raised.
			tt.rates[tt.denied].Max = 1
			if v, w := a.Start(t0.Add(24*time.Hour), "alice", tt.rates, ratelimit.NoCredit); !v.Allowed && w == nil {
				t.Errorf("refused by a limit of 1: %+v", v)
			}
		})
	}
}
