package integration

import (
	"errors"
	"fmt"
	"net"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/internal/proctest"
	"github.com/sluice-qos/sluice/test/cluster"
)

// TestGrowFromOneRedisToACluster takes the steps of docs/operations.md: the only Redis
// becomes the first node of a cluster, agents and polygen are started again with its nodes, and
// half of the slots move to the second node under load. No request fails, and limits are
// exact after each step, and while the slots move.
func TestGrowFromOneRedisToACluster(t *testing.T) {
	t.Parallel()
	shards := []string{"--redis-shards", "16"}
	c := cluster.Start(t, cluster.Options{Instances: 2, Limits: limitFile(100), SPOAArgs: shards, PolygenArgs: shards})
	exact := func(user string) {
		t.Helper()
		r := offer(t, c, user, "even", 500, 3*time.Second)
		checkAnswered(t, r)
		checkLimit(t, r, 100, 0.9)
	}
	exact("before")

	first := c.RedisAddr
	c.Redis.Stop()
	for _, in := range c.Instances {
		proctest.Eventually(t, in.Name+" noticed", func() error { return lost(t, in, 1) })
	}
	c.Redis = clusterNode(t, first)
	proctest.RedisCommand(t, first, "CLUSTER", "ADDSLOTSRANGE", "0", "16383")
	proctest.Eventually(t, "the agents and polygen are back", func() error { return allReady(c) })
	exact("one-node")

	second := proctest.FreeAddr(t)
	clusterNode(t, second)
	host, port, _ := net.SplitHostPort(second)
	proctest.RedisCommand(t, first, "CLUSTER", "MEET", host, port, nodeClusterPort(t, second))
	proctest.Eventually(t, "both nodes know each other", func() error {
		for _, node := range []string{first, second} {
			if said := proctest.RedisCommand(t, node, "CLUSTER", "INFO"); !strings.Contains(said, "cluster_known_nodes:2") || !strings.Contains(said, "cluster_state:ok") {
				return errors.New(said)
			}
		}
		return nil
	})
	c.RedisAddr = first + "," + second
	for _, in := range c.Instances {
		in.Agent.Stop()
		in.StartAgent(t)
		in.AwaitReady(t)
	}
	c.Polygens[0].Stop()
	c.Polygens[0] = c.StartPolygen(t, 0)
	proctest.Eventually(t, "the agents and polygen are back", func() error { return allReady(c) })

	// Agents that joined leave what the others do not use for two seconds.
	time.Sleep(3 * time.Second)
	moved := make(chan error, 1)
	go func() {
		out, err := exec.Command("redis-cli", "--cluster", "rebalance", first, "--cluster-use-empty-masters").CombinedOutput()
		if err != nil {
			err = fmt.Errorf("redis-cli --cluster rebalance: %w\n%s", err, out)
		}
		moved <- err
	}()
	exact("moving")
	if err := <-moved; err != nil {
		t.Fatal(err)
	}
	for _, node := range []string{first, second} {
		if n := shardsAt(t, node); n == 0 {
			t.Errorf("no shard of users is at %s after the slots have moved", node)
		}
	}
	exact("after")
}

// clusterNode starts a Redis in cluster mode, with no slots.
func clusterNode(t *testing.T, addr string) *proctest.Process {
	t.Helper()
	_, clusterPort, _ := net.SplitHostPort(proctest.FreeAddr(t))
	return proctest.RedisAt(t, addr, "--cluster-enabled", "yes", "--cluster-port", clusterPort)
}

// nodeClusterPort is the port by which the nodes of a cluster speak with this one.
func nodeClusterPort(t *testing.T, addr string) string {
	t.Helper()
	said := strings.Fields(proctest.RedisCommand(t, addr, "CONFIG", "GET", "cluster-port"))
	return said[len(said)-1]
}

// allReady is what one of the agents or polygen lacks.
func allReady(c *cluster.Cluster) error {
	for _, in := range c.Instances {
		if _, err := cluster.Get(in.Admin, "/-/ready"); err != nil {
			return fmt.Errorf("%s: %w", in.Name, err)
		}
		if lost, err := cluster.ReadMetric(in.Admin, "sluice_redis_lost"); err != nil || lost != 0 {
			return fmt.Errorf("%s: Redis is lost (%v, %w)", in.Name, lost, err)
		}
	}
	if leads, err := cluster.ReadMetric(c.Polygens[0].Admin, "sluice_polygen_leading"); err != nil || leads != 1 {
		return fmt.Errorf("polygen does not lead (%v, %w)", leads, err)
	}
	return nil
}

// shardsAt is how many of the 16 shards of users have a key at a node.
func shardsAt(t *testing.T, node string) (n int) {
	t.Helper()
	for shard := range 16 {
		slot := strings.TrimSpace(proctest.RedisCommand(t, node, "CLUSTER", "KEYSLOT", fmt.Sprintf("{%d}", shard)))
		keys, err := strconv.Atoi(strings.TrimSpace(proctest.RedisCommand(t, node, "CLUSTER", "COUNTKEYSINSLOT", slot)))
		if err != nil {
			t.Fatal(err)
		}
		n += min(keys, 1)
	}
	return n
}
