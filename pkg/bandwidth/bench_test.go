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

// BenchmarkWatch is one report of one of two instances of each of 100 000 users,
// of which one in ten changes shares, and the ticks between them.
func BenchmarkWatch(b *testing.B) {
	names := make([]string, benchUsers)
	for i := range names {
		names[i] = fmt.Sprint("user-", i)
	}
	before := heap()
	w := bandwidth.NewWatch()
	instances := []string{"a", "b"}
	for _, instance := range instances {
		for _, name := range names {
			w.Observe(t0, bandwidth.Report{Instance: instance, User: name, Active: 1}, benchLimit.Bytes)
		}
		w.Sharings()
	}
	perUser := (heap() - before) / benchUsers
	b.ReportAllocs()
	b.ResetTimer()
	for n := range b.N {
		at := t0.Add(time.Duration(n) * 250 * time.Millisecond / benchUsers)
		r := bandwidth.Report{Instance: instances[n/benchUsers%2], User: names[n%benchUsers], Active: 1}
		if n%10 == 0 {
			r.Active = 1 + n/benchUsers%3
		}
		r.Share = [2]int64{5 * miB, 5 * miB / 2}
		w.Observe(at, r, benchLimit.Bytes)
		if n%(benchUsers/5) == 0 { // 50 ms
			w.Tick(at)
			w.Sharings()
		}
	}
	b.ReportMetric(perUser, "B/user")
}

// BenchmarkInstanceGone is for one of a thousand instances that is gone, of which each of 10 000
// users uses 40.
func BenchmarkInstanceGone(b *testing.B) {
	const users, each = 10_000, 40
	instances := make([]string, 1000)
	for i := range instances {
		instances[i] = fmt.Sprint("i", i)
	}
	now := time.Unix(1_700_000_000, 0)
	w := bandwidth.NewWatch()
	for u := range users {
		for i := range each {
			r := bandwidth.Report{Instance: instances[(u+25*i)%len(instances)], User: fmt.Sprint("user", u), Active: 1}
			w.Observe(now, r, [2]int64{1 << 20, 0})
		}
	}
	for b.Loop() {
		w.Instances(now, instances[1:])
		b.StopTimer()
		for u := 0; u < users; u++ {
			for i := range each {
				if (u+25*i)%len(instances) == 0 {
					w.Observe(now, bandwidth.Report{Instance: instances[0], User: fmt.Sprint("user", u), Active: 1}, [2]int64{1 << 20, 0})
				}
			}
		}
		w.Sharings()
		b.StartTimer()
	}
}
