package bench

import (
	"context"
	"fmt"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/bench/closed"
	"github.com/sluice-qos/sluice/internal/testkit/cluster"
)

// BenchmarkLoadProgress drives a limit of requests in progress with clients that
// each wait for their answer, and compares what runs at the origin with it.
func BenchmarkLoadProgress(b *testing.B) {
	const limit, warmUp, measured = 10, 3 * time.Second, 15 * time.Second
	type run struct {
		instances, clients int
		ramp, retry        time.Duration
	}
	var runs []run
	for _, instances := range []int{1, 2, 4} {
		runs = append(runs,
			run{instances, 50, 0, 50 * time.Millisecond},
			run{instances, 12, 0, 50 * time.Millisecond},
			run{instances, 200, warmUp, 50 * time.Millisecond},
			run{instances, 50, 0, time.Second},
		)
	}
	t := newTable(fmt.Sprintf("Requests in progress: at the origin, limit %d, requests of 0.15 to 2.85 s. 'gap' is from the end of one, while %d ran, to the\n"+
		"beginning of the next, the clients' own pause included", limit, limit),
		"instances", "clients", "retry ms", "max", "mean", "gap p50 ms", "gap p99 ms", "flips/s", "refused/s", "failed")
	for range b.N {
		for _, r := range runs {
			o := closed.NewOrigin(limit)
			ctx, cancel := context.WithCancel(b.Context())
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				b.Fatal(err)
			}
			go o.Serve(ctx, l)
			c := cluster.Start(b, cluster.Options{
				Instances: r.instances, Origin: l.Addr().String(), MaxWait: shippedWait,
				Limits: fmt.Sprintf("version: 1\ndefault_tier: free\ntiers: {free: {concurrent: %d}}\n", limit),
			})
			time.AfterFunc(warmUp, o.Begin)
			var counts closed.Counts
			time.AfterFunc(warmUp+measured, func() { counts = o.Counts() })
			report := closed.Run(ctx, closed.Spec{
				Addresses: c.Addresses(), User: "alice", Clients: r.clients, Ramp: r.ramp, Retry: r.retry,
				Duration: warmUp + measured + 100*time.Millisecond, Seed: 1,
			})
			flips := cluster.Metric(b, c.Polygens[0].Admin, `sluice_policies_sent_total{kind="unblock",mode="enforce"}`) * 2
			whole := (warmUp + measured).Seconds()
			t.row(fmt.Sprint(r.instances), fmt.Sprint(r.clients), fmt.Sprint(r.retry.Milliseconds()),
				fmt.Sprint(counts.Most), fmt.Sprintf("%.2f", counts.Mean), percentile(counts.Gaps, 0.5), percentile(counts.Gaps, 0.99),
				fmt.Sprintf("%.1f", flips/whole), fmt.Sprintf("%.0f", float64(report.Statuses[429])/whole), fmt.Sprint(report.Failed))
			if report.Failed > 0 {
				b.Log(report.Errors)
			}
			c.Stop()
			cancel()
		}
	}
}

// percentile is of durations, in milliseconds.
func percentile(d []time.Duration, p float64) string {
	if len(d) == 0 {
		return "-"
	}
	slices.Sort(d)
	return fmt.Sprintf("%.1f", d[int(p*float64(len(d)-1))].Seconds()*1000)
}
