package bench

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/bench/load"
	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/internal/testkit/cluster"
)

// manyUsers is a limit file of so many users, far above what they use. The comment
// makes it another version.
func manyUsers(users, version int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# version %d\nversion: 1\ndefault_tier: free\ntiers: {free: {requests: {GET: 100000}, concurrent: 10000}, pro: {requests: {GET: 200000}}}\nusers:\n", version)
	for i := range users {
		fmt.Fprintf(&b, "  user-%07d: pro\n", i)
	}
	return b.String()
}

// next is where the limit file lies that is used for the i-th reload.
func next(c *cluster.Cluster, i int) string { return fmt.Sprint(c.LimitsFile, ".", i) }

// BenchmarkLoadReload offers 10 000 requests per second, while the limit file stays
// as it is, and while it changes every second.
func BenchmarkLoadReload(b *testing.B) {
	const rate = 10_000
	origin := testkit.FreeAddr(b)
	file := filepath.Join(b.TempDir(), "origin.cfg")
	if err := os.WriteFile(file, []byte(cheapOrigin), 0o644); err != nil {
		b.Fatal(err)
	}
	testkit.HAProxy(b, file, origin, "BIND="+origin)
	t := newTable(fmt.Sprintf("Reload: %d requests/s of 100 users below their limits, 8 s; the limit file changes every second, or stays", rate),
		"users in the file", "reloads", "p50 µs", "p99 µs", "p99.9 µs", "refused", "failed")
	for range b.N {
		for _, users := range []int{10, 10_000, 100_000} {
			c := cluster.Start(b, cluster.Options{Limits: manyUsers(users, 0), MaxWait: shippedWait, Origin: origin})
			for _, changes := range []bool{false, true, false, true} {
				// Written beforehand: that is no part of a reload, and the load generator
				// should not be the one that is busy.
				for i := range 10 {
					if err := os.WriteFile(next(c, i), []byte(manyUsers(users, i+1)), 0o644); err != nil {
						b.Fatal(err)
					}
				}
				runtime.GC()
				done, reloads := make(chan struct{}), 0
				var changing sync.WaitGroup
				if changes {
					changing.Go(func() {
						for {
							select {
							case <-done:
								return
							case <-time.After(time.Second):
								if err := os.Rename(next(c, reloads), c.LimitsFile); err != nil {
									b.Error(err)
								}
								reloads++
							}
						}
					})
				}
				targets, err := load.Spread("even", c.Addresses()...)
				if err != nil {
					b.Fatal(err)
				}
				names := make([]string, 100)
				for i := range names {
					names[i] = fmt.Sprintf("user-%07d", i)
				}
				report, err := load.Run(b.Context(), load.Spec{
					Targets: targets, Rate: rate, Duration: 8 * time.Second, Arrivals: load.Poisson, Seed: 1,
					Requests: load.Users("GET", "/", names...),
				})
				close(done)
				changing.Wait()
				if err != nil {
					b.Fatal(err)
				}
				took := report.Latency()
				t.row(fmt.Sprint(users), fmt.Sprint(reloads), micro(took.Quantile(.5)), micro(took.Quantile(.99)), micro(took.Quantile(.999)),
					fmt.Sprint(len(report.Refused().Results)), fmt.Sprint(len(report.Results)-len(report.Admitted().Results)-len(report.Refused().Results)))
			}
			c.Stop()
		}
	}
}
