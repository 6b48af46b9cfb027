package full

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/internal/redisbus"
	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/pkg/concurrency"
	rates "github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

// A call may have run although no answer came, and its master be gone before it is repeated. The
// replica that was promoted knows of it: it counts once in every shard, whichever script has counted it.
func TestReportsToAPromotedReplicaCountOnce(t *testing.T) {
	t.Parallel()
	testkit.AwaitHour()
	const shards = 6
	with := testkit.NewSecureRedis(t)
	secure, addrs, nodes := testkit.SecureRedisCluster(t, with)
	b := openBus(t, redisbus.Options{Addresses: secure, Cluster: true, Shards: shards, TLS: with.Client(t), Username: "sluice-agent", Password: "sluice-agent"})
	ctx, second := t.Context(), time.Now().Unix()
	users := usersOfShards(b)
	report := func(batch uint64, debt, back int) (grants []ratelimit.Grant, err error) {
		return grants, b.EachShard(func(shard int) error {
			key := ratelimit.Key{Class: "GET", User: users[shard]}
			hourly := key
			hourly.Window = rates.Hour
			taken, err := b.Take(ctx, "a", []ratelimit.Ask{
				{Key: hourly, Seq: batch, WindowStart: second / 3600 * 3600, Limit: 1000, Debt: debt, Back: back},
				{Key: key, Seq: batch, WindowStart: second, Limit: 1, Burst: 1000, Debt: debt, Back: back},
			})
			if err != nil {
				return err
			}
			if got := taken.Grants[0].Total; got != 100+21*int(batch/2) {
				t.Errorf("after batch %d the hour's pool of shard %d has %d, want %d", batch, shard, got, 100+21*int(batch/2))
			}
			slotted, err := b.Slots(ctx, "a", 1, []concurrency.Ask{{User: users[shard], Seq: batch, Want: 3, Active: 3, Limit: 9}})
			if err == nil && slotted.Grants[0] != (concurrency.Grant{Held: 3, Free: 6}) {
				t.Errorf("after batch %d the slots of shard %d are %+v, want 3 of 9 held", batch, shard, slotted.Grants[0])
			}
			return err
		})
	}
	for batch, debt := range []int{100, 41} {
		testkit.Eventually(t, "the first batches", func() error { _, err := report(uint64(batch+1), debt, 20*batch); return err })
	}
	for i, addr := range addrs[:3] {
		testkit.Eventually(t, "all of it is at the replicas", func() error {
			// "slave0:ip=…,port=…,state=online,offset=1,lag=0" and "master_repl_offset:1"
			said := testkit.RedisCommand(t, addr, "INFO", "replication")
			_, offset, _ := strings.Cut(said, "master_repl_offset:")
			if offset, _, _ = strings.Cut(offset, "\r"); !strings.Contains(said, ",offset="+offset+",") {
				return fmt.Errorf("%s", said)
			}
			return nil
		})
		testkit.Must(t, nodes[i].Signal(syscall.SIGSTOP))
	}
	for _, addr := range addrs[3:] {
		testkit.RedisCommand(t, addr, "CLUSTER", "FAILOVER", "TAKEOVER")
	}
	again := func() error { _, err := report(2, 41, 20); return err }
	testkit.Eventually(t, "the batch is repeated", again)
	// They still have to read what was sent to them, and that they are masters no more.
	for i := range 3 {
		testkit.Must(t, nodes[i].Signal(syscall.SIGCONT))
		awaitRole(t, addrs[i], "slave")
	}
	testkit.Eventually(t, "and once more", again)
	for shard, user := range users {
		var credit int
		var at int64
		testkit.Eventually(t, "the account counts what is over", func() error {
			account := testkit.RedisCommand(t, addrs[3], "-c", "GET", fmt.Sprintf("sluice:{%d}:burst:GET|%s", shard, user))
			if _, err := fmt.Sscan(account, &at, &credit); err != nil {
				t.Fatal(err)
			}
			// What is used of a second is no less credit before the next one is over, and an account goes on when it is asked.
			if at < second+3 {
				return fmt.Errorf("it is at second %d, %v", at, again())
			}
			return nil
		})
		// 1000 and one for each second, less 100 and 21, once each: 879 and one for each second since, of which one may not be over.
		if begun := credit - int(at-second); begun > 879 || begun < 879-2 {
			t.Errorf("the account of shard %d has a credit of %d after %d seconds, want 879 and one for each of them", shard, credit, at-second)
		}
	}
}
