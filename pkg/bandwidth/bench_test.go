package bandwidth_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/pkg/bandwidth"
)

const benchUsers = 100_000

var benchLimit = bandwidth.Limit{Bytes: [2]int64{10 * miB, 5 * miB}}

func heap() float64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}

// BenchmarkAgent is one push of the counters of each of 100 000 users with a
// transfer in progress, every 250 ms, and the ticks and reports between them.
func BenchmarkAgent(b *testing.B) {
	names := make([]string, benchUsers)
	for i := range names {
		names[i] = fmt.Sprint("user-", i)
	}
	before := heap()
	a := bandwidth.NewAgent(bandwidth.Config{Instance: "me"})
	a.Cluster(t0, 2)
	for _, name := range names {
		a.Start(t0, name, benchLimit)
	}
	a.TakeOutput()
	reports := a.Collect(t0, nil)
	reports = reports[:0]
	perUser := (heap() - before) / benchUsers
	said := 0
	b.ReportAllocs()
	b.ResetTimer()
	for n := range b.N {
		at := t0.Add(time.Duration(n) * 250 * time.Millisecond / benchUsers)
		a.Progress(at, names[n%benchUsers], benchLimit, bandwidth.Asked, bandwidth.Count{Active: 1, Moved: [2]int64{int64(n) * 10, 0}})
		if n%(benchUsers/50) == 0 { // 5 ms
			a.Tick(at)
			a.TakeOutput()
			reports = a.Collect(at, reports[:0])
			said += len(reports)
		}
	}
	b.ReportMetric(perUser, "B/user")
	b.ReportMetric(float64(said)/float64(b.N), "reports/op")
}
