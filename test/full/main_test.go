// Package full has tests of whole clusters that take long or repeat a promise under many conditions: masters of Redis that fail
// over, upgrades under load, growth. `make test-all` runs it.
package full

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"slices"
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

// failoverWait is the Options.MaxWait of tests that demand exact limits while a part of Redis fails: no verdict must come later. Agents
// go on without a shard when an answer is missing for five times as long. A replica takes over much later, after takeover.
const (
	failoverWait = time.Second
	takeover     = 20 * time.Second
)

const redisLimits = `version: 1
default_tier: free
tiers:
  free: {requests: {GET: 50}}
  hour: {requests: {GET: {hour: 100}}}
users: {hour: hour}
exempt: {users: [probe]}
`

// failoverOptions are the Options of instances that use a Redis with TLS and users.
func failoverOptions(secure scene.Secured, redis []string, more ...string) cluster.Options {
	o := secure.Options(redisLimits, redis, more...)
	o.MaxWait = failoverWait
	return o
}

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

// awaitLost waits until each agent says that it goes on without some shards and no others, "" for none, and returns from when
// until when they came to do so.
func awaitLost(t *testing.T, s *scene.Scene, shards string) (came period) {
	t.Helper()
	want := readyWithout(shards)
	return awaitSaid(t, s, want, func(said string) bool { return said == want })
}

// awaitLostOf waits until each agent goes on without the shard of a user who sends requests. Shards of which the agents have
// nothing to ask may be found lost much later.
func awaitLostOf(t *testing.T, s *scene.Scene, shard int) (came period) {
	t.Helper()
	want := fmt.Sprint(shard)
	return awaitSaid(t, s, want, func(said string) bool { return slices.Contains(strings.Fields(said), want) })
}

// awaitSaid waits until what /-/ready says of each agent fits.
func awaitSaid(t *testing.T, s *scene.Scene, want string, fits func(said string) bool) (came period) {
	t.Helper()
	testkit.Eventually(t, "/-/ready of all agents", func() (err error) {
		asked, some := time.Now(), false
		for _, in := range s.Instances {
			said, wrong := cluster.Get(in.Admin, "/-/ready")
			if wrong == nil && !fits(said) {
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

// awaitRole waits until a server is "master" or "slave". A server that a Sentinel makes one closes the connections of its clients.
func awaitRole(t *testing.T, addr, role string) {
	t.Helper()
	_, port, err := net.SplitHostPort(addr)
	testkit.Must(t, err)
	testkit.Eventually(t, "the Redis at "+addr, func() error {
		if said, err := exec.Command("redis-cli", "-p", port, "ROLE").CombinedOutput(); err != nil || !strings.HasPrefix(string(said), role) {
			return fmt.Errorf("is %s, %v, want %s", said, err, role)
		}
		return nil
	})
}

// wholeSeconds waits until so many whole seconds have passed.
func wholeSeconds(n int64) { time.Sleep(time.Until(time.Unix(time.Now().Unix()+1+n, 0))) }

// probe is an exempt user: nobody decides about the requests of this user, so the answers tell how fast the machine is.
const probe = "probe"

// during sends requests of users, four times as many as they may send, and some of the probe, while something happens.
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
	all := append(slices.Repeat(users, 4), probe)
	r := s.OfferUntil(ctx, t, float64(redisLimit*len(all)), scene.GETs(all...))
	scene.CheckAnswered(t, r)
	return r
}

// What a user has of a limit: in each second, and in the mean of them. A machine that is slow, but does not stall, admits late.
const leastOfSecond, leastOfMean = 0.4, 0.9

// checkDay fails the test if a user had more than a limit in any second, but for up to two limits in the seconds of some
// periods, or too little of it in the others. Seconds in which the machine stalled are not judged.
func checkDay(t *testing.T, r *load.Report, user string, limit int, but ...period) {
	t.Helper()
	// An agent's estimate of the cluster's clock is off by half the time that a call takes at most, and faults make calls slow.
	admitted := r.User(user).Attribute(limit, 10*time.Millisecond)
	first, last := r.Start.Unix(), r.Results[len(r.Results)-1].Sent/1e9
	stalled := scene.Stalled(r.User(probe))
	var ratios []string
	sum, judged := 0., 0.
	for second := first; second < last; second++ {
		ratio := float64(admitted.At(second)) / float64(limit)
		ratios = append(ratios, fmt.Sprintf("%.2f", ratio))
		low, high := leastOfSecond, 1.
		for _, b := range but { // two seconds after it all agents go by the same again
			if second >= b.from.Unix() && second <= b.to.Unix()+2 {
				low, high = 0, 2
			}
		}
		if stalled[second] {
			continue
		}
		if ratio < low || ratio > high {
			t.Errorf("second %d: %s had %.2f of the limit, want %.2f to %.2f", second-first, user, ratio, low, high)
		}
		if low > 0 {
			sum, judged = sum+ratio, judged+1
		}
	}
	if sum < leastOfMean*judged {
		t.Errorf("%s had %.2f of the limit in the mean of %v seconds, want %v at least", user, sum/judged, judged, leastOfMean)
	}
	t.Logf("%s had, of the limit in each second: %s; stalled: %d seconds", user, strings.Join(ratios, " "), len(stalled))
}
