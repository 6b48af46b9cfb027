package slotstest

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
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
	names := make([]string, users)
	for i := range names {
		names[i] = fmt.Sprintf("user-%d@example.com", i)
	}
	ctx := context.Background()
	if _, err := slots.User(ctx, "the first call connects"); err != nil {
		b.Fatal(err)
	}
	took := make([][]time.Duration, workers)
	b.ReportAllocs()
	b.ResetTimer()
	var all sync.WaitGroup
	for worker := range workers {
		all.Go(func() {
			took[worker] = make([]time.Duration, 0, 2*(b.N/workers+1))
			user := worker * 7
			for i := worker; i < b.N; i += workers {
				id := strconv.Itoa(i)
				for granted := false; !granted; { // 64 of 600 slots are in use: few are refused
					user = (user + 1) % users
					c := jobs.Claim{Job: jobs.Job{User: names[user], ID: id, Queue: "analysis"}, Holder: id}
					l := limits[user%2]
					begin := time.Now()
					v, err := slots.Acquire(ctx, c, l, time.Minute, false)
					acquired := time.Now()
					if err != nil {
						b.Error(err)
						return
					}
					if granted = v.Granted; !granted {
						continue
					}
					if _, err := slots.Release(ctx, c, l, time.Minute); err != nil {
						b.Error(err)
						return
					}
					took[worker] = append(took[worker], acquired.Sub(begin), time.Since(acquired))
				}
			}
		})
	}
	all.Wait()
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "pairs/s")
	calls := slices.Concat(took...)
	slices.Sort(calls)
	if len(calls) > 0 {
		b.ReportMetric(float64(calls[len(calls)*99/100].Nanoseconds())/1000, "p99-µs")
	}
}
