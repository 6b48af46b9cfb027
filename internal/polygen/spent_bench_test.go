package polygen

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/internal/redisbus"

	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

// BenchmarkSpent is what a polygen does for a report, besides reading it, if the limits of so many users are spent in every second,
// at any time of it: each user is reported three times by the agents that serve the user, all of which tell of their starts. All
// agents are sent the policies that follow, in a message every 10 ms.
func BenchmarkSpent(b *testing.B) {
	for _, users := range []int{1000, 10_000, 50_000, 100_000} {
		b.Run(fmt.Sprint("users=", users), func(b *testing.B) { benchmarkSpent(b, users, 100, 3) })
	}
}

// benchmarkSpent plays a cluster of so many agents, of which serve serve each user.
func benchmarkSpent(b *testing.B, users, agents, serve int) {
	const together, asks, limit, messages = 10, 3, 10, int(time.Second / sendEvery)
	g := newGenerator(b, "127.0.0.1:1", "one", nil)
	g.pretend(true)
	names, keys := make([]string, agents), make([]ratelimit.Key, users)
	for i := range names {
		names[i] = fmt.Sprintf("edge-%04d#abcdefgh", i)
	}
	// Names with nothing in common: those that count up would compress better.
	chance := rand.New(rand.NewPCG(1, 1))
	for i := range keys {
		keys[i] = ratelimit.Key{Class: "GET", User: fmt.Sprintf("user-%010x", chance.Uint64()>>24)}
	}
	g.observe(time.Now(), redisbus.Registry{Instances: names, Now: time.Now()})
	var reports, policies, plain, packed int
	var reading time.Duration // of an agent
	var unpacker redisbus.Unpacker
	heap := heapInUse()
	send := func() {
		d := g.takeDecisions()
		all, _ := g.policies(&d)
		var lines []byte
		for _, m := range all {
			lines = redisbus.Append(lines, m)
		}
		message := string(redisbus.Pack(lines))
		policies, plain, packed = policies+len(all), plain+len(lines), packed+len(message)
		used := processorTime(b)
		read, err := unpacker.Unpack(message)
		if err == nil {
			_, err = redisbus.Decode(read)
		}
		testkit.Must(b, err)
		reading += processorTime(b) - used
	}
	second := func(now time.Time) {
		sent := 0
		for at := 0; at < users; at += together {
			now := now.Add(time.Duration(at) * time.Second / time.Duration(users))
			for ask := range asks {
				u := redisbus.Usage{Instance: names[(at/together*serve+(ask+int(now.Unix()))%serve)%agents]}
				for _, k := range keys[at : at+together] {
					u.Entries = append(u.Entries, redisbus.UsageEntry{Key: k, Second: now.Unix(), Total: limit - asks + 1 + ask})
				}
				reports += together
				g.observe(now, u)
			}
			for of := range serve {
				s := redisbus.Starts{Instance: names[(at/together*serve+of)%agents], Span: time.Second}
				for _, k := range keys[at : at+together] {
					s.Users = append(s.Users, redisbus.Started{User: k.User, Starts: 4, Classes: []redisbus.StartedClass{{Class: "GET", Starts: 4}}})
				}
				reports += together
				g.observe(now, s)
			}
			if due := (at + together) * messages / users; due > sent {
				send()
				sent = due
			}
		}
		g.rates.Forget(now)
	}
	now := time.Now().Truncate(time.Second)
	for range 8 { // until hints are spread over the seconds
		now = now.Add(time.Second)
		second(now)
	}
	reports, policies, plain, packed, reading = 0, 0, 0, 0, 0
	used, seconds := processorTime(b), 0.0
	for b.Loop() {
		now = now.Add(time.Second)
		second(now)
		seconds++
	}
	b.ReportMetric(float64((processorTime(b)-used-reading).Nanoseconds())/float64(reports), "CPU-ns/report")
	b.ReportMetric(float64(policies)/seconds/float64(users), "policies/user-s")
	b.ReportMetric(float64(plain)/seconds/1000, "kB-plain/s")
	b.ReportMetric(float64(packed)/seconds/1000, "kB-to-each-agent/s")
	b.ReportMetric(reading.Seconds()*1000/seconds, "agent-ms/s")
	b.ReportMetric(float64(heapInUse()-heap)/float64(users), "B/user")
	runtime.KeepAlive(g)
}

// processorTime is what this process has used, with its collector.
func processorTime(b *testing.B) time.Duration {
	var usage syscall.Rusage
	testkit.Must(b, syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

func heapInUse() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
