package integration

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/bench/transfer"
	"github.com/sluice-qos/sluice/internal/proctest"
	"github.com/sluice-qos/sluice/test/cluster"
)

const mib = 1 << 20

// bandwidthLimits gives every user so many MiB/s, and user "other" no limit.
func bandwidthLimits(n int) string {
	return fmt.Sprintf("version: 1\ndefault_tier: free\ntiers:\n  free: {bandwidth: {down: %dMiB, up: %dMiB}}\n  none: {}\nusers: {other: none}\n", n, n)
}

func moving(t *testing.T, o cluster.Options) (*cluster.Cluster, *transfer.Origin) {
	t.Helper()
	origin, err := transfer.NewOrigin()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = origin.Close() })
	o.Origin = origin.Addr()
	return cluster.Start(t, o), origin
}

// streams are n transfers of a user, dealt out to the instances.
func streams(c *cluster.Cluster, user string, n int, up bool) (s []transfer.Stream) {
	for i := range n {
		s = append(s, transfer.Stream{Address: c.Addresses()[i%len(c.Instances)], User: user, Up: up})
	}
	return s
}

// What is promised is within 1 %, and measured by BenchmarkLoadBandwidth. A machine
// that is busy with other things may deliver late what HAProxy let through in time,
// which is band at most, and may not keep up: then there is less, but not as little
// as when a share is divided wrongly. A machine that stands still moves nothing meanwhile.
// That is not made up for, but what was under way comes later.
const (
	band  = 0.1
	least = 0.7
)

func checkRate(t *testing.T, r transfer.Report, what string, from, to time.Duration, want float64) {
	t.Helper()
	for _, e := range r.Errors {
		t.Error(e)
	}
	got := r.Rate(from, to) / want
	t.Logf("%s: %.3f of %.0f MiB/s, the machine stood still for %v of %v", what, got, want/mib, r.StillFor(from, to), to-from)
	if low, high := least*ran(r, from, to), 1+band+late(r, from, to); got < low || got > high {
		t.Errorf("%s: %.2f of %.2f MiB/s from %v to %v, want 1, and %.2f to %.2f on this machine", what, got, want/mib, from, to, low, high)
	}
}

// ran is the part of a time in which the machine did not stand still.
func ran(r transfer.Report, from, to time.Duration) float64 {
	return 1 - r.StillFor(from, to).Seconds()/(to-from).Seconds()
}

// late is the part of a time whose bytes may come from before it, or from before the machine
// stood still: no more than it stood still then, or in the second before.
func late(r transfer.Report, from, to time.Duration) float64 {
	return r.StillFor(max(0, from-time.Second), to).Seconds() / (to - from).Seconds()
}

func TestBandwidthIsExact(t *testing.T) {
	t.Parallel()
	const limit, d = 4, 5 * time.Second
	for _, instances := range []int{1, 2} {
		for _, up := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d instances, up %v", instances, up), func(t *testing.T) {
				t.Parallel()
				c, o := moving(t, cluster.Options{Instances: instances, Limits: bandwidthLimits(limit)})
				r := transfer.Run(t.Context(), o, streams(c, "alice", 8, up), d)
				checkRate(t, r, "in all", time.Second, d, limit*mib)
				if first := r.Rate(0, time.Second) / (limit * mib); first > 1.15+band {
					t.Errorf("the first second moved %.2f of the limit, want 1.15 at most", first)
				}
				fair := 0.9 // one stream of eight without anything is 0.875, and an instance's four are 0.5
				if r.StillFor(time.Second, d) >= stallAtMost {
					fair = 0.7 // what one instance did not move in time the other has for a while
				}
				if jain := r.Jain(time.Second, d); jain < fair {
					t.Errorf("Jain's index over the streams = %.3f, want 0.99, and %.2f on this machine", jain, fair)
				}
			})
		}
	}
}

// The limit follows the streams: when they are on one instance it is there, and
// when others join elsewhere they get their part of it.
func TestBandwidthFollowsDemand(t *testing.T) {
	t.Parallel()
	const limit = 6
	c, o := moving(t, cluster.Options{Instances: 2, Limits: bandwidthLimits(limit)})
	all := []transfer.Stream{{Address: c.Addresses()[0], User: "alice"}, {Address: c.Addresses()[0], User: "alice"}, {Address: c.Addresses()[0], User: "alice"},
		{Address: c.Addresses()[1], User: "alice", Begin: 3 * time.Second, End: 6 * time.Second}}
	var r transfer.Report
	for end := time.Now().Add(proctest.Patience); ; {
		r = transfer.Run(t.Context(), o, all, 9*time.Second)
		// A share that follows a demand of the time before a stall is not that of the time after it.
		if still := r.StillFor(2*time.Second, 6*time.Second); still < stallAtMost || time.Now().After(end) {
			break
		}
		t.Log("the machine stood still: once more")
	}
	checkRate(t, r, "alone on one", time.Second, 3*time.Second, limit*mib)
	checkRate(t, r, "joined by another", 4*time.Second, 6*time.Second, limit*mib)
	checkRate(t, r, "alone again", 7*time.Second, 9*time.Second, limit*mib)
	only := r.Of(3, 4)
	if r.StillFor(2*time.Second, 6*time.Second) >= stallAtMost {
		return // in a minute it ran for no four seconds
	}
	// One stream of four. What one instance cannot move because it gets no processor the other
	// has for a while; half of the limit would be a part by instances, not by streams.
	part := only.Rate(4*time.Second, 6*time.Second) / (limit * mib)
	t.Logf("the other's part: %.3f of the limit", part)
	if part < 0.125 || part > 0.425 {
		t.Errorf("the other's part is %.3f of the limit, want 0.25", part)
	}
}

// A new limit applies to transfers under way.
func TestBandwidthFollowsTheLimitFile(t *testing.T) {
	t.Parallel()
	c, o := moving(t, cluster.Options{Instances: 2, Limits: bandwidthLimits(2)})
	time.AfterFunc(3*time.Second, func() { c.SetLimits(t, bandwidthLimits(8)) })
	r := transfer.Run(t.Context(), o, streams(c, "alice", 4, false), 9*time.Second)
	checkRate(t, r, "before", time.Second, 3*time.Second, 2*mib)
	checkRate(t, r, "after", 6*time.Second, 9*time.Second, 8*mib)
}

// Files for limits without bandwidth cannot hold bodies, and it shows when somebody's bandwidth is limited after all.
func TestFirstLimitOfBandwidthIsTold(t *testing.T) {
	t.Parallel()
	c := cluster.Start(t, cluster.Options{Limits: "version: 1\ndefault_tier: free\ntiers: {free: {concurrent: 5}}\n"})
	one := c.Instances[0]
	c.SetLimits(t, bandwidthLimits(3))
	proctest.Eventually(t, "requests whose bodies are not held are counted", func() error {
		if res, _ := do(t, http.MethodGet, one.Address, "alice"); res.StatusCode != http.StatusOK {
			t.Errorf("%s, want 200", res.Status)
		}
		if one.Metric(t, "sluice_bandwidth_unheld_requests_total") == 0 {
			return errors.New("none")
		}
		return nil
	})
	if log := one.Agent.Output(); !strings.Contains(log, "a user's bandwidth is not limited here") {
		t.Errorf("the agent's log does not say it:\n%s", log)
	}
}

// Users do not touch each other, and who is not limited is not.
func TestBandwidthOfOthers(t *testing.T) {
	c, o := moving(t, cluster.Options{Limits: bandwidthLimits(3)})
	alice, bob := streams(c, "alice", 2, false), streams(c, "bob", 6, false)
	r := transfer.Run(t.Context(), o, append(append(alice, bob...), streams(c, "other", 1, false)...), 4*time.Second)
	checkRate(t, r.Of(0, 2), "alice", time.Second, 4*time.Second, 3*mib)
	checkRate(t, r.Of(2, 8), "bob", time.Second, 4*time.Second, 3*mib)
	if free := r.Of(8, 9).Rate(time.Second, 4*time.Second); free < 2*3*mib {
		t.Errorf("a user without a limit moved %.1f MiB/s, want far more than the limit of the others", free/mib)
	}
}

// Whatever dies, transfers go on at their shares. A HAProxy whose agent has died
// keeps its share, which after a while the others, who cannot know, use as well.
func TestBandwidthWhenPartsDie(t *testing.T) {
	t.Parallel()
	const limit, d = 4, 6 * time.Second
	for _, tt := range []struct {
		name string
		kill func(*cluster.Cluster)
		most float64 // of the limit
	}{
		{"agent", func(c *cluster.Cluster) { c.Instances[0].Agent.Kill() }, 1.5},
		{"polygen", func(c *cluster.Cluster) { c.Polygens[0].Kill() }, 1},
		{"redis", func(c *cluster.Cluster) { c.Redis.Kill() }, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c, o := moving(t, cluster.Options{Instances: 2, Limits: bandwidthLimits(limit)})
			time.AfterFunc(2*time.Second, func() { tt.kill(c) })
			r := transfer.Run(t.Context(), o, streams(c, "alice", 4, false), d)
			checkRate(t, r, "before", time.Second, 2*time.Second, limit*mib)
			got, low, high := r.Rate(3*time.Second, d)/(limit*mib), least*ran(r, 3*time.Second, d), tt.most+band+late(r, 3*time.Second, d)
			if got < low || got > high {
				t.Errorf("after: %.3f of the limit, want 1 to %g, and %.2f to %.2f on this machine", got, tt.most, low, high)
			}
		})
	}
}

// A reloaded HAProxy tells of no end of what the old one still moves: the agent
// must not wait for it.
func TestBandwidthIsForgottenAfterAReload(t *testing.T) {
	t.Parallel()
	c, o := moving(t, cluster.Options{Limits: bandwidthLimits(2), Master: true})
	in := c.Instances[0]
	time.AfterFunc(time.Second, func() { _ = in.HAProxy.Signal(syscall.SIGUSR2) })
	r := transfer.Run(t.Context(), o, streams(c, "alice", 2, false), 3*time.Second)
	checkRate(t, r, "through the reload", time.Second, 3*time.Second, 2*mib)
	proctest.Eventually(t, "the agent forgets alice", func() error {
		if n := in.Metric(t, "sluice_bandwidth_users"); n != 0 {
			return fmt.Errorf("it knows %v users", n)
		}
		return nil
	})
}

// A second instance joins one that was alone, at which a user moves all of the limit by credit: from then on both move
// so much together.
func TestInstanceJoinsOneWithBandwidth(t *testing.T) {
	t.Parallel()
	const limit = 4
	c, o := moving(t, cluster.Options{Instances: 2, Limits: bandwidthLimits(limit)})
	all := c.Instances
	awaitAlone(t, c)
	c.Instances = all[:1]
	alone := transfer.Stream{Address: all[0].Address, User: "alice"}
	for range 3 { // an answer brings credit
		transfer.Run(t.Context(), o, []transfer.Stream{alone}, time.Second)
	}
	const most = 3 * proctest.Patience // to start an agent, and what it takes besides
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	done := make(chan transfer.Report, 1)
	began := time.Now()
	go func() { done <- transfer.Run(ctx, o, []transfer.Stream{alone}, most) }()
	time.Sleep(3 * time.Second)
	all[1].StartAgent(t)
	all[1].AwaitReady(t)
	time.Sleep(time.Second)
	c.Instances = all
	from := time.Since(began) + time.Second
	other := transfer.Run(t.Context(), o, []transfer.Stream{{Address: all[1].Address, User: "alice"}}, 4*time.Second)
	stop()
	first := <-done
	checkRate(t, first, "alone", time.Second, 3*time.Second, limit*mib)
	for _, e := range other.Errors {
		t.Error(e)
	}
	to := from + 3*time.Second
	got := (first.Rate(from, to) + other.Rate(time.Second, 4*time.Second)) / (limit * mib)
	if low, high := least*ran(first, from, to), 1+band+late(first, from, to); got < low || got > high {
		t.Errorf("both: %.3f of the limit, want 1, and %.2f to %.2f on this machine", got, low, high)
	}
}
