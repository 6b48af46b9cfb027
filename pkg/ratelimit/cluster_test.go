package ratelimit_test

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluice-qos/sluice/pkg/limits"
)

func get(n int) []limits.Rate { return []limits.Rate{{Class: "GET", PerSecond: n}} }

// even spreads a load over all agents.
func even(agents int, total float64) func(int, int) float64 {
	return func(int, int) float64 { return total / float64(agents) }
}

// lopsided gives 90 % to the first agent.
func lopsided(agents int, total float64) func(int, int) float64 {
	return func(_, agent int) float64 {
		if agent == 0 {
			return 0.9 * total
		}
		return 0.1 * total / float64(agents-1)
	}
}

// jumping moves the whole load to the next agent each second.
func jumping(agents int, total float64) func(int, int) float64 {
	return func(second, agent int) float64 {
		if second%agents == agent {
			return total
		}
		return 0
	}
}

type pattern struct {
	name string
	load func(agents int, total float64) func(int, int) float64
}

var patterns = []pattern{{"even", even}, {"lopsided", lopsided}, {"jumping", jumping}}

// TestCluster holds the promise of the package over limits, cluster sizes,
// patterns and loads: no second above the limit, the first included; the limit
// used fully; nobody refused below it; nobody waiting long.
func TestCluster(t *testing.T) {
	for _, limit := range []int{10, 100, 1000, 10000} {
		for _, agents := range []int{1, 2, 4, 20} {
			for _, p := range patterns {
				for _, factor := range []float64{0.3, 0.85, 1, 2, 10, 100} {
					offered := factor * float64(limit)
					if offered > 50000 || (p.name != "even" && agents == 1) {
						continue
					}
					t.Run(fmt.Sprintf("limit %d/%d agents/%s/%g times the limit", limit, agents, p.name, factor), func(t *testing.T) {
						c := scenario{
							seed: 1, agents: agents, rates: get(limit), seconds: 6,
							load: p.load(agents, offered), rtt: time.Millisecond,
						}.run()
						c.check(t, 1, 0.97)
						if agents == 1 && c.mean() < 1 {
							t.Errorf("alone: admitted %.4f of what was possible, want all", c.mean())
						}
						if agents == 1 && len(c.waited) > 0 {
							t.Errorf("alone: %d requests waited, want none", len(c.waited))
						}
					})
				}
			}
		}
	}
}

// check asserts what holds in every run: the worst second, the mean, false
// refusals below 0.1 %, bounded waits, and every request answered once.
func (c *cluster) check(t *testing.T, worst, mean float64) {
	t.Helper()
	if w, at := c.worst(); w > worst {
		t.Errorf("second %d admitted %.3f of the limit, want at most %.3f", at, w, worst)
	}
	if m := c.mean(); m < mean {
		t.Errorf("admitted %.3f of what was possible, want at least %.3f", m, mean)
	}
	if x := c.wronged(); x >= 0.001 {
		t.Errorf("%.2f %% of the requests below 0.9 of the limit were refused, want less than 0.1 %%", 100*x)
	}
	if c.longest > c.wait {
		t.Errorf("a request waited %v, want at most %v", c.longest, c.wait)
	}
	total := 0
	for _, n := range c.offered {
		total += n
	}
	if c.answered != total {
		t.Errorf("%d requests answered, want %d", c.answered, total)
	}
	for _, p := range c.problems {
		t.Error(p)
	}
}

func TestClusterUsersBelowHalfTheirLimitDoNotWait(t *testing.T) {
	for _, agents := range []int{2, 4} {
		for _, p := range patterns {
			c := scenario{seed: 2, agents: agents, rates: get(1000), seconds: 10, load: p.load(agents, 450), rtt: time.Millisecond}.run()
			c.check(t, 0.6, 1)
			// But for the first requests of a second: those that arrive within
			// the round trip of an agent's very first one.
			if most := 3 * 10 * agents; len(c.waited) > most {
				t.Errorf("%d agents, %s: %d of 4500 requests waited, want at most %d", agents, p.name, len(c.waited), most)
			}
		}
	}
}

func TestClusterWithoutPolygen(t *testing.T) {
	for _, p := range patterns {
		for _, factor := range []float64{0.85, 2, 20} {
			c := scenario{seed: 3, agents: 4, rates: get(100), seconds: 8, load: p.load(4, 100*factor), rtt: time.Millisecond, noHints: true}.run()
			t.Logf("%s, %g times the limit: mean %.3f, wronged %.4f", p.name, factor, c.mean(), c.wronged())
			c.check(t, 1, 0.97)
		}
	}
}

// TestClusterSeveralLimits has requests that count against GET and "*", and
// others that count against "*" alone.
func TestClusterSeveralLimits(t *testing.T) {
	rates := []limits.Rate{{Class: "GET", PerSecond: 60}, {Class: limits.All, PerSecond: 100}}
	for _, p := range patterns {
		c := scenario{seed: 4, agents: 3, rates: rates, mixed: true, seconds: 8, load: p.load(3, 1000), rtt: time.Millisecond}.run()
		c.check(t, 1, 0.97)
	}
}

// TestClusterSlowPool has round trips longer than a request may wait in most
// of the cases that matter: what is admitted stays right, only later.
func TestClusterSlowLinks(t *testing.T) {
	for _, rtt := range []time.Duration{5 * time.Millisecond, 20 * time.Millisecond} {
		for _, p := range patterns {
			c := scenario{seed: 5, agents: 4, rates: get(1000), seconds: 8, load: p.load(4, 5000), rtt: rtt, wait: 5 * rtt}.run()
			c.check(t, 1, 0.97)
		}
	}
}

// TestClusterPoolLost takes the pool away for three seconds. A key that was hot
// keeps its limit, divided among the agents; then all is as before.
func TestClusterPoolLost(t *testing.T) {
	c := scenario{
		seed: 6, agents: 3, rates: get(100), seconds: 10, load: even(3, 1000), rtt: time.Millisecond,
		lostAt: 3100 * time.Millisecond, backAt: 6100 * time.Millisecond,
	}.run()
	c.check(t, 1, 0.97)
}

// TestClusterPoolLostByCoolUsers shows that nobody far below his limit notices.
func TestClusterPoolLostByCoolUsers(t *testing.T) {
	c := scenario{
		seed: 7, agents: 3, rates: get(1000), seconds: 10, load: even(3, 400), rtt: time.Millisecond,
		lostAt: 3100 * time.Millisecond, backAt: 6100 * time.Millisecond,
	}.run()
	c.check(t, 0.6, 1)
}

// TestClusterInvariants runs random clusters over bad links: loss, stalls,
// skewed clocks, bursts, polygen dead or alive. By the seconds in which the
// agents decided, no second passes the limit, but for what Timeout may admit
// of a key that was not hot when its agent heard nothing: at most one limit,
// and only at the start of a load.
func TestClusterInvariants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		agents := rapid.IntRange(1, 8).Draw(t, "agents")
		limit := rapid.SampledFrom([]int{1, 3, 10, 100, 1000}).Draw(t, "limit")
		factor := rapid.SampledFrom([]float64{0.3, 0.9, 1.5, 10}).Draw(t, "factor")
		p := rapid.SampledFrom(patterns).Draw(t, "pattern")
		if agents == 1 {
			p = patterns[0]
		}
		bad := rapid.Bool().Draw(t, "bad links")
		s := scenario{
			seed:    rapid.Uint64().Draw(t, "seed"),
			agents:  agents,
			rates:   []limits.Rate{{Class: "GET", PerSecond: limit}, {Class: limits.All, PerSecond: limit + limit/2}},
			mixed:   rapid.Bool().Draw(t, "mixed"),
			seconds: 4,
			load:    p.load(agents, factor*float64(limit)),
			burst:   rapid.IntRange(1, 50).Draw(t, "burst"),
			rtt:     time.Duration(rapid.IntRange(100, 8000).Draw(t, "rtt µs")) * time.Microsecond,
			noHints: rapid.Bool().Draw(t, "no hints"),
		}
		if bad {
			s.loss = rapid.Float64Range(0, 0.1).Draw(t, "loss")
			s.stall = rapid.Float64Range(0, 0.05).Draw(t, "stall")
			s.skew = time.Duration(rapid.IntRange(0, 20).Draw(t, "skew ms")) * time.Millisecond
		}
		c := s.run()
		most := 1.0
		if bad {
			most = 2
		}
		if w, at := c.worst(); w > most {
			t.Fatalf("second %d admitted %.3f of the limit, want at most %g", at, w, most)
		}
		if c.longest > c.wait {
			t.Fatalf("a request waited %v, want at most %v", c.longest, c.wait)
		}
		for _, p := range c.problems {
			t.Fatal(p)
		}
	})
}
