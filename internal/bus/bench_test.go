package bus_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/internal/bus"
	"github.com/sluice-qos/sluice/internal/bus/embedded"
	"github.com/sluice-qos/sluice/internal/proctest"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

// BenchmarkTake measures one agent that waits for each answer, so that its time
// per operation is the round trip, and what 8 for each processor get. Redis' own
// processor time says what it could do with a processor to itself.
func BenchmarkTake(b *testing.B) {
	server, addr := proctest.Redis(b)
	for _, n := range []int{1, 16, 256} {
		b.Run(fmt.Sprintf("redis/one/%d", n), func(b *testing.B) { benchmarkTake(b, server, addr, n, 0) })
		b.Run(fmt.Sprintf("redis/all/%d", n), func(b *testing.B) { benchmarkTake(b, server, addr, n, 8) })
	}
	addr, stop, err := embedded.Start()
	if err != nil {
		b.Fatal(err)
	}
	defer stop()
	b.Run("embedded/one/16", func(b *testing.B) { benchmarkTake(b, nil, addr, 16, 0) })
}

func benchmarkTake(b *testing.B, server *proctest.Process, addr string, n, parallel int) {
	agent, err := bus.Open(bus.Options{Addresses: []string{addr}, Timeout: 5 * time.Second})
	if err != nil {
		b.Fatal(err)
	}
	defer agent.Close()
	var batches atomic.Int64
	take := func() {
		// A thousand users ask again and again, in another second every 10 000 batches.
		batch := batches.Add(1)
		asks := make([]ratelimit.Ask, n)
		for i := range asks {
			user := fmt.Sprintf("user-%d", (int(batch)*n+i)%1000)
			asks[i] = ratelimit.Ask{Key: ratelimit.Key{Class: "GET", User: user}, Second: 1760000000 + batch/10000,
				Limit: 1 << 30, Need: 1, Ahead: 2, Instances: 4}
		}
		if _, err := agent.Take(context.Background(), "instance", asks); err != nil {
			b.Error(err)
		}
	}
	take() // the first knows neither the connection nor the script
	var before time.Duration
	if server != nil {
		before, _ = server.CPU()
	}
	b.ReportAllocs()
	b.ResetTimer()
	if parallel == 0 {
		for b.Loop() {
			take()
		}
	} else {
		b.SetParallelism(parallel)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				take()
			}
		})
	}
	b.ReportMetric(float64(b.N*n)/b.Elapsed().Seconds(), "entries/s")
	if server != nil {
		after, _ := server.CPU()
		b.ReportMetric(float64(b.N*n)/(after-before).Seconds(), "entries/redis-s")
	}
}
