package full

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-qos/sluice/internal/redisbus"
	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/pkg/bandwidth"
	"github.com/sluice-qos/sluice/pkg/concurrency"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

// hearer receives reports of users of all shards.
type hearer struct {
	bus      *redisbus.Bus
	registry *prometheus.Registry
	events   chan redisbus.Event
}

func openBus(t *testing.T, o redisbus.Options) *redisbus.Bus {
	t.Helper()
	b, err := redisbus.Open(o)
	testkit.Must(t, err)
	t.Cleanup(func() { b.Close() })
	return b
}

func hearReports(t *testing.T, o redisbus.Options) *hearer {
	t.Helper()
	h := &hearer{registry: prometheus.NewRegistry(), events: make(chan redisbus.Event, 100_000)}
	o.Registerer = h.registry
	h.bus = openBus(t, o)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = h.bus.SubscribeReports(ctx, func(event redisbus.Event) { h.events <- event })
	}()
	t.Cleanup(func() { stop(); <-done })
	for range h.bus.Shards() {
		h.awaitConnected(t)
	}
	return h
}

// next is the next event that passes.
func (h *hearer) next(t *testing.T, passes func(redisbus.Event) bool) redisbus.Event {
	t.Helper()
	for patience := time.After(testkit.Patience); ; {
		select {
		case e := <-h.events:
			if passes(e) {
				return e
			}
		case <-patience:
			t.Fatal("no such event")
		}
	}
}

func connected(e redisbus.Event) bool { _, ok := e.(redisbus.Connected); return ok }

func (h *hearer) awaitConnected(t *testing.T) { t.Helper(); h.next(t, connected) }

// awaitLost waits until so many subscriptions are not connected.
func (h *hearer) awaitLost(t *testing.T, want int) {
	t.Helper()
	testkit.Eventually(t, fmt.Sprintf("%d subscriptions are lost", want), func() error {
		families, err := h.registry.Gather()
		lost := 0.0
		for _, f := range families {
			for _, m := range f.GetMetric() {
				if f.GetName() == "sluice_bus_subscriptions_lost" {
					lost += m.GetGauge().GetValue()
				}
			}
		}
		if err == nil && lost != float64(want) {
			err = fmt.Errorf("%v are", lost)
		}
		return err
	})
}

// usersOfShards is a user of each shard.
func usersOfShards(b *redisbus.Bus) []string {
	users, missing := make([]string, b.Shards()), b.Shards()
	for i := 0; missing > 0; i++ {
		user := fmt.Sprint("user-", i)
		if shard := b.ShardOf(user); users[shard] == "" {
			users[shard] = user
			missing--
		}
	}
	return users
}

// start reports that a user has started requests, and waits until that is heard.
func (h *hearer) start(t *testing.T, agent *redisbus.Bus, user string) {
	t.Helper()
	var n int64 // by which it is known
	testkit.Eventually(t, "what is reported of "+user+" is heard", func() error {
		n++
		if err := agent.Started(t.Context(), "a", time.Second, []redisbus.Started{{User: user, Starts: n}}); err != nil {
			return err
		}
		return testkit.Poll(time.Second, func() error {
			for len(h.events) > 0 {
				if s, ok := (<-h.events).(redisbus.Starts); ok && s.Users[0].User == user && s.Users[0].Starts == n {
					return nil
				}
			}
			return errors.New("it is not")
		})
	})
}

// On a Redis Cluster whatever is reported is heard of users of all shards.
func TestReportsOfAllShards(t *testing.T) {
	t.Parallel()
	const shards = 6
	addrs, _ := testkit.RedisCluster(t)
	o := redisbus.Options{Addresses: addrs, Shards: shards, Timeout: testkit.Patience}
	agent, h := openBus(t, o), hearReports(t, o)
	users, second := usersOfShards(agent), time.Now().Unix()
	var reports []bandwidth.Report
	var started []redisbus.Started
	for shard, user := range users {
		key := ratelimit.Key{Class: "GET", User: user}
		if agent.ShardOf(key.User) != shard {
			t.Fatalf("%s is in shard %d, want %d", key.User, agent.ShardOf(key.User), shard)
		}
		reports, started = append(reports, bandwidth.Report{User: user, Active: 1}), append(started, redisbus.Started{User: user, Starts: 1})
		_, err1 := agent.Take(t.Context(), "a", []ratelimit.Ask{{Key: key, WindowStart: second, Limit: 1, Debt: 1}, {Key: key, WindowStart: second, Limit: 1, Burst: 1, Debt: 1}})
		_, err2 := agent.Slots(t.Context(), "a", 1, []concurrency.Ask{{User: user, Seq: 1, Want: 1, Active: 1, Limit: 1}})
		testkit.Must(t, errors.Join(err1, err2))
	}
	testkit.Must(t, errors.Join(agent.Demand(t.Context(), "a", reports), agent.Started(t.Context(), "a", time.Second, started)))
	kinds := map[string]int{}
	for range shards * 5 {
		kinds[fmt.Sprintf("%T", h.next(t, func(e redisbus.Event) bool { return !connected(e) }))]++
	}
	want := map[string]int{"redisbus.Usage": 12, "redisbus.Progress": 6, "redisbus.Demand": 6, "redisbus.Starts": 6}
	if fmt.Sprint(kinds) != fmt.Sprint(want) {
		t.Errorf("heard %v, want %v", kinds, want)
	}
}

// The loss of a master silences its shards and no others, until a replica takes its place. Of a slot that moves to another
// node reports are heard again from there.
func TestReportsOfALostMasterAndAMovedSlot(t *testing.T) {
	t.Parallel()
	const shards = 6
	addrs, nodes := testkit.RedisCluster(t, "--cluster-node-timeout", "60000") // no failover but by hand
	o := redisbus.Options{Addresses: addrs, Shards: shards, Timeout: time.Second}
	agent, h := openBus(t, o), hearReports(t, o)
	users, master := usersOfShards(agent), make([]int, shards)
	slot := func(shard int) (slot int) {
		_, _ = fmt.Sscan(testkit.RedisCommand(t, addrs[0], "CLUSTER", "KEYSLOT", fmt.Sprintf("{%d}", shard)), &slot)
		return slot
	}
	for shard := range master {
		master[shard] = min(slot(shard)/5461, 2)
	}
	lost := master[0]
	testkit.Must(t, nodes[lost].Signal(syscall.SIGSTOP))
	silent := map[int]bool{}
	for shard := range master {
		if master[shard] == lost {
			silent[shard] = true
		}
	}
	h.awaitLost(t, len(silent))
	for shard, user := range users {
		if !silent[shard] {
			h.start(t, agent, user)
		}
	}
	for i := 3; i < 6; i++ {
		id := testkit.RedisCommand(t, addrs[i], "CLUSTER", "NODES")
		if masterOf(id) == nodeID(t, addrs, lost) {
			testkit.RedisCommand(t, addrs[i], "CLUSTER", "FAILOVER", "TAKEOVER")
		}
	}
	h.awaitLost(t, 0)
	for _, user := range users {
		h.start(t, agent, user)
	}

	moved := slices.IndexFunc(master, func(m int) bool { return m != lost })
	from, to := addrs[master[moved]], addrs[3-lost-master[moved]]
	toID := nodeID(t, addrs, 3-lost-master[moved])
	h.start(t, agent, users[moved])
	flow, stop := context.WithCancel(t.Context())
	var flows sync.WaitGroup
	defer flows.Wait()
	defer stop()
	flows.Go(func() {
		for flow.Err() == nil { // while the slot moves some fail
			_ = agent.Started(flow, "b", time.Second, []redisbus.Started{{User: users[moved], Starts: 1}})
			time.Sleep(time.Millisecond)
		}
	})
	moving := fmt.Sprint(slot(moved))
	testkit.RedisCommand(t, to, "CLUSTER", "SETSLOT", moving, "IMPORTING", nodeID(t, addrs, master[moved]))
	testkit.RedisCommand(t, from, "CLUSTER", "SETSLOT", moving, "MIGRATING", toID)
	for _, addr := range []string{to, from} {
		testkit.RedisCommand(t, addr, "CLUSTER", "SETSLOT", moving, "NODE", toID)
	}
	h.awaitConnected(t)
	h.start(t, agent, users[moved])
}

// masterOf is the master's ID in what a replica says of the nodes.
func masterOf(nodes string) string {
	for line := range strings.Lines(nodes) {
		if words := strings.Fields(line); strings.Contains(words[2], "myself") {
			return words[3]
		}
	}
	return ""
}

func nodeID(t *testing.T, addrs []string, node int) string {
	t.Helper()
	nodes := testkit.RedisCommand(t, addrs[3], "CLUSTER", "NODES")
	for line := range strings.Lines(nodes) {
		if words := strings.Fields(line); strings.HasPrefix(words[1], addrs[node]+"@") {
			return words[0]
		}
	}
	t.Fatalf("no node %d in %s", node, nodes)
	return ""
}
