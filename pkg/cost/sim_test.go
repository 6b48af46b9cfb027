package cost_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluice-qos/sluice/pkg/cost"
	"github.com/sluice-qos/sluice/pkg/limits"
)

var t0 = time.Unix(1_760_000_000, 0)

// berlin has a day and a month that end at dayAndMonthEnd.
var (
	berlin = func() *limits.Calendar {
		zone, err := time.LoadLocation("Europe/Berlin")
		if err != nil {
			panic(err)
		}
		return limits.NewCalendar(zone, 0, 15)
	}()
	dayAndMonthEnd = time.Date(2025, 12, 14, 23, 0, 0, 0, time.UTC)
)

// tokens are limits of one unit in some windows.
func tokens(perMinute, perHour int64) []limits.Cost {
	return []limits.Cost{
		{Unit: "tokens", Window: limits.Minute, Max: perMinute},
		{Unit: "tokens", Window: limits.Hour, Max: perHour},
	}
}

func needs(of []limits.Cost, amount int64) (all []cost.Need) {
	for _, c := range of {
		all = append(all, cost.Need{Cost: c, Amount: amount})
	}
	return all
}

// redis is the pools, and what it remembers of the agents' calls.
type redis struct {
	pools cost.Pools
	heard map[*cost.Agent]cost.Call
}

func newRedis() *redis { return &redis{cost.Pools{}, map[*cost.Agent]cost.Call{}} }

func (r *redis) call(from *cost.Agent, asks []cost.Ask) (grants []cost.Grant) {
	grants, r.heard[from] = r.pools.Answer(r.heard[from], asks)
	return grants
}

// request is one of a user's, which may cost less than its estimate.
type request struct {
	agent    int
	user     string
	estimate int64
	actual   int64
	settled  int64 // what HAProxy takes it to be charged now
	waits    *cost.Waiting
	verdict  cost.Verdict
	ended    bool
}

// cluster is some agents on one Redis, with everything that can go wrong.
type cluster struct {
	*rapid.T
	now    time.Time
	redis  *redis
	costs  []limits.Cost
	agents []*cost.Agent
	late   map[int][]cost.Ask // a batch of an agent that was sent and may still be heard
	all    []*request

	leaky bool // corrections were lost, or an agent with what it had to say
}

func newCluster(t *rapid.T, n int, costs []limits.Cost) *cluster {
	c := &cluster{T: t, now: t0, redis: newRedis(), costs: costs, late: map[int][]cost.Ask{}}
	for i := range n {
		c.agents = append(c.agents, cost.NewAgent(cost.Config{}))
		c.agents[i].Cluster(n, i)
	}
	return c
}

func (c *cluster) start(agent int, user string, estimate, actual int64) {
	r := &request{agent: agent, user: user, estimate: estimate, actual: actual, settled: estimate}
	c.all = append(c.all, r)
	r.verdict, r.waits = c.agents[agent].Start(c.now, user, needs(c.costs, estimate))
}

// take takes the verdicts of what was decided.
func (c *cluster) take(agent int) {
	for _, w := range c.agents[agent].TakeOutput().Decided {
		for _, r := range c.all {
			if r.waits == w {
				r.verdict, r.waits = w.Verdict, nil
			}
		}
	}
}

// exchange is one exchange of an agent with Redis: what becomes of the call, and of its answer.
func (c *cluster) exchange(agent int, heard, answered bool) {
	a := c.agents[agent]
	asks := a.Collect(c.now, true, nil)
	if len(asks) > 0 {
		var grants []cost.Grant
		if heard {
			grants = c.redis.call(a, asks)
		} else {
			c.late[agent] = asks
		}
		for i, ask := range asks {
			if heard && answered {
				a.Reply(c.now, ask, grants[i])
			} else {
				a.Fail(c.now, ask)
			}
		}
	}
	a.Tick(c.now)
	c.take(agent)
}

// settle is HAProxy's, which may lose it.
func (c *cluster) settle(r *request, to int64, lost bool) {
	if !r.verdict.Charged || to == r.settled {
		return
	}
	if lost {
		c.leaky = true
	} else {
		c.agents[r.agent].Settle(c.now, r.user, r.verdict.Second, to-r.settled, c.costs)
	}
	r.settled = to
}

// crash replaces an agent. Who waited for it is let through by HAProxy, uncharged.
func (c *cluster) crash(agent int) {
	c.leaky = true
	delete(c.late, agent)
	c.agents[agent] = cost.NewAgent(cost.Config{})
	c.agents[agent].Cluster(len(c.agents), agent)
	for _, r := range c.all {
		if r.agent == agent && r.waits != nil {
			r.waits, r.ended = nil, true
		}
	}
}

// quiesce lets everything end, and everybody hear everything.
func (c *cluster) quiesce() {
	for i := range c.agents {
		for range 5 {
			c.exchange(i, true, true)
		}
	}
	for _, r := range c.all {
		if !r.ended {
			r.ended = true
			c.settle(r, r.actual, false)
		}
	}
	for i, a := range c.agents {
		for range 5 {
			c.exchange(i, true, true)
		}
		if asks := a.Collect(c.now, true, nil); len(asks) > 0 {
			c.Fatalf("agent %d still says %+v", i, asks)
		}
	}
}

// sums are what requests cost by the pools that they were charged to.
func (c *cluster) sums(of func(*request) int64) map[cost.Pool]int64 {
	sums := map[cost.Pool]int64{}
	for _, r := range c.all {
		if r.verdict.Charged {
			for _, limit := range c.costs {
				sums[cost.Pool{User: r.user, Unit: limit.Unit, Window: limit.Window, Start: limit.WindowStart(r.verdict.Second)}] += of(r)
			}
		}
	}
	return sums
}

func (c *cluster) limitOf(p cost.Pool) int64 {
	for _, limit := range c.costs {
		if limit.Window == p.Window {
			return limit.Max
		}
	}
	return 0
}

// check holds the pools to what the requests cost.
func (c *cluster) check() {
	for p, total := range c.redis.pools {
		if total.Charged < 0 || total.Charged > c.limitOf(p) {
			c.Fatalf("%+v has %d, want 0 to %d", p, total.Charged, c.limitOf(p))
		}
	}
	for p, sum := range c.sums(func(r *request) int64 { return r.actual }) {
		if sum > c.limitOf(p) {
			c.Fatalf("requests of %+v cost %d, want %d at most", p, sum, c.limitOf(p))
		}
	}
	// What runs is charged with what it may still cost: the pool never has less.
	for p, sum := range c.sums(func(r *request) int64 { return r.settled }) {
		if total := c.redis.pools[p].Charged; total < sum {
			c.Fatalf("%+v has %d, want at least the %d of its requests", p, total, sum)
		}
	}
}

// Reserve and settle in any order, lost and repeated messages, agents that crash: what
// requests cost is never more than the limit of a window, nothing becomes negative, and
// nothing is left over when all have ended.
func TestClusterKeepsLimits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.SampledFrom([]int{1, 2, 4}).Draw(t, "agents")
		costs := tokens(100, 700)
		if rapid.Bool().Draw(t, "day and month") {
			costs = append(costs, limits.Cost{Unit: "tokens", Window: limits.Day, Max: 900, Calendar: berlin}, limits.Cost{Unit: "tokens", Window: limits.Month, Max: 1500, Calendar: berlin})
		}
		c := newCluster(t, n, costs)
		c.now = rapid.SampledFrom([]time.Time{t0, dayAndMonthEnd.Add(-30 * time.Second)}).Draw(t, "begin")
		agent := rapid.IntRange(0, n-1)
		faults := rapid.Bool().Draw(t, "faults")
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			a := agent.Draw(t, "agent")
			switch rapid.SampledFrom([]string{"start", "start", "start", "exchange", "exchange", "lose", "settle", "settle", "timeout", "cancel", "time", "late", "crash"}).Draw(t, "event") {
			case "start":
				estimate := rapid.Int64Range(0, 60).Draw(t, "estimate")
				c.start(a, rapid.SampledFrom([]string{"alice", "bob"}).Draw(t, "user"), estimate, rapid.Int64Range(0, estimate).Draw(t, "actual"))
			case "exchange":
				c.exchange(a, true, true)
			case "lose":
				c.exchange(a, rapid.Bool().Draw(t, "heard"), false)
			case "late":
				// Redis was stopped, and hears now what was sent before, if the agent has not said more since.
				if asks := c.late[a]; asks != nil {
					c.redis.call(c.agents[a], asks)
				}
			case "settle":
				if r := c.running(); r != nil {
					to := rapid.Int64Range(r.actual, max(r.actual, r.settled)).Draw(t, "so far")
					r.ended = rapid.Bool().Draw(t, "end")
					if r.ended {
						to = r.actual
					}
					c.settle(r, to, faults && rapid.IntRange(0, 3).Draw(t, "lost") == 0)
				}
			case "timeout":
				if r := c.waiting(); r != nil {
					r.verdict, r.waits = c.agents[r.agent].Timeout(c.now, r.waits), nil
				}
			case "cancel":
				if r := c.waiting(); r != nil {
					c.agents[r.agent].Abandon(c.now, r.waits)
					r.verdict, r.waits = cost.Verdict{}, nil
				} else if r := c.running(); r != nil && r.settled == r.estimate {
					c.agents[r.agent].Cancel(c.now, r.user, needs(c.costs, r.estimate), r.verdict)
					r.verdict, r.ended = cost.Verdict{}, true
				}
			case "time":
				c.now = c.now.Add(time.Duration(rapid.SampledFrom([]int{1, 10, 100, 1000, 20_000, 70_000, 86_400_000}).Draw(t, "ms")) * time.Millisecond)
			case "crash":
				if faults {
					c.crash(a)
				}
			}
			c.check()
		}
		c.quiesce()
		c.check()
		if c.leaky {
			return
		}
		for p, sum := range c.sums(func(r *request) int64 { return r.actual }) {
			if total := c.redis.pools[p].Charged; total != sum {
				t.Fatalf("%+v has %d when all has ended, want the %d that requests cost", p, total, sum)
			}
		}
		for p, total := range c.redis.pools {
			if total.Charged > 0 && c.sums(func(r *request) int64 { return r.actual })[p] == 0 {
				t.Fatalf("%+v has %d, and no request cost it", p, total.Charged)
			}
		}
	})
}

// running is a request that runs, or nil.
func (c *cluster) running() *request {
	return c.pick(func(r *request) bool { return r.verdict.Charged && !r.ended })
}

// waiting is a request that waits, or nil.
func (c *cluster) waiting() *request {
	return c.pick(func(r *request) bool { return r.waits != nil })
}

func (c *cluster) pick(is func(*request) bool) *request {
	var some []*request
	for _, r := range c.all {
		if is(r) {
			some = append(some, r)
		}
	}
	if len(some) == 0 {
		return nil
	}
	return some[rapid.IntRange(0, len(some)-1).Draw(c.T, "request")]
}

// Whatever a Redis forgets, and whatever requests cost beyond their estimates, no total is
// negative, and when nothing is left of a window but its successor, nobody is kept from it
// any more.
func TestClusterForgets(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newCluster(t, 2, tokens(100, 700))
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			a := rapid.IntRange(0, 1).Draw(t, "agent")
			switch rapid.SampledFrom([]string{"start", "start", "exchange", "settle", "flush", "lost", "back", "time"}).Draw(t, "event") {
			case "start":
				estimate := rapid.Int64Range(0, 60).Draw(t, "estimate")
				c.start(a, "alice", estimate, rapid.Int64Range(0, 300).Draw(t, "actual"))
				c.take(a)
			case "exchange":
				c.exchange(a, true, true)
			case "settle":
				if r := c.running(); r != nil {
					r.ended = true
					c.settle(r, r.actual, false)
				}
			case "flush":
				*c.redis = *newRedis()
			case "lost", "back":
				c.agents[a].Lost(c.now, rapid.Bool().Draw(t, "lost"))
				c.take(a)
			case "time":
				c.now = c.now.Add(time.Duration(rapid.SampledFrom([]int{1, 100, 1000, 61_000}).Draw(t, "ms")) * time.Millisecond)
			}
			for p, total := range c.redis.pools {
				if total.Charged < 0 {
					t.Fatalf("%+v has %d", p, total.Charged)
				}
			}
		}
		for _, a := range c.agents {
			a.Lost(c.now, false)
		}
		c.quiesce()
		// A debt is paid by one window. The one after it begins with nothing.
		c.now = c.now.Add(3 * time.Hour)
		c.start(0, "alice", 100, 100)
		c.exchange(0, true, true)
		if r := c.all[len(c.all)-1]; !r.verdict.Allowed {
			t.Fatalf("a request of a whole limit, hours later: %+v, want it allowed", r.verdict)
		}
	})
}
