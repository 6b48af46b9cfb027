package concurrency_test

import (
	"fmt"
	"runtime"
	"slices"
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

// BenchmarkAgentTick is what 5 ms cost while 100 000 users have something in
// progress and nothing happens.
func BenchmarkAgentTick(b *testing.B) {
	for _, instances := range []int{1, 3} {
		b.Run(fmt.Sprintf("%d instances", instances), func(b *testing.B) {
			a, _, _ := busy(b, instances, benchUsers)
			at := t0
			for range 1000 { // users come to stand evenly in time
				at = at.Add(5 * time.Millisecond)
				a.Tick(at)
				talk(a, at)
			}
			b.ReportAllocs()
			for b.Loop() {
				at = at.Add(5 * time.Millisecond)
				a.Tick(at)
				talk(a, at)
			}
		})
	}
}

// BenchmarkAgentRefuse is one request of a user who has no slot left.
func BenchmarkAgentRefuse(b *testing.B) {
	a := concurrency.NewAgent(concurrency.Config{})
	for range 10 {
		a.Start(t0, "u", 10, concurrency.Count{}, concurrency.Places{})
	}
	seen := concurrency.Count{Tracked: 10, Active: 10}
	b.ReportAllocs()
	for b.Loop() {
		if v, _ := a.Start(t0, "u", 10, seen, concurrency.Places{}); v.Allowed {
			b.Fatal("admitted")
		}
	}
}

// BenchmarkWatchTick is what polygen's look each 100 ms costs with 1000 users
// near their limits on 20 instances.
func BenchmarkWatchTick(b *testing.B) {
	w := concurrency.NewWatch(0)
	var live []string
	for i := range 20 {
		live = append(live, fmt.Sprint("i", i))
	}
	w.Instances(t0, live)
	at := t0
	b.ReportAllocs()
	for n := 0; b.Loop(); n++ {
		if n%10 == 0 {
			b.StopTimer()
			for u := range 1000 {
				for _, instance := range live {
					w.Observe(at, concurrency.Report{Instance: instance, User: fmt.Sprint("u", u), Active: 1, Limit: 21})
				}
			}
			w.Decisions()
			b.StartTimer()
		}
		at = at.Add(100 * time.Millisecond)
		w.Tick(at)
		w.Decisions()
	}
}

// BenchmarkEverybody is for how long what concerns 200 000 users holds up the requests that wait for
// the agent's lock: 99 of 100 calls.
func BenchmarkEverybody(b *testing.B) {
	took := make(map[string][]time.Duration)
	for b.Loop() {
		for _, resting := range []bool{false, true} {
			a, at := known(200_000, resting)
			call := func(what string, do func()) {
				began := time.Now()
				do()
				took[what] = append(took[what], time.Since(began))
			}
			for what, change := range map[string]func(){
				"lost":     func() { a.Lost(at, true) },
				"found":    func() { a.Lost(at, false) },
				"cluster":  func() { a.Cluster(at, 5, 0) },
				"limits":   func() { a.Limits(at, func(string) int { return 50 }) },
				"replaced": func() { a.Replaced(at) },
				"synced":   func() { a.Synced(at, at) },
				"drained":  func() { a.Drained(at) },
			} {
				call(what, change)
				for a.CatchingUp() {
					call("tick", func() { a.Tick(at); a.TakeOutput() })
				}
			}
		}
	}
	for what, all := range took {
		slices.Sort(all)
		b.ReportMetric(float64(all[len(all)*99/100].Microseconds()), what+"-µs")
	}
}

// known is an agent that knows of so many users, of those at rest nothing but their places.
func known(users int, resting bool) (*concurrency.Agent, time.Time) {
	a := concurrency.NewAgent(concurrency.Config{Lookup: func(string) (int, bool) { return 100, true }})
	a.Cluster(ms(-60_000), 4, 0)
	at := ms(0)
	for i := range users {
		name := fmt.Sprint("user", i)
		a.Start(at, name, 100, concurrency.Count{}, concurrency.Places{})
		if resting {
			a.Lend(at, name)
		}
	}
	for i := 0; resting && i < 1000; i++ {
		at = at.Add(5 * time.Millisecond)
		a.Tick(at)
		a.Collect(at, true, nil)
		a.TakeOutput()
	}
	return a, at
}

// BenchmarkWatch is for 100 000 users near their limits on four of a thousand instances: a Tick in
// which a tenth of them has changed, and an instance that is gone.
func BenchmarkWatch(b *testing.B) {
	const users = 100_000
	instances := make([]string, 1000)
	for i := range instances {
		instances[i] = fmt.Sprint("i", i)
	}
	names := make([]string, users)
	for i := range names {
		names[i] = fmt.Sprint("user", i)
	}
	report := func(w *concurrency.Watch, at time.Time, user, active int) {
		for i := range 4 {
			w.Observe(at, concurrency.Report{Instance: instances[(user+i)%len(instances)], User: names[user], Active: active, Limit: 40})
		}
	}
	at := ms(0)
	w := concurrency.NewWatch(5)
	w.Instances(at, instances)
	for i := range names {
		report(w, at, i, 9)
	}
	w.Tick(at)
	w.Decisions()
	b.Run("tick", func(b *testing.B) {
		turn := 0
		for b.Loop() {
			b.StopTimer()
			for i := turn % 10; i < users; i += 10 {
				report(w, at, i, 8+turn/10%2)
			}
			turn++
			at = at.Add(100 * time.Millisecond)
			b.StartTimer()
			w.Tick(at)
			w.Decisions()
		}
	})
	b.Run("instance gone", func(b *testing.B) {
		for b.Loop() {
			w.Instances(at, instances[1:])
			b.StopTimer()
			for i := 0; i < users; i += len(instances) {
				report(w, at, i, 9)
			}
			b.StartTimer()
		}
	})
}
