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

	"github.com/sluice-qos/sluice/internal/bus"
	"github.com/sluice-qos/sluice/internal/proctest"
	"github.com/sluice-qos/sluice/pkg/bandwidth"
	"github.com/sluice-qos/sluice/pkg/concurrency"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

// hearer receives reports of users of all shards.
type hearer struct {
	bus      *bus.Bus
	registry *prometheus.Registry
	events   chan bus.Event
}

func openBus(t *testing.T, o bus.Options) *bus.Bus {
	t.Helper()
	b, err := bus.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}

func hearReports(t *testing.T, o bus.Options) *hearer {
	t.Helper()
	h := &hearer{registry: prometheus.NewRegistry(), events: make(chan bus.Event, 100_000)}
	o.Registerer = h.registry
	h.bus = openBus(t, o)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = h.bus.SubscribeReports(ctx, func(event bus.Event) { h.events <- event })
	}()
	t.Cleanup(func() { stop(); <-done })
	for range h.bus.Shards() {
		h.awaitConnected(t)
	}
	return h
}

// next is the next event that passes.
func (h *hearer) next(t *testing.T, passes func(bus.Event) bool) bus.Event {
	t.Helper()
	for patience := time.After(proctest.Patience); ; {
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

func connected(e bus.Event) bool { _, ok := e.(bus.Connected); return ok }

func (h *hearer) awaitConnected(t *testing.T) { t.Helper(); h.next(t, connected) }

// awaitLost waits until so many subscriptions are not connected.
func (h *hearer) awaitLost(t *testing.T, want int) {
	t.Helper()
	proctest.Eventually(t, fmt.Sprintf("%d subscriptions are lost", want), func() error {
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
func usersOfShards(b *bus.Bus) []string {
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
func (h *hearer) start(t *testing.T, agent *bus.Bus, user string) {
	t.Helper()
	var n int64 // by which it is known
	proctest.Eventually(t, "what is reported of "+user+" is heard", func() error {
		n++
		if err := agent.Started(t.Context(), "a", time.Second, []bus.Started{{User: user, Starts: n}}); err != nil {
			return err
		}
		return proctest.Poll(time.Second, func() error {
			for len(h.events) > 0 {
				if s, ok := (<-h.events).(bus.Starts); ok && s.Users[0].User == user && s.Users[0].Starts == n {
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
	addrs, _ := proctest.RedisCluster(t)
	o := bus.Options{Addresses: addrs, Shards: shards, Timeout: proctest.Patience}
	agent, h := openBus(t, o), hearReports(t, o)
	users, second := usersOfShards(agent), time.Now().Unix()
	var reports []bandwidth.Report
	var started []bus.Started
	for shard, user := range users {
		key := ratelimit.Key{Class: "GET", User: user}
		if agent.ShardOf(key.User) != shard {
			t.Fatalf("%s is in shard %d, want %d", key.User, agent.ShardOf(key.User), shard)
		}
		reports, started = append(reports, bandwidth.Report{User: user, Active: 1}), append(started, bus.Started{User: user, Starts: 1})
		_, err1 := agent.Take(t.Context(), "a", []ratelimit.Ask{{Key: key, WindowStart: second, Limit: 1, Debt: 1}, {Key: key, WindowStart: second, Limit: 1, Burst: 1, Debt: 1}})
		_, err2 := agent.Slots(t.Context(), "a", 1, []concurrency.Ask{{User: user, Seq: 1, Want: 1, Active: 1, Limit: 1}})
		if err := errors.Join(err1, err2); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(agent.Demand(t.Context(), "a", reports), agent.Started(t.Context(), "a", time.Second, started)); err != nil {
		t.Fatal(err)
	}
	kinds := map[string]int{}
	for range shards * 5 {
		kinds[fmt.Sprintf("%T", h.next(t, func(e bus.Event) bool { return !connected(e) }))]++
	}
	want := map[string]int{"bus.Usage": 12, "bus.Progress": 6, "bus.Demand": 6, "bus.Starts": 6}
	if fmt.Sprint(kinds) != fmt.Sprint(want) {
		t.Errorf("heard %v, want %v", kinds, want)
	}
}

// The loss of a master silences its shards and no others, until a replica takes its place. Of a slot that moves to another
// node reports are heard again from there.
func TestReportsOfALostMasterAndAMovedSlot(t *testing.T) {
	t.Parallel()
	const shards = 6
	addrs, nodes := proctest.RedisCluster(t, "--cluster-node-timeout", "60000") // no failover but by hand
	o := bus.Options{Addresses: addrs, Shards: shards, Timeout: time.Second}
	agent, h := openBus(t, o), hearReports(t, o)
	users, master := usersOfShards(agent), make([]int, shards)
	slot := func(shard int) (slot int) {
		_, _ = fmt.Sscan(proctest.RedisCommand(t, addrs[0], "CLUSTER", "KEYSLOT", fmt.Sprintf("{%d}", shard)), &slot)
		return slot
	}
	for shard := range master {
		master[shard] = min(slot(shard)/5461, 2)
	}
	lost := master[0]
	if err := nodes[lost].Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
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
		id := proctest.RedisCommand(t, addrs[i], "CLUSTER", "NODES")
		if masterOf(id) == nodeID(t, addrs, lost) {
			proctest.RedisCommand(t, addrs[i], "CLUSTER", "FAILOVER", "TAKEOVER")
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
			_ = agent.Started(flow, "b", time.Second, []bus.Started{{User: users[moved], Starts: 1}})
			time.Sleep(time.Millisecond)
		}
	})
	moving := fmt.Sprint(slot(moved))
	proctest.RedisCommand(t, to, "CLUSTER", "SETSLOT", moving, "IMPORTING", nodeID(t, addrs, master[moved]))
	proctest.RedisCommand(t, from, "CLUSTER", "SETSLOT", moving, "MIGRATING", toID)
	for _, addr := range []string{to, from} {
		proctest.RedisCommand(t, addr, "CLUSTER", "SETSLOT", moving, "NODE", toID)
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
	nodes := proctest.RedisCommand(t, addrs[3], "CLUSTER", "NODES")
	for line := range strings.Lines(nodes) {
		if words := strings.Fields(line); strings.HasPrefix(words[1], addrs[node]+"@") {
			return words[0]
		}
	}
	t.Fatalf("no node %d in %s", node, nodes)
	return ""
}
