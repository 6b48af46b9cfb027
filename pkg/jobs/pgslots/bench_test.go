package pgslots_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/internal/proctest"
)

// BenchmarkPairs acquires and releases slots of 200 users in 64 goroutines, on a server
// that is set up as it comes, fsync included. p99 is of a pair, in microseconds.
func BenchmarkPairs(b *testing.B) {
	const users, goroutines = 200, 64
	dsn := proctest.Postgres(b, "fsync=on").DSN
	for _, size := range []int{4, 8, 16, 32} {
		b.Run(fmt.Sprintf("connections=%d", size), func(b *testing.B) {
			slots, _ := fresh(b, open(b, dsn, size))
			ctx := context.Background()
			var next atomic.Int64
			took := make([][]time.Duration, goroutines)
			pairs := func(n int64, keep bool) {
				var all sync.WaitGroup
				next.Store(0)
				for g := range goroutines {
					all.Go(func() {
						for i := next.Add(1); i <= n; i = next.Add(1) {
							c := job(fmt.Sprint("user", i%users), fmt.Sprint(g, "-", i))
							began := time.Now()
							if v, err := slots.Acquire(ctx, c, total(goroutines), long, true); err != nil || !v.Granted {
								b.Errorf("Acquire = %+v, %v, want it granted", v, err)
								return
							}
							if _, err := slots.Release(ctx, c, total(goroutines), long); err != nil {
								b.Error(err)
								return
							}
							if keep {
								took[g] = append(took[g], time.Since(began))
							}
						}
					})
				}
				all.Wait()
			}
			pairs(int64(size)*50, false) // connections are open and statements prepared
			b.ResetTimer()
			pairs(int64(b.N), true)
			b.StopTimer()
			all := slices.Concat(took...)
			slices.Sort(all)
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "pairs/s")
			b.ReportMetric(float64(all[len(all)*99/100].Microseconds()), "p99-µs")
		})
	}
}
