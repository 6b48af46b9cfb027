package bus_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
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

// hearer hears what is reported of the users of some shards.
type hearer struct {
	*server
	bus    *bus.Bus
	wanted chan []int
	events ear
}

func hearReports(t *testing.T, o bus.Options, wanted ...int) *hearer {
	t.Helper()
	h := &hearer{server: &server{cluster: true}, wanted: make(chan []int), events: make(ear, 100_000)}
	h.bus = h.openWith(t, o)
	listenBy(t, func(ctx context.Context) {
		_ = h.bus.SubscribeReports(ctx, h.wanted, func(event bus.Event) { h.events <- event })
	})
	h.wanted <- wanted
	for range wanted {
		h.events.hears(t)
	}
	return h
}

// await waits for an event of a shard, and returns what was heard before.
func (h *hearer) await(t *testing.T, want bus.Heard) (before []bus.Event) {
	t.Helper()
	for {
		event := h.events.any(t)
		if event == bus.Event(want) {
			return before
		}
		before = append(before, event)
	}
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

// On a Redis Cluster each hears the shards that it wants, and no others, whatever is reported; and it may change its mind.
func TestReportsGoToWhoWantsTheShard(t *testing.T) {
	t.Parallel()
	const shards = 6
	addrs, _ := proctest.RedisCluster(t)
	o := bus.Options{Addresses: addrs, Shards: shards}
	agent, even, odd := (&server{cluster: true}).openWith(t, o), hearReports(t, o, 0, 2, 4), hearReports(t, o, 1, 3, 5)
	users, second := usersOfShards(agent), time.Now().Unix()
	var reports []bandwidth.Report
	var started []bus.Started
	for shard, user := range users {
		key := ratelimit.Key{Class: "GET", User: user}
		if agent.ShardOf(key.User) != shard {
			t.Fatalf("%s is in shard %d, want %d", key.User, agent.ShardOf(key.User), shard)
		}
		reports, started = append(reports, bandwidth.Report{User: user, Active: 1}), append(started, bus.Started{User: user, Starts: 1})
		for what, do := range map[string]func() error{
			"Take": func() error {
				_, err := agent.Take(t.Context(), "a", []ratelimit.Ask{{Key: key, WindowStart: second, Limit: 1, Debt: 1}, {Key: key, WindowStart: second, Limit: 1, Burst: 1, Debt: 1}})
				return err
			},
			"Slots": func() error {
				_, err := agent.Slots(t.Context(), "a", 1, []concurrency.Ask{{User: user, Seq: 1, Want: 1, Active: 1, Limit: 1}})
				return err
			},
			"PublishUnblock": func() error { return agent.PublishUnblock(t.Context(), bus.Unblock{User: user}) },
		} {
			if err := do(); err != nil {
				t.Fatalf("%s of %s = %v", what, user, err)
			}
		}
	}
	if err := errors.Join(agent.Demand(t.Context(), "a", reports), agent.Started(t.Context(), "a", time.Second, started)); err != nil {
		t.Fatal(err)
	}
	for _, h := range []*hearer{even, odd} {
		kinds := map[string]int{}
		for range 3 * 6 {
			kinds[fmt.Sprintf("%T", h.events.next(t))]++
		}
		want := map[string]int{"bus.Usage": 6, "bus.Progress": 3, "bus.Demand": 3, "bus.Starts": 3, "bus.Unblock": 3}
		if fmt.Sprint(kinds) != fmt.Sprint(want) {
			t.Errorf("heard %v, want %v", kinds, want)
		}
	}

	odd.wanted <- []int{1, 2, 3}
	odd.await(t, bus.Heard{Shard: 2})
	odd.start(t, agent, users[2])
	odd.start(t, agent, users[1])
	before := odd.metric(t, "sluice_bus_messages_total")
	even.wanted <- []int{5}
	even.start(t, agent, users[5])
	if err := agent.Started(t.Context(), "a", time.Second, started[3:4]); err != nil {
		t.Fatal(err)
	}
	if s, ok := odd.events.next(t).(bus.Starts); !ok || s.Users[0].User != users[3] {
		t.Errorf("heard %+v, want what was reported of %s alone", s, users[3])
	}
	if n := odd.metric(t, "sluice_bus_messages_total") - before; n != 1 {
		t.Errorf("%v messages since, want the one of shard 3, and none of shard 5", n)
	}
}

// The loss of a master silences its shards and no others, until a replica takes its place. Of a slot that moves to another
// node reports are heard again from there.
func TestReportsOfALostMasterAndAMovedSlot(t *testing.T) {
	t.Parallel()
	const shards = 6
	addrs, nodes := proctest.RedisCluster(t, "--cluster-node-timeout", "60000") // no failover but by hand
	o := bus.Options{Addresses: addrs, Shards: shards, Timeout: time.Second}
	agent, h := (&server{cluster: true}).openWith(t, o), hearReports(t, o, 0, 1, 2, 3, 4, 5)
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
	silent, said := map[int]bool{}, map[int]bool{}
	for shard := range master {
		silent[shard], said[shard] = master[shard] == lost, false
	}
	for !maps.Equal(said, silent) { // on a slow machine others may be lost for a moment
		if heard, ok := h.events.any(t).(bus.Heard); ok {
			said[heard.Shard] = heard.Lost
		}
	}
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
	for _, user := range users {
		h.start(t, agent, user)
	}

	moved := slices.IndexFunc(master, func(m int) bool { return m != lost })
	from, to := addrs[master[moved]], addrs[3-lost-master[moved]]
	toID := nodeID(t, addrs, 3-lost-master[moved])
	h.start(t, agent, users[moved])
	h.wanted <- []int{moved}
	for len(h.events) > 0 {
		<-h.events
	}
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
	h.await(t, bus.Heard{Shard: moved, Lost: true})
	h.await(t, bus.Heard{Shard: moved})
	h.start(t, agent, users[moved])
}

// A spent pool does not wait until all is handled that agents tell of their users each second.
func TestPoolsDoNotWaitForStarts(t *testing.T) {
	b := startRedis(t).open(t, bus.Options{})
	wanted, starts, others, release := make(chan []int, 1), make(chan bus.Event), make(ear, 100), make(chan struct{})
	wanted <- []int{0}
	listenBy(t, func(ctx context.Context) {
		_ = b.SubscribeReports(ctx, wanted, func(event bus.Event) {
			if _, ok := event.(bus.Starts); !ok {
				others <- event
				return
			}
			starts <- event
			<-release
		})
	})
	others.hears(t)
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
	h := hearReports(t, bus.Options{Addresses: []string{s.addr}, Shards: 2}, 0, 1)
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
