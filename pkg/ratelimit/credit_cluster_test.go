package ratelimit_test

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// coldThenHot has seconds of a tenth of the limit before a load.
func coldThenHot(cold int, load pattern, agents int, limit, factor float64) func(int, int) float64 {
	before, after := even(agents, 0.1*limit), load.load(agents, factor*limit)
	return func(second, agent int) float64 {
		if second < cold {
			return before(second, agent)
		}
		return after(second, agent)
	}
}

// one has the whole load at the first agent.
func one(_ int, total float64) func(int, int) float64 {
	return func(_, agent int) float64 {
		if agent == 0 {
			return total
		}
		return 0
	}
}

// TestClusterCredit has users who were cold, so that every HAProxy has credit, and come
// near their limits or beyond. No second passes the limit. In the first hot one almost
// all of it is used, for the credit of HAProxies that have no use for it comes back, and
// after that all of it; whoever stays below is not refused.
func TestClusterCredit(t *testing.T) {
	const cold = 4
	for _, limit := range []int{10, 100} {
		for _, agents := range []int{1, 4} {
			for _, p := range append(patterns[:len(patterns):len(patterns)], pattern{"one", one}) {
				if agents == 1 && p.name != "even" {
					continue
				}
				for _, factor := range []float64{0.9, 1.5, 50} {
					t.Run(fmt.Sprintf("limit %d/%d agents/%s/%g times the limit", limit, agents, p.name, factor), func(t *testing.T) {
						c := scenario{
							seed: 20, agents: agents, rates: get(limit), seconds: cold + 3, rtt: time.Millisecond,
							load: coldThenHot(cold, p, agents, float64(limit), factor), lending: lending{on: true},
						}.run()
						c.check(t, 1, 0.99)
						if m := c.used(int64(cold)); m < 0.94 {
							t.Errorf("the first hot second admitted %.3f of what was possible, want at least 0.94", m)
						}
						if limit >= 100 && (c.natives == 0 || c.lent == 0) {
							t.Errorf("HAProxies were given credit %d times and admitted %d requests by themselves, want some", c.lent, c.natives)
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

// used is what was admitted of what could have been in one second of the load.
func (c *cluster) used(second int64) float64 {
	sec := c.since(0).Unix() + second
	r := c.rates[0]
	if c.offered[sec] == 0 {
		return 1
	}
	return float64(c.admitted[keyOf(r)][sec]) / float64(min(r.Max, c.offered[sec]))
}

// TestClusterCreditSpares: HAProxy asks about few requests of users far below their
// limits.
func TestClusterCreditSpares(t *testing.T) {
	for _, tt := range []struct {
		agents, limit int
		factor        float64
		asked         float64 // of the requests, at most
	}{
		{1, 10, 0.9, 0.1}, {1, 1000, 0.9, 0.02},
		{2, 100, 0.1, 0.05}, {4, 100, 0.1, 0.1}, {10, 100, 0.1, 0.25}, {10, 1000, 0.1, 0.02},
	} {
		c := scenario{
			seed: 21, agents: tt.agents, rates: get(tt.limit), seconds: 30, rtt: time.Millisecond,
			load: even(tt.agents, tt.factor*float64(tt.limit)), lending: lending{on: true},
		}.run()
		c.check(t, 1, 1)
		questions, offered := 0, 0
		for sec, n := range c.offered {
			if sec >= c.since(4).Unix() { // before that the agents may be new
				questions, offered = questions+c.questions[sec], offered+n
			}
		}
		if asked := float64(questions) / float64(offered); asked > tt.asked {
			t.Errorf("%d agents, %g times a limit of %d: HAProxy asked about %.3f of the requests, want at most %g", tt.agents, tt.factor, tt.limit, asked, tt.asked)
		}
	}
}

// TestClusterCreditFindsMistakes makes some mistakes on purpose: the simulation must see
// a second above the limit for each of them.
func TestClusterCreditFindsMistakes(t *testing.T) {
	for m, name := range map[mistake]string{
		forgetSpent: "forget what was spent", forgetReserve: "reserve nothing", giveBackTwice: "give back twice", lapseOpened: "say that credit has lapsed in a second that was opened",
	} {
		t.Run(name, func(t *testing.T) {
			worst := 0.0
			for _, p := range patterns {
				s := scenario{
					seed: 22, agents: 4, rates: get(100), seconds: 12, rtt: time.Millisecond,
					load: coldThenHot(4, p, 4, 100, 2), lending: lending{on: true, mistake: m},
				}
				if m == lapseOpened { // where there are other generations, and one instance has given the whole limit
					s.agents, s.load, s.lending.limits = 1, even(1, 200), 2700*time.Millisecond
				}
				c := s.run()
				w, _ := c.worst()
				worst = max(worst, w)
			}
			if worst <= 1 {
				t.Errorf("the worst second admitted %.3f of the limit, want more than 1", worst)
			}
		})
	}
}

// TestCreditOvertaken has answers that bring credit after it was withdrawn, as when HAProxy does
// not run for a while: it takes none from them. If it did, a portion would be used twice.
func TestCreditOvertaken(t *testing.T) {
	run := func(m mistake) (worst float64, overtaken int) {
		for seed := range uint64(8) {
			c := scenario{
				seed: seed, agents: 2, rates: get(50), seconds: 12, rtt: time.Millisecond,
				load:    func(second, agent int) float64 { return []float64{0, 0, 0, 0, 100, 100, 0, 0, 0, 0, 100, 100}[second] },
				lending: lending{on: true, late: 600 * time.Millisecond, mistake: m},
			}.run()
			w, _ := c.worst()
			worst, overtaken = max(worst, w), overtaken+c.overtaken
		}
		return worst, overtaken
	}
	if worst, overtaken := run(0); worst > 1 || overtaken == 0 {
		t.Errorf("the worst second admitted %.3f of the limit, want at most 1; %d answers were overtaken, want some", worst, overtaken)
	}
	if worst, _ := run(takeOvertaken); worst <= 1 {
		t.Errorf("with credit from answers that were overtaken the worst second admitted %.3f of the limit, want more than 1", worst)
	}
}

// TestClusterCreditPoolLost takes the pool away for three seconds, from users who were hot
// and from users who were cold, and all that was asked meanwhile comes to it later.
func TestClusterCreditPoolLost(t *testing.T) {
	for _, tt := range []struct {
		factor, worst float64
	}{
		{0.3, 0.6}, {10, 1},
	} {
		for _, stops := range []bool{false, true} {
			c := scenario{
				seed: 24, agents: 3, rates: get(100), seconds: 14, load: coldThenHot(4, pattern{"even", even}, 3, 100, tt.factor), rtt: time.Millisecond,
				lostAt: 6100 * time.Millisecond, backAt: 9100 * time.Millisecond, stops: stops, lending: lending{on: true},
			}.run()
			c.check(t, tt.worst, 0.97)
		}
	}
}

// TestClusterCreditAloneChanges: a lone HAProxy that is reloaded, or whose agent is
// replaced, may admit twice the limit in that second or the next, and in no other.
func TestClusterCreditAloneChanges(t *testing.T) {
	for _, tt := range []struct {
		name     string
		scenario scenario
	}{
		{"reload", scenario{lending: lending{on: true, reload: 2300 * time.Millisecond, linger: 300 * time.Millisecond}}},
		{"restart", scenario{restart: 2300 * time.Millisecond, lending: lending{on: true}}},
		{"kill", scenario{restart: 2300 * time.Millisecond, killed: true, lending: lending{on: true, teach: 300 * time.Millisecond}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			every := max(tt.scenario.restart, tt.scenario.lending.reload)
			s := tt.scenario
			s.seed, s.agents, s.rates, s.seconds, s.rtt = 23, 1, get(100), 12, time.Millisecond
			s.load = even(1, 200)
			c := s.run()
			c.check(t, 2, 0.97)
			for sec, n := range c.admitted[keyOf(s.rates[0])] {
				into := time.Duration(sec-c.since(0).Unix()) * time.Second
				if changes := (into-time.Second)/every != (into+time.Second)/every; n > 100 && !changes {
					t.Errorf("second %v admitted %d, want at most 100", into, n)
				}
			}
		})
	}
}

// TestClusterCreditInvariants runs random clusters whose HAProxies have credit, with
// withdrawals that are slow or lost, reloads, agents that are replaced, join and leave,
// and a Redis that is lost for a while: no second passes the limit.
func TestClusterCreditInvariants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		agents := rapid.IntRange(2, 8).Draw(t, "agents")
		limit := rapid.SampledFrom([]int{1, 4, 10, 30, 100, 300}).Draw(t, "limit")
		loads := rapid.SliceOfN(rapid.SampledFrom([]float64{0, 0.1, 0.3, 0.9, 1.5, 10}), 10, 10).Draw(t, "loads")
		p := rapid.SampledFrom(patterns).Draw(t, "pattern")
		s := scenario{
			seed:    rapid.Uint64().Draw(t, "seed"),
			agents:  agents,
			rates:   []limits.Rate{{Class: "GET", Max: limit}, {Class: limits.All, Max: limit + limit/2}},
			mixed:   rapid.Bool().Draw(t, "mixed"),
			seconds: 10,
			load: func(second, agent int) float64 {
				return p.load(agents, loads[second]*float64(limit))(second, agent)
			},
			burst:   rapid.SampledFrom([]int{1, 1, 5, 30}).Draw(t, "burst"),
			vain:    rapid.SampledFrom([]float64{0, 0, 0.3}).Draw(t, "in vain"),
			rtt:     time.Duration(rapid.IntRange(100, 8000).Draw(t, "rtt µs")) * time.Microsecond,
			noHints: rapid.IntRange(0, 5).Draw(t, "no hints") == 0,
			skew:    time.Duration(rapid.SampledFrom([]int{0, 0, 5, 20}).Draw(t, "skew ms")) * time.Millisecond,
			lending: lending{
				on:       true,
				skew:     time.Duration(rapid.SampledFrom([]int{0, 0, 5, 20}).Draw(t, "HAProxy's skew ms")) * time.Millisecond,
				withdraw: time.Duration(rapid.SampledFrom([]int{0, 1, 20, 200}).Draw(t, "withdrawal ms")) * time.Millisecond,
				loss:     rapid.SampledFrom([]float64{0, 0.05, 0.5}).Draw(t, "withdrawals lost"),
				teach:    time.Duration(rapid.SampledFrom([]int{5, 50, 1500}).Draw(t, "teaching ms")) * time.Millisecond,
				reload:   time.Duration(rapid.SampledFrom([]int{0, 0, 1300, 3100}).Draw(t, "reload ms")) * time.Millisecond,
				limits:   time.Duration(rapid.SampledFrom([]int{0, 0, 1100, 2700}).Draw(t, "limits ms")) * time.Millisecond,
				linger:   time.Duration(rapid.SampledFrom([]int{0, 100, 2000}).Draw(t, "old process ms")) * time.Millisecond,

				late: time.Duration(rapid.SampledFrom([]int{0, 0, 100, 600}).Draw(t, "answers late ms")) * time.Millisecond,
			},
		}
		switch rapid.SampledFrom([]string{"", "", "restart", "kill", "join", "leave"}).Draw(t, "agents that change") {
		case "restart":
			s.restart = 2300 * time.Millisecond
		case "kill":
			s.restart, s.killed = 2300*time.Millisecond, true
		case "join":
			s.joins = time.Duration(rapid.IntRange(2000, 7000).Draw(t, "joins ms")) * time.Millisecond
		case "leave":
			s.leaves = time.Duration(rapid.IntRange(2000, 7000).Draw(t, "leaves ms")) * time.Millisecond
		}
		most := 1.0
		if rapid.IntRange(0, 3).Draw(t, "bad links") == 0 { // see Agent.Timeout
			s.loss = rapid.Float64Range(0, 0.1).Draw(t, "loss")
			s.stall = rapid.Float64Range(0, 0.05).Draw(t, "stall")
			most = 1 + float64(max(limit, agents))/float64(limit)
		}
		c := s.run()
		if agents == 2 && s.joins > 0 {
			most = max(most, 2) // HAProxy has a second's limit for itself when its agent hears of another one
		}
		if agents == 2 && s.leaves > 0 && s.lending.reload > 0 {
			most = max(most, 2) // the one that is left is alone: what a process that is reloaded has spent of the whole limit nobody knows
		}
		if w, at := c.worst(); w > most {
			t.Fatalf("second %d admitted %.3f of the limit, want at most %g", at, w, most)
		}
		for _, p := range c.problems {
			t.Fatal(p)
		}
	})
}
