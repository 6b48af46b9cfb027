package redisbus_test

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/internal/redisbus"
	"github.com/sluice-qos/sluice/internal/redisbus/embedded"
	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

// BenchmarkTake measures one agent that waits for each answer, so that its time
// per operation is the round trip, the same with 16 shards in one Redis, and what 8 for each processor get. Redis' own
// processor time says what it could do with a processor to itself.
func BenchmarkTake(b *testing.B) {
	benchmark(b, func(agent *redisbus.Bus, batch, n int) error {
		// A thousand users ask again and again, in another second every 10 000 batches.
		asks := make([]ratelimit.Ask, n)
		for i := range asks {
			user := fmt.Sprintf("user-%d", (batch*n+i)%1000)
			asks[i] = ratelimit.Ask{Key: ratelimit.Key{Class: "GET", User: user}, Seq: uint64(batch), WindowStart: int64(1760000000 + batch/10000),
				Limit: 1 << 30, Need: 1, Ahead: 2, Instances: 4}
		}
		// Batches of one instance are in order, as an agent's are.
		_, err := agent.Take(context.Background(), fmt.Sprint("instance-", batch%64), asks)
		return err
	})
}

// BenchmarkAddEvents measures what two instances tell of a second, of n users each.
func BenchmarkAddEvents(b *testing.B) {
	server, addr := testkit.Redis(b)
	for _, n := range []int{10, 100, 1000} {
		events := make([]redisbus.EventsOf, n)
		for i := range events {
			events[i] = redisbus.EventsOf{Name: fmt.Sprintf("user-%d", i), Classes: []redisbus.StartedClass{{Class: "GET", Starts: int64(i%30 + 1)}}, Ends: int64(i%30 + 1)}
		}
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			benchmarkAt(b, server, addr, n, 0, 1, func(agent *redisbus.Bus, batch, n int) error {
				return agent.AddEvents(context.Background(), fmt.Sprint(n, "/", batch), redisbus.Events{Second: int64(1_760_000_000 + n*1_000_000 + batch/2), Users: events})
			})
		})
	}
}

// benchmark calls ask, which asks n times in one call; batch counts the calls.
func benchmark(b *testing.B, ask func(agent *redisbus.Bus, batch, n int) error) {
	server, addr := testkit.Redis(b)
	for _, n := range []int{1, 16, 256} {
		b.Run(fmt.Sprintf("redis/one/%d", n), func(b *testing.B) { benchmarkAt(b, server, addr, n, 0, 1, ask) })
		b.Run(fmt.Sprintf("redis/one/%d/16 shards", n), func(b *testing.B) { benchmarkAt(b, server, addr, n, 0, 16, ask) })
		b.Run(fmt.Sprintf("redis/all/%d", n), func(b *testing.B) { benchmarkAt(b, server, addr, n, 8, 1, ask) })
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.Must(b, err)
	addr = l.Addr().String()
	stop, err := embedded.Start(l, "")
	testkit.Must(b, err)
	defer stop()
	b.Run("embedded/one/16", func(b *testing.B) { benchmarkAt(b, nil, addr, 16, 0, 1, ask) })
}

func benchmarkAt(b *testing.B, server *testkit.Process, addr string, n, parallel, shards int, ask func(agent *redisbus.Bus, batch, n int) error) {
	agent, err := redisbus.Open(redisbus.Options{Addresses: []string{addr}, Shards: shards, Timeout: 5 * time.Second})
	testkit.Must(b, err)
	defer agent.Close()
	var batches atomic.Int64
	call := func() {
		if err := ask(agent, int(batches.Add(1)), n); err != nil {
			b.Error(err)
		}
	}
	call() // the first knows neither the connection nor the script
	var before time.Duration
	if server != nil {
		before, _ = server.CPU()
	}
	b.ReportAllocs()
	b.ResetTimer()
	if parallel == 0 {
		for b.Loop() {
			call()
		}
	} else {
		b.SetParallelism(parallel)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				call()
			}
		})
	}
	b.ReportMetric(float64(b.N*n)/b.Elapsed().Seconds(), "entries/s")
	if server != nil {
		after, _ := server.CPU()
		b.ReportMetric(float64(b.N*n)/(after-before).Seconds(), "entries/redis-s")
	}
}
