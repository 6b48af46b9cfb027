package bus_test

import (
	"strings"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/internal/bus"
	"github.com/sluice-qos/sluice/internal/proctest"
)

// In Redis Cluster the replica of the node that has the key is waited for.
func TestReplicasOfACluster(t *testing.T) {
	with := proctest.NewSecureRedis(t)
	secure, _, _ := proctest.SecureRedisCluster(t, with)
	t.Parallel()
	b, err := bus.Open(bus.Options{Addresses: secure[:1], Cluster: true, Shards: 4, Timeout: proctest.Patience, TLS: with.Client(t), Username: "sluice-polygen", Password: "sluice-polygen"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	kept, err := b.KeepOverrides(t.Context(), "", bus.KeptOverrides{List: []byte("[]")}, time.Hour, proctest.Patience)
	if err != nil || kept.Unsafe != "" {
		t.Errorf("KeepOverrides = %q, %v, want it on the replica", kept.Unsafe, err)
	}
}

// Redis' users may be those of a version before: the write counts, and says that nobody knows
// of its replicas.
func TestReplicasThatRedisDoesNotTellOf(t *testing.T) {
	t.Parallel()
	_, addr := proctest.RedisWithUsers(t)
	proctest.RedisCommand(t, addr, "ACL", "SETUSER", "sluice-polygen", "-role")
	b, err := bus.Open(bus.Options{Addresses: []string{addr}, Username: "sluice-polygen", Password: "sluice-polygen", Timeout: proctest.Patience})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	kept, err := b.KeepOverrides(t.Context(), "", bus.KeptOverrides{List: []byte("[]")}, time.Hour, time.Second)
	if err != nil || !strings.HasPrefix(kept.Unsafe, "redis does not say whether its replicas have it: wait for replicas: NOPERM") {
		t.Errorf("KeepOverrides = %q, %v, want that Redis does not tell", kept.Unsafe, err)
	}
}
