package redisbus_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-qos/sluice/internal/redisbus"
	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/pkg/concurrency"
)

// BenchmarkHeartbeats measures what the heartbeats of n instances cost Redis: a run is one of each.
// cpu-us/heartbeat is what Redis used for one, the network included, and %core what part of a
// processor those of all take that beat every BeatEvery.
func BenchmarkHeartbeats(b *testing.B) {
	for _, n := range []int{10, 100, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			server, addr := testkit.Redis(b)
			agents := openBus(b, addr)
			round := func() {
				inParallel(8, n, func(instance int) {
					if _, err := agents.Register(context.Background(), fmt.Sprintf("edge-%04d#abcdefgh", instance), "0123456789abcdef", ""); err != nil {
						b.Error(err)
					}
				})
			}
			for range 4 {
				round() // until all know each other
			}
			before, _ := server.CPU()
			beats := 0
			for b.Loop() {
				round()
				beats += n
			}
			after, _ := server.CPU()
			each := (after - before).Seconds() / float64(beats)
			b.ReportMetric(each*1e6, "cpu-us/heartbeat")
			b.ReportMetric(100*each*float64(n)/redisbus.BeatEvery.Seconds(), "%core")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// BenchmarkSlotsAmong measures what an ask for slots costs Redis in a cluster of n instances,
// three of which serve the user, near the limit.
func BenchmarkSlotsAmong(b *testing.B) {
	for _, n := range []int{10, 100, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			_, addr := testkit.Redis(b)
			agent, ctx := openBus(b, addr), context.Background()
			for i := range n {
				if err := agent.Alive(ctx, fmt.Sprintf("edge-%04d#abcdefgh", i), 0); err != nil {
					b.Fatal(err)
				}
			}
			before, calls := time.Duration(0), 0
			for b.Loop() {
				if calls == 10 { // by then the script is known
					before = scriptTime(b, addr)
				}
				calls++
				ask := concurrency.Ask{User: "alice", Seq: uint64(calls), Want: 3, Active: 3, Limit: 4000, Portion: 1}
				if _, err := agent.Slots(ctx, fmt.Sprintf("edge-%04d#abcdefgh", calls%3), n, []concurrency.Ask{ask}); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64((scriptTime(b, addr)-before).Nanoseconds())/1e3/float64(max(1, calls-9)), "us/ask")
		})
	}
}

func openBus(b *testing.B, addr string) *redisbus.Bus {
	b.Helper()
	opened, err := redisbus.Open(redisbus.Options{Addresses: []string{addr}, Timeout: 5 * time.Second})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { opened.Close() })
	return opened
}

// inParallel calls do for 0 to n-1, from several goroutines.
func inParallel(goroutines, n int, do func(i int)) {
	var all sync.WaitGroup
	for g := range goroutines {
		all.Go(func() {
			for i := g; i < n; i += goroutines {
				do(i)
			}
		})
	}
	all.Wait()
}

// scriptTime is for how long Redis has run scripts.
func scriptTime(b *testing.B, addr string) (sum time.Duration) {
	b.Helper()
	client := redis.NewClient(&redis.Options{Addr: addr, Protocol: 2, DisableIdentity: true})
	defer client.Close()
	stats, err := client.Info(context.Background(), "commandstats").Result()
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(stats) {
		if name, rest, _ := strings.Cut(line, ":"); name == "cmdstat_evalsha" || name == "cmdstat_eval" {
			var calls, usec int64
			if _, err := fmt.Sscanf(rest, "calls=%d,usec=%d", &calls, &usec); err != nil {
				b.Fatal(err)
			}
			sum += time.Duration(usec) * time.Microsecond
		}
	}
	return sum
}
