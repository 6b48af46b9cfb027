package concurrency_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/test/simulation"
)

var fast = simulation.Link{RTT: time.Millisecond}

// briefWork is 50 to 150 ms.
func briefWork(r *simulation.Run) time.Duration {
	return 50*time.Millisecond + time.Duration(r.Rand.Int64N(int64(100*time.Millisecond)))
}

// spread divides clients evenly among agents.
func spread(clients, agents int) []int {
	out := make([]int, agents)
	for i := range clients {
		out[i%agents]++
	}
	return out
}

// lean gives all clients to the first agent but for one in ten.
func lean(clients, agents int) []int {
	out := spread(clients/10, agents)
	out[0] += clients - clients/10
	return out
}

// alone gives all clients to the first agent.
func alone(clients, agents int) []int {
	out := make([]int, agents)
	out[0] = clients
	return out
}

// check asserts what holds in every run: the bounds on what ran at a time and on
// average, in parts of the limit, and that every request was answered once, in
// time and in order.
func (c *cluster) check(t testing.TB, most, mean float64) {
	t.Helper()
	if got := float64(c.most) / float64(c.limit); got > most {
		t.Errorf("%d ran at a time, want at most %g of %d", c.most, most, c.limit)
	}
	if got := c.mean() / float64(c.limit); got < mean {
		t.Errorf("%.3f of the limit ran on average, want at least %g", got, mean)
	}
	waiting := 0
	for _, a := range c.agents {
		waiting += len(a.waiting)
	}
	if c.answered+waiting != c.started {
		t.Errorf("%d requests answered and %d wait, of %d", c.answered, waiting, c.started)
	}
	if longest := max(5*c.link.RTT, 10*time.Millisecond); c.longest > longest {
		t.Errorf("a request waited %v for the pool, want at most %v", c.longest, longest)
	}
	if most := c.mostAsks(); c.asked > most {
		t.Errorf("the pool was asked %d times, want at most %d", c.asked, most)
	}
	for _, p := range c.problems {
		t.Error(p)
	}
}

// mostAsks is how often the agents may ask the pool: each time that something changed, and for slots that others have.
func (c *cluster) mostAsks() int { return 100 * len(c.agents) * c.seconds }

// checkIdle asserts how long a slot that has become free waits for the next
// request, pauses of the clients included.
func (c *cluster) checkIdle(t testing.TB, p99 time.Duration) {
	t.Helper()
	if len(c.idleFor) == 0 {
		t.Fatal("no slot became free")
	}
	slices.Sort(c.idleFor)
	if got := c.idleFor[len(c.idleFor)*99/100]; got > p99 {
		t.Errorf("a free slot waits %v at p99, want at most %v", got, p99)
	}
}

// TestCluster holds the promise of the package over limits, cluster sizes and
// loads: never one above the limit; the limit used fully when clients come back
// often enough.
func TestCluster(t *testing.T) {
	for _, limit := range []int{1, 10, 100} {
		for _, agents := range []int{1, 4, 20} {
			for factor, mean := range map[int]float64{2: 0.85, 5: 0.9} {
				t.Run(fmt.Sprintf("limit %d/%d agents/%d clients", limit, agents, factor*limit), func(t *testing.T) {
					c := scenario{
						seed: 1, agents: agents, limit: limit, clients: spread(factor*limit, agents),
						retry: 50 * time.Millisecond, work: mixedWork, link: fast, seconds: 12,
					}.run()
					c.check(t, 1, mean)
					if limit == 10 && factor == 5 {
						c.checkIdle(t, map[int]time.Duration{1: 20 * time.Millisecond, 4: 50 * time.Millisecond, 20: 70 * time.Millisecond}[agents])
					}
				})
			}
		}
	}
}

// TestClusterPatterns has 50 clients on limit 10, in other ways than evenly
// spread and from the start.
func TestClusterPatterns(t *testing.T) {
	tests := []struct {
		name  string
		s     scenario
		where func(clients, agents int) []int // spread, if nil
		most  float64
		mean  float64
	}{
		{name: "clients that come one after the other", s: scenario{ramp: 5 * time.Second}, most: 1, mean: 0.9},
		{name: "clients that begin in the same instant", s: scenario{together: true}, most: 1, mean: 0.9},
		{name: "requests of 0.1 s", s: scenario{work: briefWork}, most: 1, mean: 0.9},
		{name: "nine of ten on one instance", where: lean, most: 1, mean: 0.9},
		{name: "all on one instance", where: alone, most: 1, mean: 0.9},
		{name: "all moving to the next instance each second", s: scenario{moveEach: time.Second, work: briefWork}, where: alone, most: 1, mean: 0.85},
		{name: "clients that leave before their requests run", s: scenario{abort: 0.05}, most: 1, mean: 0.9},
		{name: "polygen silent", s: scenario{silent: true}, where: lean, most: 1, mean: 0.9},
		{name: "polygen dies", s: scenario{dies: 5 * time.Second, moveEach: 4 * time.Second}, where: alone, most: 1, mean: 0.9},
		{name: "a slow pool", s: scenario{link: simulation.Link{RTT: 10 * time.Millisecond}}, most: 1, mean: 0.9},
		{name: "a pool that loses and stalls", s: scenario{link: simulation.Link{RTT: time.Millisecond, Loss: 0.02, Stall: 0.01}}, most: 1.5, mean: 0.9}, // see Agent.Timeout
		{name: "the pool lost for a second", s: scenario{lostAt: 5 * time.Second, backAt: 5800 * time.Millisecond}, most: 1, mean: 0.9},
		{name: "the pool lost for three seconds", s: scenario{lostAt: 5 * time.Second, backAt: 8 * time.Second}, most: 2, mean: 0.9}, // each instance has what it held, or its part
		{name: "held in line", s: scenario{hold: 2 * time.Second}, most: 1, mean: 0.97},
		{name: "brief ones held in line", s: scenario{hold: 2 * time.Second, work: briefWork}, most: 1, mean: 0.97},
	}
	for _, tt := range tests {
		for _, agents := range []int{1, 4} {
			t.Run(fmt.Sprintf("%s/%d agents", tt.name, agents), func(t *testing.T) {
				s := tt.s
				s.seed, s.agents, s.limit, s.retry, s.seconds = 2, agents, 10, 50*time.Millisecond, 13
				if s.work == nil {
					s.work = mixedWork
				}
				if s.link.RTT == 0 {
					s.link = fast
				}
				if tt.where == nil {
					tt.where = spread
				}
				s.clients = tt.where(50, agents)
				s.run().check(t, tt.most, tt.mean)
			})
		}
	}
}

// TestClusterBelowTheLimitRefusesNobody has clients whose every request is
// admitted, since there are fewer of them than slots.
func TestClusterBelowTheLimitRefusesNobody(t *testing.T) {
	for _, agents := range []int{1, 4} {
		for _, clients := range []int{1, 8, 10} {
			c := scenario{
				seed: 3, agents: agents, limit: 10, clients: spread(clients, agents),
				retry: 50 * time.Millisecond, work: briefWork, link: fast, seconds: 13,
			}.run()
			c.check(t, 1, 0.98*float64(clients)/10)
			if c.refused > 0 {
				t.Errorf("%d agents, %d clients: %d of %d requests refused, want 0", agents, clients, c.refused, c.started)
			}
			if c.unblocks > 0 && clients < 10 {
				t.Errorf("%d agents, %d clients: unblocked %d times, want 0", agents, clients, c.unblocks)
			}
		}
	}
}

// TestClusterPauses has a pool that is silent for a while each half second, and limits
// around the number of instances. Of clients of whom there are half as many as slots,
// or one, and who move to another instance each second, few are refused; and a flood gets the limit once more at most, or one request
// of each instance.
func TestClusterPauses(t *testing.T) {
	for _, agents := range []int{4, 16} {
		for _, limit := range []int{1, 3, 8} {
			t.Run(fmt.Sprintf("%d agents/limit %d", agents, limit), func(t *testing.T) {
				s := scenario{
					seed: 7, agents: agents, limit: limit, clients: spread(max(1, limit/2), agents), moveEach: time.Second,
					retry: 50 * time.Millisecond, work: briefWork, link: fast, pause: 50 * time.Millisecond, seconds: 60,
				}
				c := s.run()
				if part := float64(c.refused) / float64(c.started); part > 0.03 {
					t.Errorf("%d of %d requests far below the limit were refused, %.1f %%, want at most 3 %%", c.refused, c.started, 100*part)
				}
				s.clients, s.seconds = spread(20*limit+20, agents), 10
				if c := s.run(); c.most > limit+max(limit, agents) {
					t.Errorf("%d ran at a time, want at most %d and %d", c.most, limit, max(limit, agents))
				}
			})
		}
	}
}

// TestClusterFlips has about as many clients as slots.
func TestClusterFlips(t *testing.T) {
	for _, agents := range []int{1, 4} {
		for _, limit := range []int{20, 100} {
			for _, factor := range []float64{0.95, 1, 1.05} {
				for _, work := range []func(*simulation.Run) time.Duration{mixedWork, briefWork} {
					clients := int(factor * float64(limit))
					c := scenario{
						seed: 5, agents: agents, limit: limit, clients: spread(clients, agents),
						retry: 50 * time.Millisecond, work: work, link: fast, seconds: 13,
					}.run()
					c.check(t, 1, 0.85)
					if got := 2 * float64(c.unblocks) / 13; got >= 2 {
						t.Errorf("%d agents, %d clients on limit %d: %.2f flips a second, want less than 2", agents, clients, limit, got)
					}
				}
			}
		}
	}
}
