package concurrency_test

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluice-qos/sluice/pkg/credit"
	"github.com/sluice-qos/sluice/test/simulation"
)

// TestPlacesAfterAStart has all clients come to one of two instances as soon as both serve, while Redis
// answers late. The other instance has no requests of the user: its portion is free for the first one
// within a second.
func TestPlacesAfterAStart(t *testing.T) {
	for seed := range uint64(20) {
		c := scenario{
			seed: seed, agents: 2, limit: 10, clients: alone(50, 2), credit: true, young: true, together: true, begins: 50 * time.Millisecond,
			lostAt: time.Millisecond, backAt: 100 * time.Millisecond,
			retry: 50 * time.Millisecond, work: mixedWork, link: simulation.Link{RTT: 200 * time.Microsecond}, seconds: 10,
		}.run()
		c.check(t, 1, 0.97)
	}
}

// TestPlacesOfAHotUser has more clients than slots, who come at once or one by one, and
// later leave: HAProxy's places cost no slot for long.
func TestPlacesOfAHotUser(t *testing.T) {
	for _, agents := range []int{1, 4, 20} {
		for _, limit := range []int{10, 100} {
			if agents == 20 && limit == 10 {
				continue // nobody has credit
			}
			for _, ramp := range []time.Duration{0, 4 * time.Second} {
				for _, where := range []func(int, int) []int{spread, alone} {
					t.Run(fmt.Sprintf("%d agents/limit %d/ramp %v", agents, limit, ramp), func(t *testing.T) {
						c := scenario{
							seed: 9, agents: agents, limit: limit, clients: where(2*limit, agents), credit: true, ramp: ramp, ends: true,
							retry: 50 * time.Millisecond, work: briefWork, link: fast, seconds: 22,
						}.run()
						c.check(t, 1, 0)
						if area := c.area / float64(limit); area < 0.93*(22-3-12) {
							t.Errorf("%.1f s of the whole limit were used after the third second, want nearly 7", area)
						}
						if c.running != 0 {
							t.Fatalf("%d requests still run", c.running)
						}
						portion := 0
						if agents > 1 {
							portion = credit.Portion(limit, agents)
						}
						for _, a := range c.agents {
							if got := a.core.InProgress("u"); got != 0 {
								t.Errorf("%s believes %d in progress, want 0", a.name, got)
							}
							if held, users := a.core.Held("u"), a.core.Stats().Users; users != 0 {
								t.Errorf("%s knows %d users and holds %d slots, want none", a.name, users, held)
							}
							if h, ok := c.pool[a.name]; ok && (h.Held != portion || h.Active != 0) {
								t.Errorf("the pool has %+v of %s, want its portion of %d, and none active", h, a.name, portion)
							}
						}
					})
				}
			}
		}
	}
}

// TestPlacesInvariants runs random clusters whose HAProxies admit by themselves what
// they have places for.
func TestPlacesInvariants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		agents := rapid.IntRange(1, 5).Draw(t, "agents")
		limit := rapid.SampledFrom([]int{1, 2, 3, 10, 30, 100}).Draw(t, "limit")
		where := rapid.SampledFrom([]func(int, int) []int{spread, lean, alone}).Draw(t, "where")
		s := scenario{
			seed:    rapid.Uint64().Draw(t, "seed"),
			agents:  agents,
			limit:   limit,
			clients: where(rapid.IntRange(1, min(60, 2*limit+2)).Draw(t, "clients"), agents),
			retry:   time.Duration(rapid.IntRange(1, 200).Draw(t, "retry ms")) * time.Millisecond,
			work:    briefWork,
			link:    simulation.Link{RTT: time.Duration(rapid.IntRange(100, 1000).Draw(t, "rtt µs")) * time.Microsecond},
			hold:    time.Duration(rapid.SampledFrom([]int{0, 0, 100, 700}).Draw(t, "hold ms")) * time.Millisecond,
			silent:  rapid.Bool().Draw(t, "polygen silent"),
			credit:  true,
			young:   rapid.Bool().Draw(t, "young"),
			faults:  rapid.Bool().Draw(t, "faults"),
			ends:    true,
			seconds: 20,
		}
		if rapid.Bool().Draw(t, "changing") {
			s.change = 2 * time.Second
		}
		if rapid.Bool().Draw(t, "long requests") {
			s.work = mixedWork
		}
		s.ramp = time.Duration(rapid.SampledFrom([]int{0, 0, 4}).Draw(t, "ramp s")) * time.Second
		if rapid.Bool().Draw(t, "moving") {
			s.moveEach = time.Duration(rapid.IntRange(50, 3000).Draw(t, "move ms")) * time.Millisecond
		}
		switch rapid.IntRange(0, 3).Draw(t, "upkeep") {
		case 1:
			s.reload = 2 * time.Second
		case 2:
			s.restart = time.Second
		}
		if rapid.Bool().Draw(t, "rates") {
			s.rates = 3 * time.Second
		}
		aborts := rapid.Bool().Draw(t, "aborts")
		if aborts {
			s.abort = 0.1
		}
		c := s.run()
		if c.most > limit {
			t.Fatalf("%d ran at a time, of %d", c.most, limit)
		}
		if most := c.mostAsks(); c.asked > most {
			t.Fatalf("the pool was asked %d times, want at most %d", c.asked, most)
		}
		for _, p := range c.problems {
			t.Fatal(p)
		}
		for _, a := range c.agents {
			if got := a.core.InProgress("u"); got != 0 && !aborts {
				t.Fatalf("%s believes %d in progress when the load has ended, want 0", a.name, got)
			}
		}
	})
}
