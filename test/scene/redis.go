package scene

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/internal/testkit/cluster"
)

// Secured is Redis with TLS and users.
type Secured struct{ testkit.SecureRedis }

// NewSecured makes certificates and users until the test ends.
func NewSecured(t testing.TB) Secured { return Secured{testkit.NewSecureRedis(t)} }

// Options are those of two instances with a ShortWait, whose agents and polygens are Redis' users of deploy/redis/users.acl.
func (s Secured) Options(limits string, redis []string, more ...string) cluster.Options {
	as := func(user string) []string {
		return append([]string{"--redis-ca", s.CA, "--redis-cert", s.Cert, "--redis-key", s.Key, "--redis-user", user, "--redis-password", user}, more...)
	}
	return cluster.Options{Instances: 2, MaxWait: ShortWait, Limits: limits, Redis: strings.Join(redis, ","), SPOAArgs: as("sluice-agent"), PolygenArgs: as("sluice-polygen")}
}

// sentinelUsers are the users of the Sentinels, as docs/operations.md says.
const sentinelUsers = `user default off
user sluice on >sluice resetchannels &+switch-master &+replica-reconf-done +auth +ping +subscribe +sentinel|get-master-addr-by-name +sentinel|sentinels
user sentinel on >sentinel allcommands allchannels allkeys
sentinel sentinel-user sentinel
sentinel sentinel-pass sentinel
`

// Sentinels starts a master, its replica and three Sentinels, which replace a master that is silent for downAfter, and returns
// the Options of instances that follow the Sentinels.
func (s Secured) Sentinels(t testing.TB, limits string, downAfter time.Duration) (master, replica *testkit.RedisNode, o cluster.Options) {
	t.Helper()
	port := func() string { return testkit.PortOf(testkit.FreeAddr(t)) }
	masterPort := port()
	master = testkit.StartRedisNode(t, append(slices.Clone(s.Args), "--tls-port", masterPort)...)
	replica = testkit.StartRedisNode(t, append(slices.Clone(s.Args), "--tls-port", port(), "--replicaof", "127.0.0.1", masterPort)...)
	var addrs []string
	for range 3 {
		addr := testkit.FreeAddr(t)
		addrs = append(addrs, addr)
		text := fmt.Sprintf("bind 127.0.0.1\nport 0\ntls-port %s\ndir %s\nsentinel monitor sluice 127.0.0.1 %s 2\nsentinel down-after-milliseconds sluice %d\nsentinel failover-timeout sluice 5000\n",
			testkit.PortOf(addr), t.TempDir(), masterPort, downAfter.Milliseconds()) + sentinelUsers
		for option := range slices.Chunk(s.Args, 2) {
			if option[0] != "--aclfile" {
				text += strings.TrimPrefix(option[0], "--") + " " + option[1] + "\n"
			}
		}
		conf := filepath.Join(t.TempDir(), "sentinel.conf")
		if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		testkit.Start(t, nil, "redis-server", conf, "--sentinel")
	}
	testkit.Eventually(t, "the replica follows", func() error {
		if said := testkit.RedisCommand(t, replica.Addr, "INFO", "replication"); !strings.Contains(said, "master_link_status:up") {
			return fmt.Errorf("%s", said)
		}
		return nil
	})
	return master, replica, s.Options(limits, addrs, "--redis-master", "sluice", "--redis-sentinel-user", "sluice", "--redis-sentinel-password", "sluice")
}
