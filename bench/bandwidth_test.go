package bench

import (
	"fmt"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/bench/transfer"
	"github.com/sluice-qos/sluice/internal/testkit/cluster"
)

const mib = 1 << 20

func bandwidthFile(limit int) string {
	return fmt.Sprintf("version: 1\ndefault_tier: free\ntiers: {free: {bandwidth: {down: %dMiB, up: %dMiB}}, none: {}}\nusers: {other: none}\n", limit, limit)
}

// BenchmarkLoadBandwidth compares what a user's streams move with the user's limit, over
// one and over several instances.
func BenchmarkLoadBandwidth(b *testing.B) {
	t := newTable("Bandwidth: moved ÷ limit in the mean of the seconds after the first, worst second (any 1 s window) beside it, first second, and Jain's index over the streams",
		"instances", "limit MiB/s", "streams", "direction", "HTTP", "mean", "worst", "first", "Jain", "errors")
	const run = 4 * time.Second
	for range b.N {
		for _, instances := range []int{1, 2, 4} {
			for _, limit := range []int{1, 10, 50, 100} {
				if instances > 1 && limit == 50 {
					continue
				}
				c, o := bandwidthCluster(b, instances, bandwidthFile(limit))
				for _, streams := range []int{1, 2, 8, 64} {
					for _, up := range []bool{false, true} {
						for _, h2 := range []bool{false, true} {
							if instances > 1 && (h2 || streams == 1) || h2 && streams != 8 {
								continue
							}
							var load []transfer.Stream
							user := fmt.Sprint("u", streams, up, h2)
							for i := range streams {
								load = append(load, transfer.Stream{Address: c.Addresses()[i%instances], User: user, Up: up, H2: h2, Group: i / 8})
							}
							r := transfer.Run(b.Context(), o, load, run)
							rate := float64(limit * mib)
							t.row(fmt.Sprint(instances), fmt.Sprint(limit), fmt.Sprint(streams), map[bool]string{false: "down", true: "up"}[up], map[bool]string{false: "1", true: "2"}[h2],
								fmt.Sprintf("%.3f", r.Rate(time.Second, run)/rate), fmt.Sprintf("±%.3f", r.Worst(time.Second, run, rate)),
								fmt.Sprintf("%.3f", r.Rate(0, time.Second)/rate), fmt.Sprintf("%.3f", r.Jain(time.Second, run)), fmt.Sprint(len(r.Errors)))
						}
					}
				}
				c.Stop()
				_ = o.Close()
			}
		}
	}
}

func bandwidthCluster(tb testing.TB, instances int, limits string) (*cluster.Cluster, *transfer.Origin) {
	tb.Helper()
	o, err := transfer.NewOrigin()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = o.Close() })
	return cluster.Start(tb, cluster.Options{Instances: instances, Limits: limits, Origin: o.Addr()}), o
}
