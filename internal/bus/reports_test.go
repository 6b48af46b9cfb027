package bus_test

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

	"github.com/sluice-qos/sluice/internal/bus"
	"github.com/sluice-qos/sluice/internal/proctest"
	"github.com/sluice-qos/sluice/pkg/bandwidth"
	"github.com/sluice-qos/sluice/pkg/concurrency"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

// hearer hears what is reported of users.
type hearer struct {
	*server
	bus    *bus.Bus
	events ear
}

func hearReports(t *testing.T, o bus.Options) *hearer {
	t.Helper()
	h := &hearer{server: &server{cluster: true}, events: make(ear, 100_000)}
	h.bus = h.openWith(t, o)
	listenBy(t, func(ctx context.Context) {
		_ = h.bus.SubscribeReports(ctx, func(event bus.Event) { h.events <- event })
	})
	for range h.bus.Shards() {
		h.events.connected(t)
	}
	return h
}

// awaitLost waits until so many subscriptions are not connected.
func (h *hearer) awaitLost(t *testing.T, want int) {
	t.Helper()
	proctest.Eventually(t, fmt.Sprintf("%d subscriptions are lost", want), func() error {
		if n := h.metric(t, "sluice_bus_subscriptions_lost"); n != float64(want) {
			return fmt.Errorf("%v are", n)
		}
		return nil
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

// On a Redis Cluster whatever is reported is heard, of users of all shards, at all endpoints.
func TestReportsOfAllShards(t *testing.T) {
	t.Parallel()
	const shards = 6
	addrs, _ := proctest.RedisCluster(t)
	o := bus.Options{Addresses: addrs, Shards: shards}
	agent, h := (&server{cluster: true}).openWith(t, o), hearReports(t, o)
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
		kinds[fmt.Sprintf("%T", h.events.next(t))]++
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
	agent, h := (&server{cluster: true}).openWith(t, o), hearReports(t, o)
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
	h.events.connected(t)
	h.start(t, agent, users[moved])
}

// A spent pool does not wait until all is handled that agents tell of their users each second.
func TestPoolsDoNotWaitForStarts(t *testing.T) {
	b := startRedis(t).open(t, bus.Options{})
	starts, others, release := make(chan bus.Event), make(ear, 100), make(chan struct{})
	listenBy(t, func(ctx context.Context) {
		_ = b.SubscribeReports(ctx, func(event bus.Event) {
			if _, ok := event.(bus.Starts); !ok {
				others <- event
				return
			}
			starts <- event
			<-release
		})
	})
	others.connected(t)
	if err := b.Started(t.Context(), "a", time.Second, []bus.Started{{User: "alice", Starts: 1}}); err != nil {
		t.Fatal(err)
	}
	<-starts
	defer close(release)
	if _, err := b.Take(t.Context(), "a", []ratelimit.Ask{{Key: ratelimit.Key{Class: "GET", User: "alice"}, WindowStart: 17, Limit: 1, Debt: 1}}); err != nil {
		t.Fatal(err)
	}
	if u, ok := others.next(t).(bus.Usage); !ok || u.Entries[0].Key.User != "alice" {
		t.Errorf("heard %+v while starts are handled, want the usage of alice", u)
	}
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

// A Redis Cluster before version 7 has no channels of shards: reports go over channels of all nodes there.
func TestReportsOverAnOlderCluster(t *testing.T) {
	t.Parallel()
	s := startCluster(t, "--rename-command", "SPUBLISH", "", "--rename-command", "SSUBSCRIBE", "")
	h := hearReports(t, bus.Options{Addresses: []string{s.addr}, Shards: 2})
	for _, user := range usersOfShards(h.bus) {
		h.start(t, h.bus, user)
		if _, err := h.bus.Take(t.Context(), "a", []ratelimit.Ask{{Key: ratelimit.Key{Class: "GET", User: user}, WindowStart: 17, Limit: 1, Debt: 1}}); err != nil {
			t.Fatal(err)
		}
		if u, ok := h.events.next(t).(bus.Usage); !ok || u.Entries[0].Key.User != user {
			t.Errorf("heard %+v, want the usage of %s", u, user)
		}
	}
}
