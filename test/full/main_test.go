// Package full has tests of whole clusters that take long or repeat a promise under many conditions: masters of Redis that fail
// over, upgrades under load, growth. `make test-all` runs it.
package full

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/bench/load"
	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/internal/testkit/cluster"
	"github.com/sluice-qos/sluice/test/scene"
)

const (
	redisLimit      = 50 // requests a second of every user, who sends four times as many
	overriddenLimit = 20 // bob's by hand
)

const redisLimits = `version: 1
default_tier: free
tiers:
  free: {requests: {GET: 50}}
  hour: {requests: {GET: {hour: 100}}}
users: {hour: hour}
`

// overrideBob sets a limit by hand, waits until all agents have it, and returns the version of the limits with it.
func overrideBob(t *testing.T, s *scene.Scene) (version string) {
	t.Helper()
	before := instancesOf(t, s)[0].Version
	scene.Told(t, s.Polygens[0], "PUT", "/api/v1/overrides/bob", fmt.Sprintf(`{"for":"10m","reason":"a test","limits":{"requests":{"GET":%d}}}`, overriddenLimit))
	testkit.Eventually(t, "the agents have it", func() error {
		for _, in := range instancesOf(t, s) {
			if version = in.Version; version == before {
				return fmt.Errorf("%s has not", in.Name)
			}
		}
		return nil
	})
	return version
}

func instancesOf(t *testing.T, s *scene.Scene) []api.Instance {
	t.Helper()
	var list api.Instances
	testkit.Must(t, json.Unmarshal([]byte(scene.Told(t, s.Polygens[0], "GET", "/api/v1/instances", "")), &list))
	return list.Instances
}

// keepsOverride waits until one of some servers has, and all agents work with, the override of overrideBob.
func keepsOverride(t *testing.T, s *scene.Scene, version string, servers ...*testkit.RedisNode) {
	t.Helper()
	testkit.Eventually(t, "the override", func() error {
		var kept []string
		for _, n := range servers {
			kept = append(kept, testkit.RedisCommand(t, n.Addr, "HGET", "sluice:{cluster}:overrides", "list"))
		}
		if !strings.Contains(fmt.Sprint(kept), "bob") {
			return fmt.Errorf("Redis has %q", kept)
		}
		for _, in := range instancesOf(t, s) {
			if in.Version != version || !in.Current {
				return fmt.Errorf("%s has %s, want %s", in.Name, in.Version, version)
			}
		}
		return nil
	})
}

// awaitAll waits until all agents and the polygen work.
func awaitAll(t *testing.T, s *scene.Scene) {
	t.Helper()
	for _, in := range s.Instances {
		in.AwaitReady(t)
		scene.AwaitMetric(t, in.Admin, "sluice_redis_lost", scene.Is(0))
	}
	scene.AwaitMetric(t, s.Polygens[0].Admin, "sluice_polygen_leading", scene.Is(1))
}

// period is from when something may have begun until when it is over, at all agents.
type period struct{ from, to time.Time }

// readyWithout is what /-/ready says of an agent that goes on without some shards, "" for none.
func readyWithout(shards string) string {
	if shards == "" {
		return "ready\n"
	}
	return "ready\nredis lost: shards " + shards + "\n"
}

// awaitLost waits until each agent says that it goes on without some shards, "" for none, and returns from when until when they
// came to do so.
func awaitLost(t *testing.T, s *scene.Scene, shards string) (came period) {
	t.Helper()
	testkit.Eventually(t, "/-/ready of all agents", func() (err error) {
		asked, some := time.Now(), false
		for _, in := range s.Instances {
			said, wrong := cluster.Get(in.Admin, "/-/ready")
			if want := readyWithout(shards); wrong == nil && said != want {
				wrong = fmt.Errorf("%s says %q, want %q", in.Name, said, want)
			}
			if some = some || wrong == nil; wrong != nil {
				err = errors.Join(err, wrong)
			}
		}
		if came.to = time.Now(); !some || came.from.IsZero() {
			came.from = asked
		}
		return err
	})
	return came
}

// awaitReplaced waits until a replica is the master, and each agent uses it.
func awaitReplaced(t *testing.T, s *scene.Scene, replica *testkit.RedisNode) (came period) {
	t.Helper()
	awaitRole(t, replica.Addr, "master")
	return awaitLost(t, s, "")
}

// awaitRole waits until a server is "master" or "slave".
func awaitRole(t *testing.T, addr, role string) {
	t.Helper()
	testkit.Eventually(t, "the Redis at "+addr, func() error {
		if said := testkit.RedisCommand(t, addr, "ROLE"); !strings.HasPrefix(said, role) {
			return fmt.Errorf("is %s, want %s", said, role)
		}
		return nil
	})
}

// wholeSeconds waits until so many whole seconds have passed.
func wholeSeconds(n int64) { time.Sleep(time.Until(time.Unix(time.Now().Unix()+1+n, 0))) }

// during sends requests of users, four times as many as they may send, while something happens.
func during(t *testing.T, s *scene.Scene, users []string, happens func()) *load.Report {
	t.Helper()
	s.Settle()
	ctx, end := context.WithCancel(t.Context())
	defer end()
	go func() {
		defer end()
		wholeSeconds(1)
		happens()
		wholeSeconds(1)
	}()
	r := s.OfferUntil(ctx, t, float64(4*redisLimit*len(users)), scene.GETs(users...))
	scene.CheckAnswered(t, r)
	return r
}

// checkDay fails the test if a user had more than a limit in any second, but for up to two limits in the seconds of some
// periods, or less than a part of it in another one.
func checkDay(t *testing.T, r *load.Report, user string, limit int, least float64, but ...period) {
	t.Helper()
	admitted := r.User(user).Attribute(limit, 2*time.Millisecond)
	first, last := r.Start.Unix(), r.Results[len(r.Results)-1].Sent/1e9
	var ratios []string
	for second := first; second < last; second++ {
		low, high := least, 1.
		for _, b := range but { // requests that were admitted last are reported within the next second
			if second >= b.from.Unix() && second <= b.to.Unix()+1 {
				low, high = 0, 2
			}
		}
		ratio := float64(admitted.At(second)) / float64(limit)
		if ratio < low || ratio > high {
			t.Errorf("second %d: %s had %.2f of the limit, want %.2f to %.2f", second-first, user, ratio, low, high)
		}
		ratios = append(ratios, fmt.Sprintf("%.2f", ratio))
	}
	t.Logf("%s had, of the limit in each second: %s", user, strings.Join(ratios, " "))
}
