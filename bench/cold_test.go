package bench

import (
	"fmt"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/bench/load"
	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/internal/testkit/cluster"
)

const (
	coldInstances = 2
	coldRate      = 2500             // requests per second in all
	coldSettle    = 35 * time.Second // instances that have been the same for 30 s hold their portions of places without asking
	coldSpan      = 10 * time.Second
)

// BenchmarkLoadCold shows what requests of users who are far from their limits cost, if the same requests come from
// more or fewer users: HAProxy asks about each user's first request, and agents report users each second. All
// requests count that HAProxy answers, those that it admits by credit too. What the processes do while idle is
// measured before, and is not in the costs of requests.
func BenchmarkLoadCold(b *testing.B) {
	for range b.N {
		t := newTable(fmt.Sprintf("%d requests a second, in turn of users who may have 100 a second, at %d instances; µs of processors for each request, and of Redis and polygen for 1000, more than while idle, and for each second while idle", coldRate, coldInstances),
			"limits", "users", "requests", "questions ÷ requests", "calls ÷ requests", "HAProxies µs", "agents µs", "Redis µs", "polygen µs",
			"idle: HAProxies µs", "agents µs", "Redis µs", "polygen µs", "not 200")
		for _, l := range costLimits {
			b.Run("limits", func(b *testing.B) { measureCold(b, t, l.name, l.text) })
		}
	}
}

func measureCold(b *testing.B, t *table, name, tier string) {
	c := cluster.Start(b, cluster.Options{Instances: coldInstances, Limits: "version: 1\ndefault_tier: free\ntiers: {free: {" + tier + "}}\n"})
	time.Sleep(coldSettle)
	idle := countCold(b, c)
	time.Sleep(coldSpan / 2)
	idle = countCold(b, c).minus(idle)
	for _, users := range []int{1000, 5000, 50_000} {
		// In one turn each user makes a request at one of the instances, so it takes several until both know all users.
		turn := time.Duration(users) * time.Second / coldRate
		for _, span := range []struct {
			name   string
			length time.Duration
		}{{"first of a user", turn}, {"next", max(2*turn, 3*time.Second)}, {"later", max(2*turn, coldSpan)}} {
			before := countCold(b, c)
			r := offerInTurn(b, c, users, coldRate, span.length)
			time.Sleep(time.Second) // what the agents report of the last second
			spent := countCold(b, c).minus(before)
			requests := float64(len(r.Results))
			more := func(of, while float64) float64 { return (of - while*spent.seconds/idle.seconds) / requests }
			micros := func(seconds, scale float64) string { return fmt.Sprintf("%.1f", scale*1e6*seconds) }
			t.row(name, fmt.Sprint(users), span.name, fmt.Sprintf("%.4f", spent.asked/requests), fmt.Sprintf("%.4f", more(spent.calls, idle.calls)),
				micros(more(spent.haproxy, idle.haproxy), 1), micros(more(spent.agents, idle.agents), 1),
				micros(more(spent.redis, idle.redis), 1000), micros(more(spent.polygen, idle.polygen), 1000),
				micros(idle.haproxy/idle.seconds, 1), micros(idle.agents/idle.seconds, 1), micros(idle.redis/idle.seconds, 1), micros(idle.polygen/idle.seconds, 1),
				fmt.Sprint(len(r.Results)-len(r.Admitted().Results)))
		}
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
		name := fmt.Sprint("one of ", users, ": ", i)
		requests[i] = load.Request{User: name, Headers: []byte("X-User: " + name + "\r\n")}
	}
	r, err := load.Run(b.Context(), load.Spec{
		Targets: targets, Rate: rate, Duration: d, Arrivals: load.Poisson, Seed: 1, Align: true, Timeout: testkit.Patience,
		Requests: func(i int) load.Request { return requests[i%users] },
	})
	if err != nil {
		b.Fatal(err)
	}
	return r
}

// coldCounts are what was counted since the processes started, or in a span.
type coldCounts struct {
	seconds                         float64
	haproxy, agents, redis, polygen float64 // seconds of CPU
	asked, calls                    float64 // questions, and the agents' calls of Redis
}

var coldBegan = time.Now()

func countCold(b *testing.B, c *cluster.Cluster) coldCounts {
	var haproxies, agents []*testkit.Process
	for _, in := range c.Instances {
		haproxies, agents = append(haproxies, in.HAProxy), append(agents, in.Agent)
	}
	return coldCounts{
		seconds: time.Since(coldBegan).Seconds(),
		haproxy: cpu(b, haproxies).Seconds(), agents: cpu(b, agents).Seconds(),
		redis: cpu(b, []*testkit.Process{c.Redis}).Seconds(), polygen: cpu(b, []*testkit.Process{c.Polygens[0].Process}).Seconds(),
		asked: sum(b, c, "sluice_requests_total", "verdict=") - sum(b, c, "sluice_requests_total", `verdict="credit"`),
		calls: sum(b, c, "sluice_bus_requests_total", `op="`),
	}
}

func (c coldCounts) minus(before coldCounts) coldCounts {
	return coldCounts{
		c.seconds - before.seconds, c.haproxy - before.haproxy, c.agents - before.agents, c.redis - before.redis, c.polygen - before.polygen,
		c.asked - before.asked, c.calls - before.calls,
	}
}
