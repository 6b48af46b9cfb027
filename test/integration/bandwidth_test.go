package integration

import (
	"fmt"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/bench/transfer"
	"github.com/sluice-qos/sluice/internal/testkit/cluster"
	"github.com/sluice-qos/sluice/test/scene"
)

// A user's transfers move at the limit together, down and up, over several instances, whichever streams join and leave; a new
// limit applies to transfers under way, and a user without a limit has none.
func TestBandwidth(t *testing.T) {
	t.Parallel()
	limits := func(dave int) string {
		return fmt.Sprintf(`
version: 1
default_tier: one
tiers: {one: {bandwidth: {down: 1MiB, up: 1MiB}}, dave: {bandwidth: {down: %dMiB}}, none: {}}
users: {dave: dave, other: none}
`, dave)
	}
	for _, instances := range []int{1, 2} {
		t.Run(fmt.Sprint(instances, " instances"), func(t *testing.T) {
			t.Parallel()
			s := scene.Start(t, cluster.Options{Instances: instances, Limits: limits(1)})
			const joins, leaves, ends = 3 * time.Second, 6 * time.Second, 9 * time.Second
			alice, bob, dave := s.Streams("alice", 6, false), s.Streams("bob", 6, true), s.Streams("dave", 2, false)
			first, last := s.Addresses()[0], s.Addresses()[instances-1]
			carol := []transfer.Stream{{Address: first, User: "carol"}, {Address: first, User: "carol"}, {Address: first, User: "carol"},
				{Address: last, User: "carol", Begin: joins, End: leaves}}
			streams, at := scene.Join(alice, bob, carol, dave)
			s.Settle()
			time.AfterFunc(joins, func() { s.SetLimits(t, limits(3)) })
			r := transfer.Run(t.Context(), s.Bytes, streams, ends)

			scene.CheckRate(t, r.Of(at[0], at[1]), "alice, down", time.Second, ends, 1)
			scene.CheckRate(t, r.Of(at[1], at[2]), "bob, up", time.Second, ends, 1)
			for user, of := range map[string]transfer.Report{"alice": r.Of(at[0], at[1]), "bob": r.Of(at[1], at[2])} {
				if rate := of.Rate(0, time.Second) / scene.MiB; rate > 1.25 {
					t.Errorf("%s moved %.2f MiB in the first second, want 1.25 at most", user, rate)
				}
				if jain := of.Jain(time.Second, ends); jain < 0.7 { // without the streams of one of two instances it is 0.5
					t.Errorf("Jain's index over the streams of %s = %.3f, want 0.7 at least", user, jain)
				}
			}
			c := r.Of(at[2], at[3])
			scene.CheckRate(t, c, "carol, alone on one instance", time.Second, joins, 1)
			scene.CheckRate(t, c, "carol, joined on another one", joins+time.Second, leaves, 1)
			scene.CheckRate(t, c, "carol, alone again", leaves+time.Second, ends, 1)
			// A quarter of the streams; half of the limit would be a part by instances.
			if part := c.Of(3, 4).Rate(joins+time.Second, leaves) / scene.MiB; part < 0.125 || part > 0.4 {
				t.Errorf("the stream that joined moved %.3f of the limit, want 0.25", part)
			}
			scene.CheckRate(t, r.Of(at[3], at[4]), "dave, before the new limit", time.Second, joins, 1)
			scene.CheckRate(t, r.Of(at[3], at[4]), "dave, after it", joins+3*time.Second, ends, 3)

			free := transfer.Run(t.Context(), s.Bytes, s.Streams("other", 1, false), time.Second)
			if rate := free.Rate(0, time.Second) / scene.MiB; rate < 4 {
				t.Errorf("a user without a limit moved %.1f MiB in a second, want far more than others", rate)
			}
		})
	}
}
