package integration

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/bench/load"
	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/internal/testkit/cluster"
	"github.com/sluice-qos/sluice/test/scene"
)

// What polygen counts of each user and tier is what the origin counts: of users below their limit, whom HAProxy admits by
// itself, and of users beyond it.
func TestEventsAreWhatTheOriginCounts(t *testing.T) {
	t.Parallel()
	s := scene.Start(t, cluster.Options{Instances: 2, Limits: `
version: 1
default_tier: free
tiers: {free: {requests: {GET: 50}, concurrent: 50}, other: {requests: {GET: 100}}}
users: {carol: other}
`})
	users := []string{"alice", "bob", "alice", "carol", "alice", "alice", "alice", "alice"} // alice is beyond her limit
	fast, slow := scene.GETs(users...), load.Users("GET", "/sleep/700", users...)
	scene.CheckAnswered(t, s.Offer(t, "even", 200, 3*time.Second, func(i int) load.Request {
		if i%16 == 3 {
			return slow(i)
		}
		return fast(i)
	}))
	served := func(users ...string) (n int64) {
		for _, user := range users {
			n += s.Origin.UserCounts(user).Served
		}
		return n
	}
	testkit.Eventually(t, "events are what the origin counts", func() error {
		for _, user := range []string{"alice", "bob", "carol"} {
			text, err := cluster.Get(s.Polygens[0].Admin, "/api/v1/events/"+user)
			if err != nil {
				return err
			}
			var events api.Events
			if err := json.Unmarshal([]byte(text), &events); err != nil {
				return err
			}
			var started, ended int64
			for _, of := range events.Started {
				for _, n := range of.Requests {
					started += n
				}
			}
			for _, n := range events.Ended {
				ended += n
			}
			if want := served(user); want == 0 || started != want || ended != want {
				return fmt.Errorf("%s: started %d, ended %d; the origin served %d", user, started, ended, want)
			}
		}
		for tier, want := range map[string]int64{"free": served("alice", "bob"), "other": served("carol")} {
			for _, metric := range []string{`started_total{class="GET",tier="` + tier + `"}`, `ended_total{tier="` + tier + `"}`} {
				if got, err := cluster.ReadMetric(s.Polygens[0].Admin, "sluice_cluster_requests_"+metric); err != nil || int64(got) != want {
					return fmt.Errorf("%s is %v, %v; the origin served %d", metric, got, err, want)
				}
			}
		}
		return nil
	})
}
