package full

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/internal/redisbus"
	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/test/scene"
)

// redisShards is how many shards users are divided into.
const redisShards = 12

// redisCluster is a Redis Cluster behind lines: agents, and nodes among each other, go through those of each node.
type redisCluster struct {
	t     *testing.T
	nodes []*testkit.RedisNode
	lines [][]*testkit.Link // of each node: that of its clients, and that of other nodes
	addrs []string          // for clients with TLS
	bus   *redisbus.Bus     // knows which shard a user is in
}

func startRedisCluster(t *testing.T, s scene.Secured, more ...string) *redisCluster {
	t.Helper()
	r := &redisCluster{t: t}
	_, r.nodes = testkit.RedisClusterOf(t, func(node int, toNodes string) []string {
		tls := testkit.FreeAddr(t)
		clients, nodes := testkit.NewLink(t, tls, 0), testkit.NewLink(t, toNodes, 0)
		r.lines, r.addrs = append(r.lines, []*testkit.Link{clients, nodes}), append(r.addrs, clients.Addr)
		return slices.Concat(s.Args, []string{"--tls-port", testkit.PortOf(tls), "--tls-cluster", "yes", "--cluster-announce-ip", "127.0.0.1",
			"--cluster-announce-tls-port", testkit.PortOf(clients.Addr), "--cluster-announce-bus-port", testkit.PortOf(nodes.Addr),
			"--bind-source-addr", nodeIP(node), // by which the lines know whose connection it is
			"--cluster-require-full-coverage", "no", "--cluster-node-timeout", fmt.Sprint(takeover.Milliseconds())}, more)
	})
	r.bus = openBus(t, redisbus.Options{Addresses: []string{"127.0.0.1:1"}, Shards: redisShards}) // connects to nobody
	return r
}

func nodeIP(node int) string { return fmt.Sprintf("127.0.1.%d", node+1) }

// cutOff separates a node from the other nodes, and from its clients or not.
func (r *redisCluster) cutOff(node int, fromClients bool) {
	for i, lines := range r.lines {
		stops := func(ip string) bool { return ip == nodeIP(node) }
		if i == node {
			stops = func(ip string) bool { return fromClients || strings.HasPrefix(ip, "127.0.1.") }
			lines[1].Hold() // the line of the other nodes
			lines = lines[:1]
		}
		for _, line := range lines {
			line.Stop(stops)
		}
	}
}

func (r *redisCluster) heal() {
	for _, lines := range r.lines {
		for _, line := range lines {
			line.Stop(nil)
		}
	}
}

// masterOf is the node that a tag's slot was given to when the cluster was made.
func (r *redisCluster) masterOf(tag any) int {
	var slot int
	_, _ = fmt.Sscan(testkit.RedisCommand(r.t, r.nodes[0].Addr, "CLUSTER", "KEYSLOT", fmt.Sprintf("{%v}", tag)), &slot)
	return min(slot/5461, 2)
}

// replicaOf is the replica that follows a master.
func (r *redisCluster) replicaOf(master int) *testkit.RedisNode {
	for _, n := range r.nodes {
		if strings.Contains(testkit.RedisCommand(r.t, n.Addr, "INFO", "replication"), "master_port:"+testkit.PortOf(r.addrs[master])+"\r") {
			return n
		}
	}
	r.t.Fatalf("no replica follows %s", r.addrs[master])
	return nil
}

// shardsOf names the shards of a master as /-/ready does, and a user of one of them.
func (r *redisCluster) shardsOf(master int) (names, user string) {
	var shards []string
	for shard := range redisShards {
		if r.masterOf(shard) == master {
			shards = append(shards, fmt.Sprint(shard))
		}
	}
	for i := 0; ; i++ {
		user = fmt.Sprint("user-", i)
		if slices.Contains(shards, fmt.Sprint(r.bus.ShardOf(user))) {
			break
		}
	}
	if r.masterOf("cluster") == master {
		shards = append(shards, "registry")
	}
	return strings.Join(shards, " "), user
}

// A master that lives, but is cut off, is replaced by its replica: that of the registry from everybody, and another one
// from the other nodes, while agents reach it still. Users of other masters notice nothing, and its own have no more than
// the limit but in the seconds in which it goes and another one is there. No instance is taken for gone, and polygen
// leads again. The cluster has TLS, with certificates of clients, and users.
func TestMasterCutOff(t *testing.T) {
	t.Parallel()
	for name, registry := range map[string]bool{"the registry, from everybody": true, "another one, from the other nodes": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			secure := scene.NewSecured(t)
			r := startRedisCluster(t, secure)
			s := scene.Start(t, failoverOptions(secure, r.addrs, "--redis-shards", fmt.Sprint(redisShards)))
			master := r.masterOf("cluster")
			if !registry {
				master = (master + 1) % 3
			}
			replica := r.replicaOf(master)
			shards, far := r.shardsOf(master)
			_, near := r.shardsOf((master + 1) % 3)
			var cut time.Time
			var found, replaced period
			instances := map[float64]bool{}
			count := func() {
				for _, in := range s.Instances {
					instances[in.Metric(t, "sluice_instances")] = true
				}
			}
			report := during(t, s, []string{far, near}, func() {
				r.cutOff(master, registry)
				cut = time.Now()
				// Agents that reach the master may follow the replica before they lose anything.
				if registry {
					found = awaitLostOf(t, s, r.bus.ShardOf(far))
				} else {
					awaitRole(t, replica.Addr, "master")
					found.to = time.Now()
				}
				count()
				replaced = awaitReplaced(t, s, replica)
				wholeSeconds(1)
				count()
				r.heal()
				awaitRole(t, r.nodes[master].Addr, "slave")
			})
			t.Logf("%s was cut off at second %d, found after %v, replaced after %v", shards, cut.Unix()-report.Start.Unix(), found.to.Sub(cut), replaced.to.Sub(cut))
			checkDay(t, report, near, redisLimit)
			checkDay(t, report, far, redisLimit, period{cut, found.to}, replaced)
			if !maps.Equal(instances, map[float64]bool{2: true}) {
				t.Errorf("agents took the cluster to have so many instances: %v, want 2 all the time", instances)
			}
			awaitAll(t, s)
		})
	}
}

// move moves the slot of a shard, with all its keys, to another master, as redis-cli does.
func (r *redisCluster) move(shard, from, to int) {
	r.t.Helper()
	command := func(node int, command ...string) string {
		return strings.TrimSpace(testkit.RedisCommand(r.t, r.nodes[node].Addr, command...))
	}
	slot := command(from, "CLUSTER", "KEYSLOT", fmt.Sprintf("{%d}", shard))
	source, target := command(from, "CLUSTER", "MYID"), command(to, "CLUSTER", "MYID")
	command(to, "CLUSTER", "SETSLOT", slot, "IMPORTING", source)
	command(from, "CLUSTER", "SETSLOT", slot, "MIGRATING", target)
	for keys := command(from, "CLUSTER", "GETKEYSINSLOT", slot, "100"); keys != ""; keys = command(from, "CLUSTER", "GETKEYSINSLOT", slot, "100") {
		migrate := append([]string{"MIGRATE", "127.0.0.1", testkit.PortOf(r.addrs[to]), "", "0", "5000", "KEYS"}, strings.Split(keys, "\n")...)
		if got := command(from, migrate...); got != "OK" && got != "NOKEY" {
			r.t.Fatalf("keys of slot %s did not move: %s", slot, got)
		}
	}
	for _, node := range []int{to, from, 3 - to - from} {
		if got := command(node, "CLUSTER", "SETSLOT", slot, "NODE", target); got != "OK" {
			r.t.Fatalf("slot %s is not its new master's: %s", slot, got)
		}
	}
}

// A master that is silent for a while, even that of the registry, concerns the users of its shards alone, and so does a shard that
// moves to another master.
func TestShardsFailAlone(t *testing.T) {
	t.Parallel()
	secure := scene.NewSecured(t)
	r := startRedisCluster(t, secure, "--cluster-node-timeout", "600000") // no replica takes over
	s := scene.Start(t, failoverOptions(secure, r.addrs, "--redis-shards", fmt.Sprint(redisShards)))
	registry := r.masterOf("cluster")
	shards, far := r.shardsOf(registry)
	_, near := r.shardsOf((registry + 1) % 3)
	_, moved := r.shardsOf((registry + 2) % 3)
	var moving, silent, back period
	report := during(t, s, []string{far, near, moved}, func() {
		moving.from = time.Now()
		r.move(r.bus.ShardOf(moved), (registry+2)%3, (registry+1)%3)
		moving.to = time.Now()
		wholeSeconds(2)
		silent.from = time.Now()
		if err := r.nodes[registry].Signal(syscall.SIGSTOP); err != nil {
			t.Error(err)
		}
		silent.to = awaitLost(t, s, shards).to
		for _, in := range s.Instances {
			if n := in.Metric(t, "sluice_instances"); n != 2 {
				t.Errorf("%s knows of %v instances without the registry, want 2", in.Name, n)
			}
		}
		wholeSeconds(1)
		back.from = time.Now()
		if err := r.nodes[registry].Signal(syscall.SIGCONT); err != nil {
			t.Error(err)
		}
		back.to = awaitLost(t, s, "").to
	})
	checkDay(t, report, near, redisLimit)
	checkDay(t, report, moved, redisLimit, moving)
	checkDay(t, report, far, redisLimit, silent, back)
	awaitAll(t, s)
}

// A whole cluster that is killed and started again, with what it had or without anything, costs two limits at most in
// the seconds in which it goes and is back. Overrides are kept by polygen, and hours by Redis, if it keeps anything.
func TestRedisClusterRestarted(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, appendonly string
		hour             int // requests of an hour's limit of 100
	}{{"with persistence", "yes", 100}, {"without", "no", 200}} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			testkit.AwaitHour()
			secure := scene.NewSecured(t)
			r := startRedisCluster(t, secure, "--appendonly", tt.appendonly)
			s := scene.Start(t, failoverOptions(secure, r.addrs, "--redis-shards", fmt.Sprint(redisShards)))
			version := overrideBob(t, s)
			hourly := func() int { return s.Admitted(t, "GET", "/", "hour", 150) }
			used := hourly()
			if used < 90 {
				t.Errorf("%d requests were admitted, of an hour's 100", used)
			}
			var killed, started time.Time
			var found, back period
			report := during(t, s, []string{"alice", "bob"}, func() {
				killed = time.Now()
				for _, n := range r.nodes {
					n.Kill()
				}
				found = awaitLost(t, s, "all registry")
				wholeSeconds(1)
				started = time.Now()
				for _, n := range r.nodes {
					n.Restart(t)
				}
				back = awaitLost(t, s, "")
			})
			t.Logf("the cluster was killed at second %d, found after %v, started at %d, and used again after %v", killed.Unix()-report.Start.Unix(),
				found.to.Sub(killed), started.Unix()-report.Start.Unix(), back.to.Sub(started))
			// Shards come back one after the other.
			checkDay(t, report, "alice", redisLimit, period{killed, found.to}, period{started, back.to})
			checkDay(t, report, "bob", overriddenLimit, period{killed, found.to}, period{started, back.to})
			keepsOverride(t, s, version, r.nodes...)
			if more := hourly(); used+more > tt.hour {
				t.Errorf("of an hour's limit of 100, %d requests were admitted before and %d after, want %d at most", used, more, tt.hour)
			}
		})
	}
}
