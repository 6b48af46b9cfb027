package integration

import (
	"errors"
	"fmt"
	"os/exec"
	"slices"
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
// exact after each step, and while the slots move. Both have TLS, with certificates of clients, and users.
func TestGrowFromOneRedisToACluster(t *testing.T) {
	t.Parallel()
	s := newSecured(t)
	node := func(addr, tls string, more ...string) *proctest.Process {
		return proctest.RedisAt(t, addr, slices.Concat(s.Args, []string{"--tls-port", proctest.PortOf(tls)}, more)...)
	}
	first, firstTLS := proctest.FreeAddr(t), proctest.FreeAddr(t)
	alone := node(first, firstTLS)
	c := cluster.Start(t, s.options(limitFile(100), []string{firstTLS}, "--redis-shards", "16"))
	exact := func(user string, d time.Duration) {
		t.Helper()
		r := offer(t, c, user, "even", 500, d)
		checkAnswered(t, r)
		checkLimit(t, r, 100, 0.9)
	}
	exact("before", 2*time.Second)

	alone.Stop()
	for _, in := range c.Instances {
		proctest.Eventually(t, in.Name+" noticed", func() error { return lost(t, in, 1) })
	}
	asNode := []string{"--tls-cluster", "yes", "--cluster-enabled", "yes", "--cluster-port"}
	firstBus, secondBus := proctest.PortOf(proctest.FreeAddr(t)), proctest.PortOf(proctest.FreeAddr(t))
	node(first, firstTLS, append(asNode, firstBus)...)
	proctest.RedisCommand(t, first, "CLUSTER", "ADDSLOTSRANGE", "0", "16383")
	proctest.Eventually(t, "the agents and polygen are back", func() error { return allReady(c) })
	exact("one-node", 2*time.Second)

	second, secondTLS := proctest.FreeAddr(t), proctest.FreeAddr(t)
	node(second, secondTLS, append(asNode, secondBus)...)
	proctest.RedisCommand(t, first, "CLUSTER", "MEET", "127.0.0.1", proctest.PortOf(secondTLS), secondBus)
	awaitTwoNodes(t, first, second)
	c.RedisAddr = firstTLS + "," + secondTLS
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
		out, err := exec.Command("redis-cli", "--tls", "--cacert", s.CA, "--cert", s.Cert, "--key", s.Key, "--cluster", "rebalance", firstTLS, "--cluster-use-empty-masters").CombinedOutput()
		if err != nil {
			err = fmt.Errorf("redis-cli --cluster rebalance: %w\n%s", err, out)
		}
		moved <- err
	}()
	exact("moving", 3*time.Second)
	if err := <-moved; err != nil {
		t.Fatal(err)
	}
	for _, node := range []string{first, second} {
		if n := shardsAt(t, node); n == 0 {
			t.Errorf("no shard of users is at %s after the slots have moved", node)
		}
	}
	exact("after", 2*time.Second)
}

// awaitTwoNodes waits until two nodes know each other.
func awaitTwoNodes(t *testing.T, nodes ...string) {
	t.Helper()
	proctest.Eventually(t, "both nodes know each other", func() error {
		for _, node := range nodes {
			if said := proctest.RedisCommand(t, node, "CLUSTER", "INFO"); !strings.Contains(said, "cluster_known_nodes:2") || !strings.Contains(said, "cluster_state:ok") {
				return errors.New(said)
			}
		}
		return nil
	})
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
