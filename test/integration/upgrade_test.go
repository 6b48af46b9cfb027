package integration

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/bench/closed"
	"github.com/sluice-qos/sluice/internal/proctest"
	"github.com/sluice-qos/sluice/test/cluster"
)

// before is the folder of the commands of the version before, from which it is upgraded; "" means those of this version:
// what is tested then is that its parts are replaced under load.
func before() string { return os.Getenv("SLUICE_BEFORE") }

// upgradeAgents replaces polygens and agents one at a time, in the order of docs/operations.md.
func upgradeAgents(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	c.Upgrade(t)
	for i, p := range c.Polygens {
		p.Stop()
		c.Polygens[i] = c.StartPolygen(t, i)
		proctest.Eventually(t, "polygen is ready", func() error {
			_, err := cluster.Get(c.Polygens[i].Admin, "/-/ready")
			return err
		})
	}
	for _, in := range c.Instances {
		in.Agent.Stop()
		in.StartAgent(t)
		in.AwaitReady(t)
		proctest.Eventually(t, "nobody is away", func() error { return nobodyAway(c) })
	}
}

func nobodyAway(c *cluster.Cluster) error {
	for _, in := range c.Instances {
		if n, err := cluster.ReadMetric(in.Admin, "sluice_instances_away"); err != nil || n > 0 {
			return fmt.Errorf("for %s %v are: %w", in.Name, n, err)
		}
	}
	return nil
}

// upgradeHAProxy writes HAProxy's files anew, and reloads it.
func upgradeHAProxy(t *testing.T, in *cluster.Instance) {
	t.Helper()
	in.WriteConfig(t)
	_ = in.HAProxy.Signal(syscall.SIGUSR2)
	proctest.Eventually(t, in.Name+"'s HAProxy is reloaded", func() error {
		if in.Metric(t, "sluice_haproxy_draining") == 0 {
			return errors.New("the agent has not seen the new process")
		}
		return nil
	})
	in.AwaitReady(t)
}

// TestUpgradeUnderLoad replaces polygens and agents: nobody gets more than their limit, no request is lost, and none is
// refused that is far below it.
func TestUpgradeUnderLoad(t *testing.T) {
	t.Parallel()
	var done time.Time
	c, r, at := underLoadFor(t, 18*time.Second, func() *cluster.Cluster {
		c := cluster.Start(t, cluster.Options{Instances: 2, Polygens: 2, Limits: limitFile(100), Commands: before()})
		c.Settle()
		return c
	}, func(c *cluster.Cluster) {
		upgradeAgents(t, c)
		done = time.Now()
	})
	t.Logf("the upgrade took %v", done.Sub(at))
	checkAnswered(t, r)
	checkCalm(t, r, cluster.LongWait)
	checkHolds(t, r, at.Add(-2*time.Second), done, mostWithRedis(t, c))
}

// TestUpgradeOfHAProxyUnderLoad does the same with HAProxy's files, by a reload. In that second it may admit its credit twice.
func TestUpgradeOfHAProxyUnderLoad(t *testing.T) {
	t.Parallel()
	c, r, at := underLoad(t, func() *cluster.Cluster {
		c := cluster.Start(t, cluster.Options{Instances: 2, Limits: limitFile(100), Master: true, Commands: before()})
		c.Settle()
		return c
	}, func(c *cluster.Cluster) {
		for _, in := range c.Instances {
			upgradeHAProxy(t, in)
		}
	})
	checkAnswered(t, r)
	checkCalm(t, r, cluster.LongWait)
	checkHolds(t, r, at.Add(-2*time.Second), at.Add(5*time.Second), mostWithRedis(t, c)+2*100/8)
}

// TestUpgradeInProgress does the same while fifty clients want ten places.
func TestUpgradeInProgress(t *testing.T) {
	t.Parallel()
	o, origin := counting(t, 10)
	c := cluster.Start(t, cluster.Options{Instances: 2, Polygens: 2, Limits: progressLimits(10), Origin: origin, Master: true, Commands: before()})
	c.Settle()
	done := make(chan closed.Report)
	go func() {
		done <- closed.Run(t.Context(), closed.Spec{Addresses: c.Addresses(), User: "alice", Clients: 50, Work: short, Duration: 18 * time.Second, Seed: 1})
	}()
	time.Sleep(2 * time.Second)
	at := time.Now()
	upgradeAgents(t, c)
	for _, in := range c.Instances {
		upgradeHAProxy(t, in)
	}
	t.Logf("the upgrade took %v", time.Since(at))
	checkStatuses(t, <-done)
	// A HAProxy without its agent admits up to its half, of which the other instance may hold some.
	if most := o.Counts().Most; most > 10+10/2 && !busy(t, c, 0) {
		t.Errorf("%d requests ran at once, want the limit of 10 and a HAProxy's half of it at most", most)
	}
	checkNothingInProgress(t, c)
}
