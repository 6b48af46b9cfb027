package redisslots_test

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"

	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/pkg/jobs"
	"github.com/sluice-qos/sluice/pkg/jobs/redisslots"
	"github.com/sluice-qos/sluice/pkg/jobs/slotstest"
)

func TestRedis(t *testing.T) {
	_, addr := testkit.Redis(t)
	slotstest.Run(t, real(connect(t, addr)))
}

// The user of deploy/redis/users.acl may do all that a worker does.
func TestRedisAsItsUser(t *testing.T) {
	_, addr := testkit.RedisWithUsers(t)
	client := redis.NewClient(&redis.Options{Addr: addr, Username: "sluice-jobs", Password: "sluice-jobs", PoolSize: 64, ReadTimeout: testkit.Patience, WriteTimeout: testkit.Patience})
	t.Cleanup(func() { client.Close() })
	owner := connect(t, addr)
	slotstest.Run(t, func(t *testing.T) slotstest.Backend {
		if err := owner.FlushAll(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		return slotstest.Backend{Slots: redisslots.New(client)}
	})
}

func TestCluster(t *testing.T) {
	slotstest.Run(t, real(cluster(t)))
}

// TestMiniredis has a clock that goes when it is told to.
func TestMiniredis(t *testing.T) {
	slotstest.Run(t, func(t *testing.T) slotstest.Backend {
		server := miniredis.RunT(t)
		now := time.Unix(1760000000, 0)
		server.SetTime(now)
		return slotstest.Backend{
			Slots: redisslots.New(connect(t, server.Addr())),
			Advance: func(d time.Duration) {
				now = now.Add(d)
				server.SetTime(now)
				server.FastForward(d) // the keys' times to live
			},
			Slow: true,
		}
	})
}

// TestKeysExpire also holds the keys to what doc.go says of them.
func TestKeysExpire(t *testing.T) {
	_, addr := testkit.Redis(t)
	client := connect(t, addr)
	slots, ctx := redisslots.New(client), context.Background()
	claim := func(id string) jobs.Claim {
		return jobs.Claim{Job: jobs.Job{User: "alice", ID: id, Queue: "q"}, Holder: "h" + id}
	}
	acquire := func(id string, lease time.Duration) {
		t.Helper()
		if _, err := slots.Acquire(ctx, claim(id), jobs.Limits{Total: 1}, lease, true); err != nil {
			t.Fatal(err)
		}
	}
	const most = 48 * time.Hour // of all leases
	// keys checks which there are, and that they live for a day and, except the line, as
	// long as the longest lease; a minute less, for the test may be slow. They may live
	// as long as a lease that was longer before.
	keys := func(when string, longest time.Duration, want ...string) {
		t.Helper()
		got, err := client.Keys(ctx, "*").Result()
		if err != nil {
			t.Fatal(err)
		}
		slices.Sort(got)
		if diff := cmp.Diff(append([]string{}, want...), got); diff != "" {
			t.Errorf("%s: keys (-want +got):\n%s", when, diff)
		}
		for _, key := range got {
			least := 24 * time.Hour
			if !strings.Contains(key, ":line:") && !strings.Contains(key, ":places:") {
				least += longest
			}
			if ttl := client.TTL(ctx, key).Val(); ttl < least-time.Minute || ttl > 24*time.Hour+most {
				t.Errorf("%s: time to live of %s is %v, want %v to %v", when, key, ttl, least, 24*time.Hour+most)
			}
		}
	}
	const slot, line, places, waiting = "sluice:jobs:{105}:slots:alice", "sluice:jobs:{105}:line:alice", "sluice:jobs:{105}:places:alice", "sluice:jobs:{105}:waiting"
	acquire("1", most)
	keys("held", most, slot)
	acquire("2", time.Minute)
	acquire("3", time.Minute)
	keys("parked", most, line, places, slot, waiting)

	for _, key := range []string{line, places, waiting} { // almost over: whatever is done renews them
		client.Expire(ctx, key, time.Hour)
	}
	if _, err := slots.Renew(ctx, []jobs.Claim{claim("1")}, 5*time.Hour); err != nil {
		t.Fatal(err)
	}
	keys("renewed", 5*time.Hour, line, places, slot, waiting)
	for _, key := range []string{line, places, waiting} {
		client.Expire(ctx, key, time.Hour)
	}
	if _, err := slots.ReserveFree(ctx, "alice", jobs.Limits{Total: 1}, time.Minute); err != nil {
		t.Fatal(err)
	}
	keys("nothing reserved", 5*time.Hour, line, places, slot, waiting)

	for _, id := range []string{"1", "2"} {
		if _, err := slots.Release(ctx, claim(id), jobs.Limits{Total: 3}, 9*time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	keys("reserved", 9*time.Hour, slot, waiting)
	for _, id := range []string{"2", "3"} {
		acquire(id, time.Minute)
		if _, err := slots.Release(ctx, claim(id), jobs.Limits{Total: 3}, time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	keys("nothing", 0)
}

// TestWaitingCleansUp: whose reservations lapsed is not looked at again and again.
func TestWaitingCleansUp(t *testing.T) {
	server := miniredis.RunT(t)
	now := time.Unix(1760000000, 0)
	server.SetTime(now)
	slots, ctx := redisslots.New(connect(t, server.Addr())), context.Background()
	for _, id := range []string{"1", "2"} {
		c := jobs.Claim{Job: jobs.Job{User: "alice", ID: id}, Holder: "h"}
		if _, err := slots.Acquire(ctx, c, jobs.Limits{Total: 1}, time.Second, true); err != nil {
			t.Fatal(err)
		}
	}
	if reserved, err := slots.ReserveFree(ctx, "alice", jobs.Limits{Total: 2}, time.Second); err != nil || len(reserved) != 1 {
		t.Fatalf("ReserveFree = %q, %v, want one", reserved, err)
	}
	server.SetTime(now.Add(time.Second))
	if users, err := slots.Waiting(ctx, "", 9); err != nil || len(users) > 0 {
		t.Errorf("Waiting = %q, %v, want nobody", users, err)
	}
	if keys := server.Keys(); len(keys) > 0 {
		t.Errorf("keys are left: %q", keys)
	}
}

func TestScriptIsSentAgain(t *testing.T) {
	_, addr := testkit.Redis(t)
	client := connect(t, addr)
	slots, ctx := redisslots.New(client), context.Background()
	c := jobs.Claim{Job: jobs.Job{User: "alice", ID: "1"}, Holder: "h"}
	calls := map[string]func() error{
		"Acquire": func() error {
			_, err := slots.Acquire(ctx, c, jobs.Limits{Total: 1}, time.Hour, false)
			return err
		},
		"Renew": func() error {
			lost, err := slots.Renew(ctx, []jobs.Claim{c}, time.Hour)
			if len(lost) > 0 {
				t.Errorf("Renew lost %v", lost)
			}
			return err
		},
		"Waiting": func() error {
			_, err := slots.Waiting(ctx, "", 1)
			return err
		},
	}
	for _, name := range []string{"Acquire", "Renew", "Waiting"} {
		if err := client.ScriptFlush(ctx).Err(); err != nil {
			t.Fatal(err)
		}
		if err := calls[name](); err != nil {
			t.Errorf("%s of a Redis without the script = %v", name, err)
		}
	}
}

// TestRedisFails: no call succeeds, or takes what is no answer for one.
func TestRedisFails(t *testing.T) {
	server := miniredis.RunT(t)
	slots, ctx := redisslots.New(connect(t, server.Addr())), context.Background()
	c, l := jobs.Claim{Job: jobs.Job{User: "alice", ID: "1"}, Holder: "h"}, jobs.Limits{Total: 1}
	server.SetError("LOADING not yet")
	calls := map[string]func() error{
		"acquire a slot":      func() error { _, err := slots.Acquire(ctx, c, l, time.Hour, true); return err },
		"renew leases":        func() error { _, err := slots.Renew(ctx, []jobs.Claim{c}, time.Hour); return err },
		"release a slot":      func() error { _, err := slots.Release(ctx, c, l, time.Hour); return err },
		"reserve free slots":  func() error { _, err := slots.ReserveFree(ctx, "alice", l, time.Hour); return err },
		"forget a job":        func() error { return slots.Forget(ctx, c.Job) },
		"read waiting users":  func() error { _, err := slots.Waiting(ctx, "", 1); return err },
		"read users' slots":   func() error { _, err := slots.Taken(ctx, []string{"alice"}); return err },
		"read a user's slots": func() error { _, err := slots.User(ctx, "alice"); return err },
	}
	for what, call := range calls {
		if err := call(); err == nil || err.Error() != what+": LOADING not yet" {
			t.Errorf("error = %v, want %q", err, what+": LOADING not yet")
		}
	}
}

// real opens an empty back end on a server whose clock goes by itself.
func real(client redis.UniversalClient) func(t *testing.T) slotstest.Backend {
	return func(t *testing.T) slotstest.Backend {
		if err := client.FlushAll(context.Background()).Err(); err != nil {
			t.Fatal(err)
		}
		return slotstest.Backend{Slots: redisslots.New(client)}
	}
}

func connect(t testing.TB, addr string) redis.UniversalClient {
	client := redis.NewClient(&redis.Options{Addr: addr, PoolSize: 64, ReadTimeout: testkit.Patience, WriteTimeout: testkit.Patience})
	t.Cleanup(func() { client.Close() })
	return client
}

// cluster is a Redis Cluster of one node: it checks which keys a call may touch.
func cluster(t *testing.T) redis.UniversalClient {
	_, port, _ := net.SplitHostPort(testkit.FreeAddr(t))
	_, addr := testkit.Redis(t, "--cluster-enabled", "yes", "--cluster-port", port)
	node := connect(t, addr)
	if err := node.ClusterAddSlotsRange(context.Background(), 0, 16383).Err(); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "cluster", func() error {
		info, err := node.ClusterInfo(context.Background()).Result()
		if err == nil && !strings.Contains(info, "cluster_state:ok") {
			err = errors.New(info)
		}
		return err
	})
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{addr}, ReadTimeout: testkit.Patience})
	t.Cleanup(func() { client.Close() })
	return client
}
