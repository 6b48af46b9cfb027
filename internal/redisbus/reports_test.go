package redisbus_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/internal/redisbus"
	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

// hearer hears what is reported of users.
type hearer struct {
	*server
	bus    *redisbus.Bus
	events ear
}

func hearReports(t *testing.T, o redisbus.Options) *hearer {
	t.Helper()
	h := &hearer{server: &server{cluster: true}, events: make(ear, 100_000)}
	h.bus = h.openWith(t, o)
	listenBy(t, func(ctx context.Context) {
		_ = h.bus.SubscribeReports(ctx, func(event redisbus.Event) { h.events <- event })
	})
	for range h.bus.Shards() {
		h.events.connected(t)
	}
	return h
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

// A spent pool does not wait until all is handled that agents tell of their users each second.
func TestPoolsDoNotWaitForStarts(t *testing.T) {
	b := startRedis(t).open(t, redisbus.Options{})
	starts, others, release := make(chan redisbus.Event), make(ear, 100), make(chan struct{})
	listenBy(t, func(ctx context.Context) {
		_ = b.SubscribeReports(ctx, func(event redisbus.Event) {
			if _, ok := event.(redisbus.Starts); !ok {
				others <- event
				return
			}
			starts <- event
			<-release
		})
	})
	others.connected(t)
	testkit.Must(t, b.Started(t.Context(), "a", time.Second, []redisbus.Started{{User: "alice", Starts: 1}}))
	<-starts
	defer close(release)
	if _, err := b.Take(t.Context(), "a", []ratelimit.Ask{{Key: ratelimit.Key{Class: "GET", User: "alice"}, WindowStart: 17, Limit: 1, Debt: 1}}); err != nil {
		t.Fatal(err)
	}
	if u, ok := others.next(t).(redisbus.Usage); !ok || u.Entries[0].Key.User != "alice" {
		t.Errorf("heard %+v while starts are handled, want the usage of alice", u)
	}
}

// A Redis Cluster before version 7 has no channels of shards: reports go over channels of all nodes there.
func TestReportsOverAnOlderCluster(t *testing.T) {
	t.Parallel()
	s := startCluster(t, "--rename-command", "SPUBLISH", "", "--rename-command", "SSUBSCRIBE", "")
	h := hearReports(t, redisbus.Options{Addresses: []string{s.addr}, Shards: 2})
	for _, user := range usersOfShards(h.bus) {
		h.start(t, h.bus, user)
		if _, err := h.bus.Take(t.Context(), "a", []ratelimit.Ask{{Key: ratelimit.Key{Class: "GET", User: user}, WindowStart: 17, Limit: 1, Debt: 1}}); err != nil {
			t.Fatal(err)
		}
		if u, ok := h.events.next(t).(redisbus.Usage); !ok || u.Entries[0].Key.User != user {
			t.Errorf("heard %+v, want the usage of %s", u, user)
		}
	}
}
