package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/internal/proctest"
	"github.com/sluice-qos/sluice/test/cluster"
)

// sentinelUsers are the users of the Sentinels, as docs/operations.md says.
const sentinelUsers = `user default off
user sluice on >sluice resetchannels &+switch-master &+replica-reconf-done +auth +ping +subscribe +sentinel|get-master-addr-by-name +sentinel|sentinels
user sentinel on >sentinel allcommands allchannels allkeys
sentinel sentinel-user sentinel
sentinel sentinel-pass sentinel
`

// startSentinels starts three Sentinels that watch a master by TLS, and returns their addresses.
func startSentinels(t *testing.T, s secured, master string) (addrs []string) {
	t.Helper()
	for range 3 {
		addr := proctest.FreeAddr(t)
		addrs = append(addrs, addr)
		text := fmt.Sprintf("bind 127.0.0.1\nport 0\ntls-port %s\ndir %s\nsentinel monitor sluice 127.0.0.1 %s 2\nsentinel down-after-milliseconds sluice 1000\nsentinel failover-timeout sluice 5000\n",
			proctest.PortOf(addr), t.TempDir(), proctest.PortOf(master)) + sentinelUsers
		for option := range slices.Chunk(s.Args, 2) {
			if option[0] != "--aclfile" {
				text += strings.TrimPrefix(option[0], "--") + " " + option[1] + "\n"
			}
		}
		conf := filepath.Join(t.TempDir(), "sentinel.conf")
		if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		proctest.Start(t, nil, "redis-server", conf, "--sentinel")
	}
	return addrs
}

// A master that Sentinels replace is followed by agents and polygen, be it dead or only stopped: then it takes itself
// for the master when it goes on. Sentinels and Redis have TLS, with certificates of clients, and users.
func TestSentinelsFailOver(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		gone func(*proctest.RedisNode)
		back func(*proctest.RedisNode)
	}{
		{"killed", func(n *proctest.RedisNode) { n.Kill() }, func(*proctest.RedisNode) {}},
		{"stopped", func(n *proctest.RedisNode) { _ = n.Signal(syscall.SIGSTOP) }, func(n *proctest.RedisNode) { _ = n.Signal(syscall.SIGCONT) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newSecured(t)
			tls := []string{proctest.FreeAddr(t), proctest.FreeAddr(t)}
			master := proctest.StartRedisNode(t, append(slices.Clone(s.Args), "--tls-port", proctest.PortOf(tls[0]))...)
			replica := proctest.StartRedisNode(t, append(slices.Clone(s.Args), "--tls-port", proctest.PortOf(tls[1]), "--replicaof", "127.0.0.1", proctest.PortOf(tls[0]))...)
			sentinels := startSentinels(t, s, tls[0])
			proctest.Eventually(t, "the replica follows", func() error {
				if said := proctest.RedisCommand(t, replica.Addr, "INFO", "replication"); !strings.Contains(said, "master_link_status:up") {
					return fmt.Errorf("%s", said)
				}
				return nil
			})
			c := cluster.Start(t, s.options(redisDayLimits, sentinels, "--redis-master", "sluice", "--redis-sentinel-user", "sluice", "--redis-sentinel-password", "sluice"))
			version := overrideBob(t, c)
			var gone time.Time
			var found, used period
			var over *failover
			day := throughout(t, c, 2, []string{"alice", "bob"}, func() {
				over = watchFailover(t, c, "0 registry")
				gone = time.Now()
				tt.gone(master)
				found = over.found()
				used = over.replaced(replica)
				wholeSeconds(1)
				tt.back(master)
			})
			t.Logf("the master was gone at second %d, found after %v, and the replica used after %v", gone.Unix()-day.report.Start.Unix(), found.to.Sub(gone), used.to.Sub(gone))
			over.check(day)
			day.exact("alice", redisLimit, 0.4, period{gone, found.to}, used)
			day.exact("bob", overriddenLimit, 0.4, period{gone, found.to}, used)
			awaitRole(t, replica.Addr, "master")
			proctest.Eventually(t, "polygen leads", func() error { return allReady(c) })
			keepsOverride(t, c, version, replica)
			day.exactAfter(c, "alice", redisLimit)
			day.exactAfter(c, "bob", overriddenLimit)
		})
	}
}
