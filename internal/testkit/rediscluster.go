package testkit

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// RedisNode is a server that can be started again with what it has kept.
type RedisNode struct {
	*Process
	Addr string

	args []string
}

// StartRedisNode starts a server in a folder of its own.
func StartRedisNode(t testing.TB, args ...string) *RedisNode {
	t.Helper()
	return StartRedisNodeAt(t, FreeAddr(t), args...)
}

// StartRedisNodeAt is StartRedisNode at an address that is known before.
func StartRedisNodeAt(t testing.TB, addr string, args ...string) *RedisNode {
	t.Helper()
	n := &RedisNode{Addr: addr, args: append([]string{"--repl-diskless-sync-delay", "0", "--dir", memoryDir(t)}, args...)}
	n.Restart(t)
	return n
}

// Restart starts a server again that has ended.
func (n *RedisNode) Restart(t testing.TB) {
	t.Helper()
	n.Process = RedisAt(t, n.Addr, n.args...)
}

// RedisCluster starts a Redis Cluster of three masters and three replicas, and returns their
// addresses and processes once it serves, the masters' first.
// Further arguments are passed on to each server.
func RedisCluster(t testing.TB, more ...string) (addrs []string, nodes []*RedisNode) {
	t.Helper()
	return RedisClusterOf(t, func(int, string) []string { return more })
}

// SecureRedisCluster is RedisCluster whose clients and nodes connect by TLS to other addresses, which are
// returned too; the test itself needs none.
func SecureRedisCluster(t testing.TB, s SecureRedis, more ...string) (secure, addrs []string, nodes []*RedisNode) {
	t.Helper()
	addrs, nodes = RedisClusterOf(t, func(int, string) []string {
		addr := FreeAddr(t)
		secure = append(secure, addr)
		return slices.Concat(s.Args, []string{"--tls-port", PortOf(addr), "--tls-cluster", "yes"}, more)
	})
	return secure, addrs, nodes
}

// PortOf is the port of an address.
func PortOf(addr string) string {
	_, port, _ := net.SplitHostPort(addr)
	return port
}

// RedisClusterOf is RedisCluster with arguments of each server's own, which may depend on the address at
// which it hears the other nodes.
func RedisClusterOf(t testing.TB, more func(node int, bus string) []string) (addrs []string, nodes []*RedisNode) {
	t.Helper()
	return RedisClusterAt(t, func(node int, _, bus string) []string { return more(node, bus) })
}

// RedisClusterAt is RedisClusterOf with arguments that may depend on the address for clients, too.
func RedisClusterAt(t testing.TB, more func(node int, addr, bus string) []string) (addrs []string, nodes []*RedisNode) {
	t.Helper()
	for i := range 6 {
		// By default it is the client's port plus 10000, which may be another test's.
		addr, bus := FreeAddr(t), FreeAddr(t)
		n := StartRedisNodeAt(t, addr, append([]string{"--cluster-enabled", "yes", "--cluster-port", PortOf(bus)}, more(i, addr, bus)...)...)
		addrs, nodes = append(addrs, n.Addr), append(nodes, n)
	}
	args := append([]string{"--cluster-yes", "--cluster-replicas", "1", "--cluster", "create"}, addrs...)
	if out, err := exec.Command(lookup(t, "redis-cli"), args...).CombinedOutput(); err != nil {
		t.Fatalf("redis-cli --cluster create: %v\n%s", err, out)
	}
	for i, addr := range addrs {
		want := "role:master"
		if i >= 3 {
			want = "master_link_status:up"
		}
		Eventually(t, "Redis Cluster at "+addr, func() error {
			said := RedisCommand(t, addr, "CLUSTER", "INFO") + RedisCommand(t, addr, "INFO", "replication")
			if !strings.Contains(said, "cluster_state:ok") || !strings.Contains(said, want) {
				return errors.New(said)
			}
			return nil
		})
	}
	return addrs, nodes
}

// memoryDir is a directory in memory, where there is one. A node that votes waits until its file is
// on the disk, and answers nobody meanwhile: on a busy machine for longer than agents wait.
func memoryDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "redis")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// RedisCommand sends a command to one server, and returns what redis-cli prints of the answer.
func RedisCommand(t testing.TB, addr string, command ...string) string {
	t.Helper()
	host, port, _ := net.SplitHostPort(addr)
	out, err := exec.Command(lookup(t, "redis-cli"), append([]string{"-h", host, "-p", port}, command...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("redis-cli at %s: %v\n%s", addr, err, out)
	}
	return string(out)
}
