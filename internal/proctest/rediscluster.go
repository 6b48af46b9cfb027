package proctest

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// RedisCluster starts a Redis Cluster of three masters and three replicas, and returns their
// addresses and processes once it serves, the masters' first.
// Further arguments are passed on to each server.
func RedisCluster(t testing.TB, more ...string) (addrs []string, nodes []*Process) {
	t.Helper()
	dir := memoryDir(t)
	for range 6 {
		addr := FreeAddr(t)
		// By default it is the client's port plus 10000, which may be another test's.
		_, clusterPort, _ := net.SplitHostPort(FreeAddr(t))
		nodes = append(nodes, RedisAt(t, addr, append([]string{"--cluster-enabled", "yes", "--cluster-port", clusterPort,
			"--repl-diskless-sync-delay", "0", "--dir", dir, "--cluster-config-file", "nodes-" + clusterPort}, more...)...))
		addrs = append(addrs, addr)
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
