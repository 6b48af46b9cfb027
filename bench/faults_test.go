package bench

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/bench/load"
	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/internal/testkit/cluster"
)

// BenchmarkLoadFaults kills or stops each part under load, and shows what the
// clients saw: how long answers took in the first half second and after it,
// whether any failed, and whether a user far below the limit was refused.
func BenchmarkLoadFaults(b *testing.B) {
	const limit = 100
	t := newTable("Faults, two instances, limit 100, 1000 requests/s of which 950 are over it; answer times in ms from when a request was sent",
		"fault", "before p50", "p99", "first 0.5 s p99", "max", "after p50", "p99", "failed", "calm refused", "worst second ÷ limit", "1 s after the fault")
	for range b.N {
		for _, f := range []struct {
			name string
			do   func(c *cluster.Cluster)
		}{
			{"none", func(*cluster.Cluster) {}},
			{"agent killed", func(c *cluster.Cluster) { c.Instances[0].Agent.Kill() }},
			{"agent stopped", func(c *cluster.Cluster) { _ = c.Instances[0].Agent.Signal(syscall.SIGSTOP) }},
			{"polygen killed", func(c *cluster.Cluster) { c.Polygens[0].Kill() }},
			{"polygen stopped", func(c *cluster.Cluster) { _ = c.Polygens[0].Signal(syscall.SIGSTOP) }},
			{"Redis killed", func(c *cluster.Cluster) { c.Redis.Kill() }},
			{"Redis stopped", func(c *cluster.Cluster) { _ = c.Redis.Signal(syscall.SIGSTOP) }},
		} {
			c := cluster.Start(b, cluster.Options{Instances: 2, Limits: limitFile(limit), MaxWait: shippedWait})
			targets, err := load.Spread("even", c.Addresses()...)
			if err != nil {
				b.Fatal(err)
			}
			at := time.Now().Truncate(time.Second).Add(4500 * time.Millisecond)
			done := make(chan struct{})
			go func() {
				defer close(done)
				time.Sleep(time.Until(at))
				f.do(c)
			}()
			r, err := load.Run(b.Context(), load.Spec{
				Targets: targets, Rate: 1000, Duration: 7 * time.Second, Arrivals: load.Poisson, Seed: 1, Align: true,
				Requests: func(i int) load.Request {
					user := "wild"
					if i%20 == 0 {
						user = "calm"
					}
					return load.Users("GET", "/", user)(0)
				},
				Timeout: testkit.Patience,
			})
			if err != nil {
				b.Fatal(err)
			}
			<-done
			between := func(from, to time.Duration) *load.Report {
				return r.Only(func(x load.Result) bool {
					return x.Sent >= at.Add(from).UnixNano() && x.Sent < at.Add(to).UnixNano()
				})
			}
			before, first, after := between(-2*time.Second, 0).Service(), between(0, 500*time.Millisecond).Service(), between(500*time.Millisecond, time.Minute).Service()
			counts, later := r.User("wild").Attribute(limit, clockSlack), 0
			for sec := at.Unix() + 2; sec < at.Unix()+4; sec++ {
				later = max(later, counts.At(sec))
			}
			ms := func(d time.Duration) string { return fmt.Sprintf("%.1f", d.Seconds()*1000) }
			t.row(f.name, ms(before.Quantile(0.5)), ms(before.Quantile(0.99)), ms(first.Quantile(0.99)), ms(first.Quantile(1)),
				ms(after.Quantile(0.5)), ms(after.Quantile(0.99)), fmt.Sprint(len(r.Failures())),
				fmt.Sprint(len(r.User("calm").Refused().Results)), fmt.Sprintf("%.2f", float64(counts.Max())/limit), fmt.Sprintf("%.2f", float64(later)/limit))
			c.Stop()
		}
	}
}
