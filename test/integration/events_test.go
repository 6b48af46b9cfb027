package integration

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/bench/load"
	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/internal/proctest"
	"github.com/sluice-qos/sluice/test/cluster"
)

// What Redis' buckets of seconds hold of a user, and polygen's counters of all, is what the
// origin has counted: of users who are far below their limit, whom HAProxy admits by
// itself, and of those beyond it.
func TestEventsAreWhatTheOriginCounts(t *testing.T) {
	t.Parallel()
	for _, instances := range []int{1, 2} {
		t.Run(fmt.Sprint(instances, " instances"), func(t *testing.T) {
			t.Parallel()
			c := cluster.Start(t, cluster.Options{Instances: instances, Limits: "version: 1\ndefault_tier: free\ntiers: {free: {requests: {GET: 100}, concurrent: 50}, other: {requests: {GET: 100}}}\nusers: {carol: other}\n"})
			spec := specOf(t, c, "alice", "even", 400, 3*time.Second)
			users := []string{"alice", "bob", "alice", "carol", "alice", "alice", "alice", "alice"} // alice is beyond her limit
			fast, slow := load.Users("GET", "/", users...), load.Users("GET", "/sleep/700", users...)
			spec.Requests = func(i int) load.Request {
				if i%16 == 3 {
					return slow(i)
				}
				return fast(i)
			}
			checkAnswered(t, runSpec(t, c, spec))
			served := map[string]int64{}
			for _, user := range []string{"alice", "bob", "carol"} {
				served[user] = c.Origin.UserCounts(user).Served
				if served[user] == 0 {
					t.Fatalf("the origin has served nothing to %s", user)
				}
			}
			proctest.Eventually(t, "each user's events are what the origin counts", func() error {
				for user, want := range served {
					started, ended, err := eventsOf(c, user)
					if err != nil {
						return err
					}
					if started["GET"] != want || ended != want || len(started) != 1 {
						return fmt.Errorf("%s: started %v, ended %d; the origin served %d", user, started, ended, want)
					}
				}
				return nil
			})
			proctest.Eventually(t, "all events together are what the origin counts", func() error {
				for tier, want := range map[string]int64{"free": served["alice"] + served["bob"], "other": served["carol"]} {
					for _, metric := range []string{`started_total{class="GET",tier="` + tier + `"}`, `ended_total{tier="` + tier + `"}`} {
						if got, err := cluster.ReadMetric(c.Polygens[0].Admin, "sluice_cluster_requests_"+metric); err != nil || int64(got) != want {
							return fmt.Errorf("%s is %v, %v; the origin served %d", metric, got, err, want)
						}
					}
				}
				return nil
			})
		})
	}
}

// What starts and ends while Redis is lost is told of when it is back.
func TestEventsOfALostRedis(t *testing.T) {
	t.Parallel()
	c := cluster.Start(t, cluster.Options{Limits: limitFile(100)})
	in := c.Instances[0]
	if res, _ := get(t, in.Address, "alice"); res.StatusCode != http.StatusOK {
		t.Fatalf("alice got %d", res.StatusCode)
	}
	_ = c.Redis.Signal(syscall.SIGSTOP)
	proctest.Eventually(t, "the agent takes Redis for lost", func() error {
		if lost, err := cluster.ReadMetric(in.Admin, "sluice_redis_lost"); err != nil || lost == 0 {
			return fmt.Errorf("it does not: %v, %v", lost, err)
		}
		return nil
	})
	for range 5 {
		if res, _ := get(t, in.Address, "bob"); res.StatusCode != http.StatusOK {
			t.Errorf("bob got %d", res.StatusCode)
		}
	}
	_ = c.Redis.Signal(syscall.SIGCONT)
	proctest.Eventually(t, "bob's events are what the origin counts", func() error {
		started, ended, err := eventsOf(c, "bob")
		if err == nil && (started["GET"] != 5 || ended != 5) {
			err = fmt.Errorf("started %v, ended %d; want 5", started, ended)
		}
		return err
	})
}

// eventsOf adds up what a user's seconds say.
func eventsOf(c *cluster.Cluster, user string) (started map[string]int64, ended int64, err error) {
	text, err := cluster.Get(c.Polygens[0].Admin, "/api/v1/events/"+user)
	if err != nil {
		return nil, 0, err
	}
	var events api.Events
	if err := json.NewDecoder(strings.NewReader(text)).Decode(&events); err != nil {
		return nil, 0, err
	}
	started = map[string]int64{}
	for _, of := range events.Started {
		for _, n := range of.Requests {
			started[of.Class] += n
		}
	}
	for _, n := range events.Ended {
		ended += n
	}
	return started, ended, nil
}
