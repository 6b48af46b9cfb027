package redisbus_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/internal/redisbus"
	"github.com/sluice-qos/sluice/internal/testkit"
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

func openBus(b *testing.B, addr string) *redisbus.Bus {
	b.Helper()
	opened, err := redisbus.Open(redisbus.Options{Addresses: []string{addr}, Timeout: 5 * time.Second})
	testkit.Must(b, err)
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
