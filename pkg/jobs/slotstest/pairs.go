package slotstest

import (
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/pkg/jobs"
)

// Pairs measures how often a slot can be acquired and released again: by 64
// goroutines, for 200 users with 3 slots each, half of them limited in their queues
// too. It reports pairs/s, and of single calls the 99th percentile in µs.
func Pairs(b *testing.B, slots jobs.Slots) {
	const users = 200
	limits := [2]jobs.Limits{{Total: 3}, {Total: 3, Queues: map[string]int{"analysis": 2, "specview": 1}}}
	var names [users]string
	for i := range names {
		names[i] = fmt.Sprintf("user-%d@example.com", i)
	}
	if _, err := slots.User(b.Context(), "the first call connects"); err != nil {
		b.Fatal(err)
	}
	var next atomic.Int64
	var mu sync.Mutex
	var calls []time.Duration
	b.ReportAllocs()
	b.SetParallelism((workers + runtime.GOMAXPROCS(0) - 1) / runtime.GOMAXPROCS(0))
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		var took []time.Duration
		for pb.Next() {
			for granted := false; !granted; { // 64 of 600 slots are in use: few are refused
				n := next.Add(1)
				id, limit := strconv.FormatInt(n, 10), limits[n%2]
				claim := jobs.Claim{Job: jobs.Job{User: names[n%users], ID: id, Queue: "analysis"}, Holder: id}
				begin := time.Now()
				verdict, err := slots.Acquire(b.Context(), claim, limit, time.Minute, false)
				acquired := time.Now()
				if granted = verdict.Granted; granted {
					_, err = slots.Release(b.Context(), claim, limit, time.Minute)
					took = append(took, acquired.Sub(begin), time.Since(acquired))
				}
				if err != nil {
					b.Error(err)
					return
				}
			}
		}
		mu.Lock()
		defer mu.Unlock()
		calls = append(calls, took...)
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "pairs/s")
	slices.Sort(calls)
	b.ReportMetric(float64(calls[(len(calls)-1)*99/100].Nanoseconds())/1000, "p99-µs")
}
