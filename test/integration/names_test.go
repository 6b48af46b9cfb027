package integration

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/bench/closed"
	"github.com/sluice-qos/sluice/bench/load"
	"github.com/sluice-qos/sluice/bench/transfer"
	"github.com/sluice-qos/sluice/internal/proctest"
	"github.com/sluice-qos/sluice/test/cluster"
)

// With a quota of so many unknown users, a new name in each request gets what the
// quota's users may have, and one limit more. Users whom the file names are not affected.
func TestRandomNamesShareOneLimit(t *testing.T) {
	t.Parallel()
	const quota, limit, alices = 3, 10, 40
	for _, instances := range []int{1, 2} {
		t.Run(fmt.Sprint(instances, " instances"), func(t *testing.T) {
			t.Parallel()
			c := cluster.Start(t, cluster.Options{Instances: instances, SPOAArgs: []string{"--unknown-users", fmt.Sprint(quota)}, Limits: fmt.Sprintf(
				"version: 1\ndefault_tier: free\ntiers: {free: {requests: {GET: %d}}, pro: {requests: {GET: %d}}}\nusers: {alice: pro}\n", limit, alices)})
			targets, err := load.Spread("even", c.Addresses()...)
			if err != nil {
				t.Fatal(err)
			}
			alice := load.Users("GET", "/", "alice")
			r := offerSpec(t, c, load.Spec{
				Targets: targets, Rate: 1000, Duration: 3 * time.Second, Align: true, Timeout: proctest.Patience,
				Requests: func(i int) load.Request {
					if i%10 == 0 {
						return alice(i)
					}
					return load.Request{User: "random", Headers: fmt.Appendf(nil, "X-User: random-%d\r\n", i)}
				},
			})
			checkAnswered(t, r)
			checkLimit(t, r.User("alice"), alices, 0.97)
			// Each agent has a quota of its own, and all have one pool of the others.
			if excess := r.User("random").Attribute((instances*quota+1)*limit, clockSlack).Excess((instances*quota + 1) * limit); excess > 0 {
				t.Errorf("%d requests of random names beyond %d limits", excess, instances*quota+1)
			}
			for _, in := range c.Instances {
				if got := in.Metric(t, "sluice_unknown_users_counted"); got != quota {
					t.Errorf("%s: sluice_unknown_users_counted = %v, want %d", in.Name, got, quota)
				}
				table, err := in.Tell("show table sluice/active")
				if err != nil {
					t.Fatal(err)
				}
				if n := strings.Count(table, "key="); n > quota+2 || !strings.Contains(table, "key=~others ") {
					t.Errorf("%s: HAProxy tracks %d users, want %d of the quota, alice and ~others at most:\n%s", in.Name, n, quota, table)
				}
				if log := in.Agent.Output(); !strings.Contains(log, "those beyond it share the limits of one") {
					t.Errorf("the log of %s does not tell of the quota", in.Name)
				}
			}
		})
	}
}

// As many requests of a name of its own each are in progress as one user may have.
func TestRandomNamesInProgress(t *testing.T) {
	t.Parallel()
	const limit = 4
	o, origin := counting(t, limit+2)
	c := cluster.Start(t, cluster.Options{Origin: origin, SPOAArgs: []string{"--unknown-users", "1"}, Limits: progressLimits(limit)})
	// Longer than the agent believes in a request that HAProxy does not count.
	long := func(*rand.Rand) time.Duration { return 1500 * time.Millisecond }
	done := make(chan closed.Report)
	const clients = 20
	for i := range clients {
		go func() {
			done <- closed.Run(t.Context(), closed.Spec{
				Addresses: c.Addresses(), User: fmt.Sprint("random-", i), Clients: 1, Work: long, Duration: 4 * time.Second, Seed: uint64(i)})
		}()
	}
	refused := 0
	for range clients {
		r := <-done
		checkStatuses(t, r)
		refused += r.Statuses[429]
	}
	if most := o.Counts().Most; most != limit+1 && !stoodStill(t, c) { // one client has the place of the quota
		t.Errorf("at most %d requests ran at once, want %d", most, limit+1)
	}
	if refused == 0 {
		t.Error("nothing was refused")
	}
	checkNothingInProgress(t, c)
}

// All that names of too many move at once is what one user may move.
func TestBandwidthOfRandomNames(t *testing.T) {
	t.Parallel()
	const limit, d = 3, 3 * time.Second
	c, origin := moving(t, cluster.Options{SPOAArgs: []string{"--unknown-users", "1"}, Limits: bandwidthLimits(limit)})
	var all []transfer.Stream
	for i := range 6 {
		all = append(all, streams(c, fmt.Sprint("random-", i), 1, false)...)
	}
	r := transfer.Run(t.Context(), origin, all, d)
	checkRate(t, r, "one user of the quota, and five others", time.Second, d, 2*limit*mib)
}
