package full

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/bench/closed"
	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/internal/testkit/cluster"
	"github.com/sluice-qos/sluice/test/scene"
)

// Requests that HAProxy admitted by credit go on when limits change, another agent takes over, HAProxy is reloaded, or a second
// instance joins: requests that follow, at whichever instance, find the rest of the limit.
func TestPlacesInUse(t *testing.T) {
	t.Parallel()
	const limit, used, user = 20, 6, "held"
	// The rate is never reached. Without it there is no credit.
	limits := fmt.Sprintf("version: 1\ndefault_tier: free\ntiers: {free: {requests: {GET: 100000}, concurrent: %d}}\n", limit)
	for _, tt := range []struct {
		name      string
		instances int
		counts    bool // all places count until the requests have ended, because their end is not seen
		do        func(*testing.T, *scene.Scene)
	}{
		{"limits change", 1, false, func(t *testing.T, s *scene.Scene) {
			s.SetLimits(t, limits+"exempt: {users: [wilma]}\n")
			testkit.Eventually(t, "the agent has the new limits", func() error {
				if n := strings.Count(s.Instances[0].Agent.Output(), "limits in force"); n != 2 {
					return fmt.Errorf("it has put limits into force %d times", n)
				}
				return nil
			})
		}},
		{"another agent", 1, false, func(t *testing.T, s *scene.Scene) {
			s.Instances[0].Agent.Stop()
			s.Instances[0].StartAgent(t)
			s.Instances[0].AwaitReady(t)
		}},
		{"a reload", 1, true, func(t *testing.T, s *scene.Scene) {
			_ = s.Instances[0].HAProxy.Signal(syscall.SIGUSR2)
			scene.AwaitMetric(t, s.Instances[0].Admin, "sluice_haproxy_draining", scene.Is(1))
		}},
		{"another instance", 2, false, func(t *testing.T, s *scene.Scene) {
			s.Instances[1].StartAgent(t)
			s.Instances[1].AwaitReady(t)
			s.Instances[0] = s.Instances[1] // where the requests that follow go
			testkit.Eventually(t, "the pool knows", func() error {
				if slots := s.SlotsInRedis(t); !strings.Contains(slots, user) {
					return fmt.Errorf("it has %q", slots)
				}
				return nil
			})
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := scene.Start(t, cluster.Options{Instances: tt.instances, Limits: limits, Master: true})
			first, all := s.Instances[0], s.Instances
			if tt.instances > 1 {
				all[1].Agent.Stop()
				scene.AwaitMetric(t, first.Admin, "sluice_instances", scene.Is(1))
				scene.AwaitMetric(t, first.Admin, "sluice_instances_away", scene.Is(0))
				time.Sleep(time.Second) // it gives credit of the whole limit
			}
			s.Instances = all[:1]
			scene.AwaitMetric(t, first.Admin, "sluice_credit_grants_total", func(n float64) bool { scene.Get(t, first.Address, user); return n > 0 })
			time.Sleep(1100 * time.Millisecond) // credit begins with the next second
			s.Hold(t, user, used)
			s.Instances = all
			most := int64(limit - used)
			if tt.counts {
				most = int64(limit - placesOf(t, first, user))
			}
			tt.do(t, s)
			load := s.Closed(user, 40, 4*time.Second)
			load.Addresses = load.Addresses[:1]
			scene.CheckRuns(t, closed.Run(t.Context(), load))
			if got := s.Origin.UserCounts(user).MaxActive; got != most {
				t.Errorf("beside %d requests that go on at most %d ran at once, want %d", used, got, most)
			}
		})
	}
}

// placesOf is how many requests of a user a HAProxy may have in progress by credit.
func placesOf(t *testing.T, in *cluster.Instance, user string) (n int) {
	t.Helper()
	entry, err := in.Tell("show table sluice_credit key " + user)
	_, text, found := strings.Cut(entry, " gpt1=")
	if _, notNumber := fmt.Sscan(text, &n); err != nil || !found || notNumber != nil {
		t.Fatalf("%s: entry %q, %v", in.Name, entry, errors.Join(err, notNumber))
	}
	return n
}
