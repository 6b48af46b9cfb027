package polygen

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/internal/bus"
	"github.com/sluice-qos/sluice/internal/parts"
	"github.com/sluice-qos/sluice/internal/policy"
	"github.com/sluice-qos/sluice/internal/proctest"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

// userOf is a user of a part where there is one shard, another one for each attempt.
func userOf(part, attempt int) string { return userAmong(1, part, attempt) }

// userAmong is a user of a part where there are so many shards.
func userAmong(shards parts.Shards, part, attempt int) string {
	for i := 0; ; i++ {
		if user := fmt.Sprintf("user-%d-%d", attempt, i); shards.PartOf(user) == part {
			return user
		}
	}
}

// throttles is how often each user was throttled.
func (a *agents) throttles() map[string]int {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := map[string]int{}
	for _, m := range a.heard {
		if m, ok := m.(policy.Throttle); ok {
			n[m.Key.User]++
		}
	}
	return n
}

// throttleEverywhere has a user of each part spend a limit, until all are throttled, each once.
func (a *agents) throttleEverywhere(attempt *int) {
	a.t.Helper()
	shards := parts.Shards(a.bus.Shards())
	proctest.Eventually(a.t, "a user of each part is throttled", func() error {
		*attempt++ // each with users of its own: a slow machine may let a second go by
		uses := map[ratelimit.Key]int{}
		for part := range parts.Count {
			uses[ratelimit.Key{Class: "GET", User: userAmong(shards, part, *attempt)}] = 10
		}
		if _, err := a.use("one", uses); err != nil {
			return err
		}
		return proctest.Poll(time.Second, func() error {
			heard := a.throttles()
			for k := range uses {
				if heard[k.User] > 1 {
					a.t.Fatalf("%s of part %d was throttled %d times: two polygens decide", k.User, shards.PartOf(k.User), heard[k.User])
				}
				if heard[k.User] == 0 {
					return fmt.Errorf("nothing heard of %s of part %d", k.User, shards.PartOf(k.User))
				}
			}
			return nil
		})
	})
}

// Three divide the users, and each sends what is about its own. If one dies, or joins, only its parts move, and all
// users are decided about again.
func TestPolygensDivideTheUsers(t *testing.T) {
	t.Parallel()
	_, addr := proctest.Redis(t)
	a, attempt := startAgents(t, addr), 0
	one := newGenerator(t, addr, "one", nil).run(t).awaitParts(t, parts.Count)
	two, cut := cutOffable(t, addr, "two")
	two.run(t)
	two.awaitParts(t, parts.Count/2)
	three := newGenerator(t, addr, "three", nil).run(t)
	one.awaitParts(t, 22)
	two.awaitParts(t, 22)
	three.awaitParts(t, 20)
	a.throttleEverywhere(&attempt)

	before := [2]parts.Set{one.division.DecidedParts(time.Now()), three.division.DecidedParts(time.Now())}
	cut.Hold() // as if it had died
	one.awaitParts(t, parts.Count/2)
	three.awaitParts(t, parts.Count/2)
	two.awaitParts(t, 0) // and it knows
	for i, g := range []*generator{one, three} {
		if lost := before[i] &^ g.division.DecidedParts(time.Now()); lost != 0 {
			t.Errorf("%s lost the parts %v when another one died", g.options.Name, lost.Numbers())
		}
	}
	a.throttleEverywhere(&attempt)

	cut.To(addr)
	before = [2]parts.Set{one.division.DecidedParts(time.Now()), three.division.DecidedParts(time.Now())}
	two.awaitParts(t, 20)
	for i, g := range []*generator{one.awaitParts(t, 22), three.awaitParts(t, 22)} {
		if more := g.division.DecidedParts(time.Now()) &^ before[i]; more != 0 {
			t.Errorf("%s got the parts %v when another one came", g.options.Name, more.Numbers())
		}
	}
	a.throttleEverywhere(&attempt)

	three.stop() // which gives its parts back at once
	if err := three.wait(t); err != nil {
		t.Fatal(err)
	}
	one.awaitParts(t, parts.Count/2)
	two.awaitParts(t, parts.Count/2)
	a.throttleEverywhere(&attempt)
}

// A Redis that forgets the leases gives them anew, to one polygen each.
func TestLeasesAfterAFlush(t *testing.T) {
	t.Parallel()
	_, addr := proctest.Redis(t)
	one := newGenerator(t, addr, "one", nil).run(t)
	two := newGenerator(t, addr, "two", nil).run(t)
	one.awaitParts(t, parts.Count/2)
	two.awaitParts(t, parts.Count/2)
	flush(t, addr)
	proctest.Eventually(t, "each part has one polygen again", func() error {
		first, second := one.division.DecidedParts(time.Now()), two.division.DecidedParts(time.Now())
		kept := proctest.RedisCommand(t, addr, "EXISTS", "sluice:{cluster}:part:0", "sluice:{cluster}:part:63")
		if first&second != 0 || first|second != parts.All || strings.TrimSpace(kept) != "2" {
			return fmt.Errorf("%v, %v, Redis has %s of 2 leases", first.Numbers(), second.Numbers(), kept)
		}
		return nil
	})
}

// BenchmarkReports is what a polygen does for a report of a user, of so many polygens, on sixteen shards. Reading it, which comes to
// that, is divided as its calls are: it does not hear the other shards.
func BenchmarkReports(b *testing.B) {
	const users, together, shards = 50_000, 100, parts.Shards(16)
	var keys [shards][]ratelimit.Key
	for i := range users {
		k := ratelimit.Key{Class: "GET", User: fmt.Sprint("user-", i)}
		shard := shards.ShardOf(k.User)
		keys[shard] = append(keys[shard], k)
	}
	for _, polygens := range []int{1, 2, 4, 8} {
		g, perUser := newGenerator(b, "127.0.0.1:1", "one", func(o *Options) {
			o.Bus = open(b, "127.0.0.1:1", int(shards))
		}), 0.0
		var held parts.Set
		for shard := range int(shards) / polygens {
			held |= shards.Parts(shard)
		}
		g.division.TakeAnswer(time.Now(), parts.Answer{Held: held})
		heard := g.division.HeardShards()
		b.Run(fmt.Sprint("polygens=", polygens), func(b *testing.B) {
			known, heap, read := g.knows(), heapInUse(), 0
			now, entries := time.Now(), make([]bus.UsageEntry, together)
			for i := 0; b.Loop(); i++ {
				shard := i % int(shards)
				if !slices.Contains(heard, shard) {
					continue
				}
				of := keys[shard]
				for j := range entries {
					entries[j] = bus.UsageEntry{Key: of[(i/int(shards)*together+j)%len(of)], Second: now.Unix(), Total: 3}
				}
				g.observe(now, bus.Usage{Instance: "one", Entries: entries})
				read += together
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/together, "ns/report")
			b.ReportMetric(float64(read)/float64(b.N)/together, "read/report")
			b.ReportMetric(float64(g.knows()), "users")
			if known = g.knows() - known; known > 0 { // not by a run before
				perUser = float64(heapInUse()-heap) / float64(known)
			}
			b.ReportMetric(perUser, "B/user")
		})
	}
}

// BenchmarkSpent is what a polygen does for a report, besides reading it and sending what follows, if the limits of
// so many users are spent in every second: each is reported three times by the agents that serve the user, all of which tell of
// their starts.
func BenchmarkSpent(b *testing.B) {
	for _, users := range []int{10_000, 50_000, 100_000} {
		b.Run(fmt.Sprint("users=", users), func(b *testing.B) { benchmarkSpent(b, users, 100, 3) })
	}
	b.Run("users=1000/everywhere", func(b *testing.B) { benchmarkSpent(b, 1000, 1000, 1000) })
}

// benchmarkSpent plays a cluster of so many agents, of which serve serve each user.
func benchmarkSpent(b *testing.B, users, agents, serve int) {
	const together, asks, limit = 10, 3, 10
	g := newGenerator(b, "127.0.0.1:1", "one", nil)
	g.decideAll(true)
	names, keys := make([]string, agents), make([]ratelimit.Key, users)
	for i := range names {
		names[i] = fmt.Sprintf("edge-%04d#abcdefgh", i)
	}
	for i := range keys {
		keys[i] = ratelimit.Key{Class: "GET", User: fmt.Sprintf("user-%06d", i)}
	}
	g.observe(time.Now(), bus.Registry{Instances: names, Now: time.Now()})
	reports, policies, heap := 0, 0, heapInUse()
	second := func(now time.Time) {
		round := 0
		observe := func(e bus.Event) {
			g.observe(now, e)
			if round++; round%10 == 0 {
				d := g.takeDecisions()
				policies += len(g.address(now, &d))
			}
		}
		for at := 0; at < users; at += together {
			for ask := range asks {
				u := bus.Usage{Instance: names[(at/together*serve+(ask+int(now.Unix()))%serve)%agents]}
				for _, k := range keys[at : at+together] {
					u.Entries = append(u.Entries, bus.UsageEntry{Key: k, Second: now.Unix(), Total: limit - asks + 1 + ask})
				}
				reports += together
				observe(u)
			}
			for of := range serve {
				s := bus.Starts{Instance: names[(at/together*serve+of)%agents], Span: time.Second}
				for _, k := range keys[at : at+together] {
					s.Users = append(s.Users, bus.Started{User: k.User, Starts: 4, Classes: []bus.StartedClass{{Class: "GET", Starts: 4}}})
				}
				reports += together
				observe(s)
			}
		}
		g.rates.Forget(now)
		g.audience.forget(now)
	}
	now := time.Now().Truncate(time.Second)
	for range 8 { // until it is known who serves whom
		now = now.Add(time.Second)
		second(now)
	}
	b.ResetTimer()
	reports, policies = 0, 0
	used := processorTime(b)
	for b.Loop() {
		now = now.Add(time.Second)
		second(now)
	}
	b.ReportMetric(float64((processorTime(b)-used).Nanoseconds())/float64(reports), "CPU-ns/report")
	b.ReportMetric(float64(policies)/float64(b.N)/float64(users), "policies/user-s")
	b.ReportMetric(float64(heapInUse()-heap)/float64(users), "B/user")
	runtime.KeepAlive(g)
}

// processorTime is what this process has used, with its collector.
func processorTime(b *testing.B) time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

func heapInUse() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
