package concurrency_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/pkg/concurrency"
)

const benchUsers = 100_000

// busy returns an agent of a cluster with so many users who have one request each
// in progress, their names, and the heap bytes of each, the slots held included.
func busy(b *testing.B, instances, users int) (*concurrency.Agent, []string, float64) {
	b.Helper()
	names := make([]string, users)
	for i := range names {
		names[i] = fmt.Sprint("user-", i)
	}
	before := heap()
	a := concurrency.NewAgent(concurrency.Config{Instance: "me"})
	a.Cluster(t0, instances, 0)
	for _, name := range names {
		a.Start(t0, name, 10, concurrency.Count{}, concurrency.Places{})
	}
	talk(a, t0)
	for _, name := range names {
		a.Progress(t0, name, 10, concurrency.Count{Tracked: 1, Active: 1})
	}
	talk(a, t0)
	return a, names, (heap() - before) / float64(users)
}

func heap() float64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}

// talk has every ask granted, and decided requests taken.
func talk(a *concurrency.Agent, at time.Time) (asks int) {
	var batch []concurrency.Ask
	for {
		batch = a.Collect(at, true, batch[:0])
		if len(batch) == 0 {
			a.TakeOutput()
			return asks
		}
		asks += len(batch)
		for _, ask := range batch {
			a.Reply(at, ask, concurrency.Grant{Held: ask.Want, Free: ask.Limit - ask.Want})
		}
		a.TakeOutput()
	}
}

// BenchmarkAgentRequest is one request of one of many users: its start, HAProxy's
// word that it is in progress and that it has ended, and what that leads to.
func BenchmarkAgentRequest(b *testing.B) {
	for _, instances := range []int{1, 3} {
		b.Run(fmt.Sprintf("%d instances", instances), func(b *testing.B) {
			a, names, bytes := busy(b, instances, benchUsers)
			tracked := make([]int64, len(names))
			at, asks, n := t0, 0, 0
			b.ReportAllocs()
			for b.Loop() {
				i := n * 7919 % len(names)
				tracked[i]++
				a.Start(at, names[i], 10, concurrency.Count{Tracked: tracked[i], Active: 1}, concurrency.Places{})
				a.Progress(at, names[i], 10, concurrency.Count{Tracked: tracked[i] + 1, Active: 2})
				a.Progress(at, names[i], 10, concurrency.Count{Tracked: tracked[i] + 1, Active: 1})
				if n++; n%100 == 0 { // 20 000 requests a second
					at = at.Add(5 * time.Millisecond)
					a.Tick(at)
					asks += talk(a, at)
				}
			}
			b.ReportMetric(bytes, "B/user")
			b.ReportMetric(float64(asks)/float64(n), "asks/op")
		})
	}
}
