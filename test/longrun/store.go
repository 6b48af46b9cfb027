package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/test/longrun/schedule"
)

// store is Redis, of one of the three kinds, behind links.
type store struct {
	kind      string
	nodes     []*testkit.RedisNode
	sentinels []*sentinel
	addrs     []string // for agents and polygens
	args      []string // of agents and polygens
	links     map[string]*testkit.Link
}

type sentinel struct {
	*testkit.Process
	conf string
}

func (s *sentinel) Restart(t *Scene) {
	s.Process = testkit.Start(t, nil, "redis-server", s.conf, "--sentinel")
}

// clusterShards is how many shards users are divided into on a Redis Cluster.
const clusterShards = 12

func startStore(t *Scene, kind string) *store {
	s := &store{kind: kind, links: map[string]*testkit.Link{}}
	switch kind {
	case "single":
		n := testkit.StartRedisNode(t)
		s.nodes, s.addrs = []*testkit.RedisNode{n}, []string{n.Addr}
	case "sentinel":
		s.startReplicated(t)
		s.args = []string{"--redis-master", "sluice"}
	case "cluster":
		s.startCluster(t)
		s.args = []string{"--redis-shards", fmt.Sprint(clusterShards)}
	}
	return s
}

func (s *store) link(t *Scene, name, to string) string {
	s.links[name] = testkit.NewLink(t, to, 0)
	return s.links[name].Addr
}

// startReplicated starts a master, its replica and three Sentinels. Everybody reaches each of them by a link, whose address it
// announces, and the replica the master by another one until the first failover.
func (s *store) startReplicated(t *Scene) {
	var announced []string
	for i := range schedule.Nodes("sentinel") {
		addr := testkit.FreeAddr(t)
		announced = append(announced, s.link(t, fmt.Sprintf("all→redis-%d", i), addr))
		args := []string{"--replica-announce-ip", "127.0.0.1", "--replica-announce-port", testkit.PortOf(announced[i])}
		if i > 0 {
			master := s.link(t, "replica→master", s.nodes[0].Addr)
			args = append(args, "--replicaof", "127.0.0.1", testkit.PortOf(master))
		}
		s.nodes = append(s.nodes, testkit.StartRedisNodeAt(t, addr, args...))
	}
	for i := range schedule.Sentinels("sentinel") {
		addr := testkit.FreeAddr(t)
		s.addrs = append(s.addrs, s.link(t, fmt.Sprintf("all→sentinel-%d", i), addr))
		dir := t.TempDir()
		text := fmt.Sprintf("bind 127.0.0.1\nport %s\ndir %s\nsentinel announce-ip 127.0.0.1\nsentinel announce-port %s\n"+
			"sentinel monitor sluice 127.0.0.1 %s 2\nsentinel down-after-milliseconds sluice 1000\nsentinel failover-timeout sluice 5000\n",
			testkit.PortOf(addr), dir, testkit.PortOf(s.addrs[i]), testkit.PortOf(announced[0]))
		conf := filepath.Join(dir, "sentinel.conf")
		if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		one := &sentinel{conf: conf}
		one.Restart(t)
		s.sentinels = append(s.sentinels, one)
	}
	testkit.Eventually(t, "the replica follows", func() error {
		said, err := redisCall(s.nodes[1].Addr, "INFO", "replication")
		if err == nil && !strings.Contains(said, "master_link_status:up") {
			err = errors.New(said)
		}
		return err
	})
	testkit.Eventually(t, "the Sentinels know the replica and each other", func() error {
		for _, addr := range s.addrs {
			// One that does not listen yet is behind a link that does.
			said, err := redisCall(addr, "INFO", "sentinel")
			if err == nil && !strings.Contains(said, "slaves=1,sentinels=3") {
				err = errors.New(said)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// startCluster starts three masters and three replicas: clients, and replicas, reach a node by one link, and the other nodes
// of the cluster by another.
func (s *store) startCluster(t *Scene) {
	_, s.nodes = testkit.RedisClusterAt(t, func(i int, addr, bus string) []string {
		clients := s.link(t, fmt.Sprintf("all→redis-%d", i), addr)
		nodes := s.link(t, fmt.Sprintf("nodes→redis-%d", i), bus)
		s.addrs = append(s.addrs, clients)
		return []string{"--cluster-announce-ip", "127.0.0.1", "--cluster-announce-port", testkit.PortOf(clients),
			"--cluster-announce-bus-port", testkit.PortOf(nodes),
			"--cluster-require-full-coverage", "no", "--cluster-node-timeout", "1000"}
	})
}

// master is the node meant by the target of a fault: of several, the one that was the i-th master at first or else the replica
// that has its place now.
func (s *store) master(target string) *testkit.RedisNode {
	if s.kind != "sentinel" {
		return s.node(target)
	}
	for _, n := range s.nodes {
		if s.isMaster(n) {
			return n
		}
	}
	return s.nodes[0]
}

func (s *store) isMaster(n *testkit.RedisNode) bool {
	said, err := redisCall(n.Addr, "ROLE")
	return err == nil && strings.HasPrefix(said, "master")
}

func (s *store) node(target string) *testkit.RedisNode {
	var i int
	_, _ = fmt.Sscanf(target, "redis-%d", &i)
	return s.nodes[i]
}

// replicaOf is a replica of a node in a cluster, nil if there is none.
func (s *store) replicaOf(master *testkit.RedisNode) *testkit.RedisNode {
	id, err := redisCall(master.Addr, "CLUSTER", "MYID")
	if err != nil {
		return nil
	}
	said, err := redisCall(master.Addr, "CLUSTER", "REPLICAS", strings.TrimSpace(id))
	if err != nil {
		return nil
	}
	for i, addr := range s.addrs {
		if strings.Contains(said, addr+"@") {
			return s.nodes[i]
		}
	}
	return nil
}

func (s *store) masters() []*testkit.RedisNode {
	return slices.DeleteFunc(slices.Clone(s.nodes), func(n *testkit.RedisNode) bool { return !s.isMaster(n) })
}

// redisCall asks a server that may not answer.
func redisCall(addr string, command ...string) (string, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "", err
	}
	return run("timeout", slices.Concat([]string{"5", "redis-cli", "-h", host, "-p", port}, command)...)
}
