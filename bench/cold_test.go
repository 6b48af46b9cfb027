package bench

import (
	"fmt"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/bench/load"
	"github.com/sluice-qos/sluice/internal/proctest"
	"github.com/sluice-qos/sluice/test/cluster"
)

const (
	coldInstances = 2
	coldRate      = 5000             // requests per second in all
	coldSettle    = 35 * time.Second // instances that have been the same for 30 s hold their portions of places without asking
	coldSpan      = 10 * time.Second
)

// BenchmarkLoadCold shows what requests of users who are far from their limits cost Redis and polygen, if the same
// requests come from more or fewer users: what the agents report each second is about users. All
// requests count that HAProxy answers, those that it admits by credit too. What both do for the
// instances while nobody asks is measured before, and is not in the costs of requests.
func BenchmarkLoadCold(b *testing.B) {
	for range b.N {
		t := newTable(fmt.Sprintf("%d requests a second, in turn of users who may have 100 a second, at %d instances; µs of processors for 1000 requests more than while idle, and for each second while idle", coldRate, coldInstances),
			"limits", "users", "questions ÷ requests", "calls ÷ requests", "Redis µs", "polygen µs", "idle: Redis µs", "polygen µs", "not 200")
		for _, l := range costLimits {
			b.Run("limits", func(b *testing.B) { measureCold(b, t, l.name, l.text) })
		}
	}
}

func measureCold(b *testing.B, t *table, name, tier string) {
	c := cluster.Start(b, cluster.Options{Instances: coldInstances, MaxWait: shippedWait, Limits: "version: 1\ndefault_tier: free\ntiers: {free: {" + tier + "}}\n"})
	time.Sleep(coldSettle)
	idle := countCold(b, c)
	time.Sleep(coldSpan / 2)
	idle = countCold(b, c).minus(idle)
	for _, users := range []int{1000, 5000} {
		// The first request of ten minutes may be asked about, which is not what a user costs from then on.
		offerInTurn(b, c, users, coldRate, 3*time.Second)
		before := countCold(b, c)
		r := offerInTurn(b, c, users, coldRate, coldSpan)
		time.Sleep(time.Second) // what the agents report of the last second
		spent := countCold(b, c).minus(before)
		requests := float64(len(r.Results))
		more := func(of func(c coldCounts) float64) float64 {
			return (of(spent) - of(idle)*spent.seconds/idle.seconds) / requests
		}
		redis, polygen := func(c coldCounts) float64 { return c.redis }, func(c coldCounts) float64 { return c.polygen }
		t.row(name, fmt.Sprint(users), fmt.Sprintf("%.4f", spent.asked/requests), fmt.Sprintf("%.4f", more(func(c coldCounts) float64 { return c.calls })),
			fmt.Sprintf("%.0f", 1e9*more(redis)), fmt.Sprintf("%.0f", 1e9*more(polygen)),
			fmt.Sprintf("%.0f", 1e6*idle.redis/idle.seconds), fmt.Sprintf("%.0f", 1e6*idle.polygen/idle.seconds), fmt.Sprint(len(r.Results)-len(r.Admitted().Results)))
	}
}

// offerInTurn has each user make the next request.
func offerInTurn(b *testing.B, c *cluster.Cluster, users int, rate float64, d time.Duration) *load.Report {
	targets, err := load.Spread("even", c.Addresses()...)
	if err != nil {
		b.Fatal(err)
	}
	requests := make([]load.Request, users)
	for i := range requests {
		name := fmt.Sprint("user-", i)
		requests[i] = load.Request{User: name, Headers: []byte("X-User: " + name + "\r\n")}
	}
	r, err := load.Run(b.Context(), load.Spec{
		Targets: targets, Rate: rate, Duration: d, Arrivals: load.Poisson, Seed: 1, Align: true, Timeout: proctest.Patience,
		Requests: func(i int) load.Request { return requests[i%users] },
	})
	if err != nil {
		b.Fatal(err)
	}
	return r
}

// coldCounts are what was counted since the processes started, or in a span.
type coldCounts struct {
	seconds, redis, polygen float64 // the latter two of CPU
	asked, calls            float64 // questions, and the agents' calls of Redis
}

var coldBegan = time.Now()

func countCold(b *testing.B, c *cluster.Cluster) coldCounts {
	return coldCounts{
		seconds: time.Since(coldBegan).Seconds(),
		redis:   cpu(b, []*proctest.Process{c.Redis}).Seconds(), polygen: cpu(b, []*proctest.Process{c.Polygens[0].Process}).Seconds(),
		asked: sum(b, c, "sluice_requests_total", "verdict=") - sum(b, c, "sluice_requests_total", `verdict="credit"`),
		calls: sum(b, c, "sluice_bus_requests_total", `op="`),
	}
}

func (c coldCounts) minus(before coldCounts) coldCounts {
	return coldCounts{c.seconds - before.seconds, c.redis - before.redis, c.polygen - before.polygen, c.asked - before.asked, c.calls - before.calls}
}
