package ratelimit_test

import (
	"fmt"
	"time"

	"github.com/sluice-qos/sluice/pkg/internal/simulation"
	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

// A cluster is a simulated one: agents, the pool, polygen and the HAProxies'
// own tables, over links that delay and lose messages, in simulated time. The
// agents, the pool's arithmetic and polygen's rule are the very code that
// ships.
type cluster struct {
	scenario
	*simulation.Run

	agents  []*agent
	pool    map[poolKey]int
	watch   *ratelimit.Watch
	polygen bool // alive

	admitted map[int64]map[ratelimit.Key]int // by the verdict's second
	offered  map[int64]int
	refused  map[int64]int
	asked    int // messages to the pool
	entries  int
	answered int
	waited   []time.Duration // of requests that had to wait
	lateWait int             // waits of requests that were not among an agent's first of a second
	longest  time.Duration
	problems []string
}

type poolKey struct {
	second int64
	key    ratelimit.Key
}

// scenario describes one run.
type scenario struct {
	seed    uint64
	agents  int
	rates   []limits.Rate // what every request counts against
	mixed   bool          // half of the requests are PUTs, which count against "*" only
	seconds int
	load    func(second int, agent int) float64 // requests per second
	burst   int                                 // requests that arrive together; 0 means 1
	rtt     time.Duration                       // mean agent → pool → agent
	stall   float64                             // chance that a round trip takes 50 times as long
	loss    float64                             // chance that a round trip is lost
	skew    time.Duration                       // clocks are wrong by up to this
	noHints bool                                // polygen is dead
	lostAt  time.Duration                       // the pool is unreachable from here …
	backAt  time.Duration                       // … to here
	wait    time.Duration                       // W; 0 means max(5 rtt, 10 ms)
}

// agent is one instance: the core and the little that surrounds it.
type agent struct {
	core     *ratelimit.Agent
	skew     time.Duration
	inflight bool
	native   map[ratelimit.Key]int64 // HAProxy's throttle table
	waiting  map[*ratelimit.Waiting]waiter
	first    int64 // the last second in which it saw a request
}

type waiter struct {
	rates []limits.Rate
	since time.Time
	due   time.Time
	first bool
}

func (s scenario) run() *cluster {
	c := &cluster{
		scenario: s,
		Run:      simulation.New(s.seed),
		pool:     make(map[poolKey]int),
		watch:    ratelimit.NewWatch(false),
		polygen:  !s.noHints,
		admitted: make(map[int64]map[ratelimit.Key]int),
		offered:  make(map[int64]int),
		refused:  make(map[int64]int),
	}
	if c.wait == 0 {
		c.wait = max(5*s.rtt, 10*time.Millisecond)
	}
	start := c.Now
	for i := range s.agents {
		a := &agent{
			core:    ratelimit.NewAgent(ratelimit.Config{}),
			native:  make(map[ratelimit.Key]int64),
			waiting: make(map[*ratelimit.Waiting]waiter),
		}
		if s.skew > 0 {
			a.skew = time.Duration(c.Rand.Int64N(int64(2*s.skew))) - s.skew
		}
		a.core.Cluster(start.Add(-time.Second), s.agents, i)
		a.core.RoundTrip(s.rtt)
		c.agents = append(c.agents, a)
		c.After(0, func() { c.tick(a) })
		for sec := range s.seconds {
			c.arrivals(a, start.Add(time.Duration(sec)*time.Second), s.load(sec, i))
		}
		if s.backAt > 0 {
			// An agent notices a little after the pool went.
			c.At(start.Add(s.lostAt+25*time.Millisecond), func() { a.core.Lost(a.clock(c), true); c.pump(a) })
			c.At(start.Add(s.backAt+200*time.Millisecond), func() { a.core.Lost(a.clock(c), false); c.pump(a) })
		}
	}
	end := start.Add(time.Duration(s.seconds)*time.Second + 500*time.Millisecond)
	c.Until(end)
	for _, a := range c.agents {
		if n := len(a.waiting); n > 0 {
			c.problem("%d requests were never answered", n)
		}
	}
	return c
}

func (c *cluster) arrivals(a *agent, from time.Time, rate float64) {
	if rate <= 0 {
		return
	}
	group := max(1, c.burst)
	for t := 0.0; ; {
		t += c.Rand.ExpFloat64() / (rate / float64(group))
		if t >= 1 {
			return
		}
		for range group {
			c.At(from.Add(time.Duration(t*1e9)), func() { c.request(a) })
		}
	}
}

func (a *agent) clock(c *cluster) time.Time { return c.Now.Add(a.skew) }

// request is one request at one HAProxy.
func (c *cluster) request(a *agent) {
	sec := a.clock(c).Unix()
	c.offered[sec]++
	rates := c.rates
	if c.mixed && c.Rand.IntN(2) == 0 {
		rates = rates[len(rates)-1:]
	}
	for _, r := range rates {
		if a.native[ratelimit.Key{Class: r.Class, User: "u"}] >= sec {
			c.refused[sec]++
			c.answered++
			return
		}
	}
	first := a.first != sec
	a.first = sec
	v, w := a.core.Start(a.clock(c), "u", rates)
	if w == nil {
		c.verdict(v, rates)
	} else {
		a.waiting[w] = waiter{rates: rates, since: c.Now, due: c.Now.Add(c.wait), first: first}
		c.After(c.wait, func() {
			if _, still := a.waiting[w]; still {
				c.decided(a, w, a.core.Timeout(a.clock(c), w))
				c.pump(a)
			}
		})
	}
	c.pump(a)
}

func (c *cluster) verdict(v ratelimit.Verdict, rates []limits.Rate) {
	c.answered++
	if !v.Allowed {
		c.refused[v.Second]++
		return
	}
	if c.admitted[v.Second] == nil {
		c.admitted[v.Second] = make(map[ratelimit.Key]int)
	}
	for _, r := range rates {
		c.admitted[v.Second][ratelimit.Key{Class: r.Class, User: "u"}]++
	}
}

func (c *cluster) decided(a *agent, w *ratelimit.Waiting, v ratelimit.Verdict) {
	info := a.waiting[w]
	delete(a.waiting, w)
	d := c.Now.Sub(info.since)
	c.waited = append(c.waited, d)
	c.longest = max(c.longest, d)
	if !info.first {
		c.lateWait++
	}
	if c.Now.After(info.due) {
		c.problem("a request waited %v, longer than %v", d, c.wait)
	}
	c.verdict(v, info.rates)
}

// pump does what the daemon around the core does after each call.
func (c *cluster) pump(a *agent) {
	out := a.core.Drain()
	for _, w := range out.Decided {
		if _, ok := a.waiting[w]; !ok {
			c.problem("a request was answered twice")
			continue
		}
		c.decided(a, w, w.Verdict)
	}
	for _, n := range out.Native {
		c.After(time.Millisecond, func() { // through the peers session
			if n.Lift {
				delete(a.native, n.Key)
			} else {
				a.native[n.Key] = n.Second
			}
		})
	}
	if out.Urgent {
		c.send(a, false)
	}
}

func (c *cluster) tick(a *agent) {
	a.core.Tick(a.clock(c))
	c.pump(a)
	c.send(a, true)
	c.After(5*time.Millisecond, func() { c.tick(a) })
}

func (c *cluster) send(a *agent, flush bool) {
	if a.inflight {
		return
	}
	asks := a.core.Collect(a.clock(c), flush, nil)
	if len(asks) == 0 {
		return
	}
	a.inflight = true
	c.asked++
	c.entries += len(asks)
	there, back := c.delay(), c.delay()
	since := c.Now.Sub(simulation.Start)
	down := c.backAt > 0 && since >= c.lostAt && since < c.backAt
	lost := c.Rand.Float64() < c.loss
	if down || lost && c.Rand.IntN(2) == 0 {
		c.After(50*time.Millisecond, func() { c.failed(a, asks) })
		return
	}
	c.After(there, func() {
		grants := make([]ratelimit.Grant, len(asks))
		for i, ask := range asks {
			k := poolKey{ask.Second, ask.Key}
			grants[i] = ratelimit.Take(c.pool[k], ask)
			c.pool[k] = grants[i].Total
			c.usage(a, ask, grants[i])
		}
		if lost {
			c.After(50*time.Millisecond, func() { c.failed(a, asks) })
			return
		}
		c.After(back, func() {
			a.inflight = false
			for i, ask := range asks {
				a.core.Reply(a.clock(c), ask, grants[i])
			}
			c.pump(a)
			c.send(a, false)
		})
	})
}

func (c *cluster) failed(a *agent, asks []ratelimit.Ask) {
	a.inflight = false
	for _, ask := range asks {
		a.core.Fail(a.clock(c), ask)
	}
	c.pump(a)
}

// usage is the pool's message to polygen, and polygen's answer to it.
func (c *cluster) usage(a *agent, ask ratelimit.Ask, g ratelimit.Grant) {
	if !c.polygen {
		return
	}
	c.After(c.delay(), func() {
		c.watch.Observe(c.Now, fmt.Sprintf("%p", a), ask.Key, ask.Second, g.Total, ask.Limit)
		hints, throttles := c.watch.Decisions()
		if len(hints)+len(throttles) == 0 {
			return
		}
		for _, to := range c.agents {
			c.After(c.delay(), func() {
				for _, h := range hints {
					to.core.Hot(to.clock(c), h.Key, h.Until, h.Instances)
				}
				for _, t := range throttles {
					to.core.Throttle(to.clock(c), t.Key, t.Second, t.Limit)
				}
				c.pump(to)
			})
		}
	})
}

// delay is one way of a round trip.
func (c *cluster) delay() time.Duration {
	return c.Delay(simulation.Link{RTT: c.rtt, Stall: c.stall})
}

func (c *cluster) problem(format string, args ...any) {
	if len(c.problems) < 10 {
		c.problems = append(c.problems, fmt.Sprintf("at %v: ", c.Now.Sub(simulation.Start))+fmt.Sprintf(format, args...))
	}
}

// worst is the largest admitted ÷ limit of any limit and second, with the second.
func (c *cluster) worst() (ratio float64, second int64) {
	for sec, keys := range c.admitted {
		for _, r := range c.rates {
			if x := float64(keys[ratelimit.Key{Class: r.Class, User: "u"}]) / float64(r.PerSecond); x > ratio {
				ratio, second = x, sec-simulation.Start.Unix()
			}
		}
	}
	return ratio, second
}

// mean is what was admitted of what could have been, against the last of the
// limits, over all seconds of the load.
func (c *cluster) mean() float64 {
	last := c.rates[len(c.rates)-1]
	var got, could int
	for sec, n := range c.offered {
		got += c.admitted[sec][ratelimit.Key{Class: last.Class, User: "u"}]
		could += min(n, last.PerSecond)
	}
	return float64(got) / float64(could)
}

// wronged is the part of the requests that were refused in seconds in which
// less than 0.9 of the limit was offered.
func (c *cluster) wronged() float64 {
	var refused, offered int
	for sec, n := range c.offered {
		if 10*n < 9*c.rates[len(c.rates)-1].PerSecond {
			refused += c.refused[sec]
			offered += n
		}
	}
	if offered == 0 {
		return 0
	}
	return float64(refused) / float64(offered)
}
