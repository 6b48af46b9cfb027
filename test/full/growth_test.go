package full

import (
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/internal/testkit/cluster"
	"github.com/sluice-qos/sluice/test/scene"
)

// The steps of docs/operations.md: the only Redis becomes the first node of a cluster, agents and polygen are started again with
// its nodes, and half of the slots move to the second node under load. No request fails, and limits are exact after each step,
// and while the slots move. Both have TLS, with certificates of clients, and users.
func TestGrowFromOneRedisToACluster(t *testing.T) {
	t.Parallel()
	secure := scene.NewSecured(t)
	node := func(addr, tls string, more ...string) *testkit.Process {
		return testkit.RedisAt(t, addr, slices.Concat(secure.Args, []string{"--tls-port", testkit.PortOf(tls)}, more)...)
	}
	first, firstTLS := testkit.FreeAddr(t), testkit.FreeAddr(t)
	alone := node(first, firstTLS)
	o := secure.Options(redisLimits, []string{firstTLS}, "--redis-shards", "16")
	o.MaxWait = cluster.LongWait // no Redis hangs
	s := scene.Start(t, o)
	exact := func(user string, d time.Duration) {
		t.Helper()
		r := s.Offer(t, "even", 4*redisLimit, d, scene.GETs(user))
		scene.CheckAnswered(t, r)
		scene.CheckLimit(t, r, user, redisLimit, 0.9)
	}
	exact("before", 2*time.Second)

	alone.Stop()
	for _, in := range s.Instances {
		scene.AwaitMetric(t, in.Admin, "sluice_redis_lost", scene.Is(1))
	}
	asNode := []string{"--tls-cluster", "yes", "--cluster-enabled", "yes", "--cluster-port"}
	firstBus, secondBus := testkit.PortOf(testkit.FreeAddr(t)), testkit.PortOf(testkit.FreeAddr(t))
	node(first, firstTLS, append(asNode, firstBus)...)
	testkit.RedisCommand(t, first, "CLUSTER", "ADDSLOTSRANGE", "0", "16383")
	awaitAll(t, s)
	time.Sleep(3 * time.Second)
	exact("one-node", 2*time.Second)

	second, secondTLS := testkit.FreeAddr(t), testkit.FreeAddr(t)
	node(second, secondTLS, append(asNode, secondBus)...)
	testkit.RedisCommand(t, first, "CLUSTER", "MEET", "127.0.0.1", testkit.PortOf(secondTLS), secondBus)
	testkit.Eventually(t, "both nodes know each other", func() error {
		for _, addr := range []string{first, second} {
			if said := testkit.RedisCommand(t, addr, "CLUSTER", "INFO"); !strings.Contains(said, "cluster_known_nodes:2") || !strings.Contains(said, "cluster_state:ok") {
				return errors.New(said)
			}
		}
		return nil
	})
	s.RedisAddr = firstTLS + "," + secondTLS
	for _, in := range s.Instances {
		in.Agent.Stop()
		in.StartAgent(t)
		in.AwaitReady(t)
	}
	s.Polygens[0].Stop()
	s.Polygens[0] = s.StartPolygen(t, 0)
	awaitAll(t, s)
	time.Sleep(3 * time.Second) // agents that joined leave what the others do not use for two seconds
	moved := make(chan error, 1)
	go func() {
		out, err := exec.Command("redis-cli", "--tls", "--cacert", secure.CA, "--cert", secure.Cert, "--key", secure.Key, "--cluster", "rebalance", firstTLS, "--cluster-use-empty-masters").CombinedOutput()
		if err != nil {
			err = fmt.Errorf("redis-cli --cluster rebalance: %w\n%s", err, out)
		}
		moved <- err
	}()
	exact("moving", 3*time.Second)
	testkit.Must(t, <-moved)
	for _, addr := range []string{first, second} {
		if shardsAt(t, addr) == 0 {
			t.Errorf("no shard of users is at %s after the slots have moved", addr)
		}
	}
	exact("after", 2*time.Second)
}

// shardsAt is how many of the 16 shards of users have a key at a node.
func shardsAt(t *testing.T, node string) (n int) {
	t.Helper()
	for shard := range 16 {
		slot := strings.TrimSpace(testkit.RedisCommand(t, node, "CLUSTER", "KEYSLOT", fmt.Sprintf("{%d}", shard)))
		keys, err := strconv.Atoi(strings.TrimSpace(testkit.RedisCommand(t, node, "CLUSTER", "COUNTKEYSINSLOT", slot)))
		testkit.Must(t, err)
		n += min(keys, 1)
	}
	return n
}
