package ratelimit_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
	"github.com/sluice-qos/sluice/test/simulation"
)

// A cluster is a simulated one: agents, the pool, polygen and the HAProxies'
// own tables, over links that delay and lose messages, in simulated time. The
// agents, the pool's arithmetic and polygen's rule are the very code that
// ships.
type cluster struct {
	scenario
	*simulation.Run

	agents  []*agent
	pool    pools
	watch   *ratelimit.Watch
	polygen bool // alive

	admitted  map[ratelimit.Key]map[int64]int // by the verdict's second
	gone      map[poolKey]int                 // tokens whose grant was lost
	offered   map[int64]int
	refused   map[int64]int
	asked     int // messages to the pool
	entries   int
	taught    int           // entries of HAProxies' tables, lifts included
	questions map[int64]int // that HAProxies asked
	natives   int           // requests that HAProxies admitted by themselves
	lent      int           // credits given
	recalled  int           // withdrawals confirmed
	overtaken int           // credits that a withdrawal has overtaken
	answered  int
	waited    []time.Duration // of requests that had to wait
	lateWait  int             // waits of requests that were not among an agent's first of a second
	longest   time.Duration
	problems  []string
}

// pools are Redis.
type pools struct {
	heard    map[*ratelimit.Agent]uint64 // the last batch
	totals   map[poolKey]int
	accounts map[ratelimit.Key]ratelimit.Account
	mistake  mistake
}

type poolKey struct {
	second int64
	key    ratelimit.Key
}

func newPools() pools {
	return pools{heard: make(map[*ratelimit.Agent]uint64), totals: make(map[poolKey]int), accounts: make(map[ratelimit.Key]ratelimit.Account)}
}

// hear takes a batch of an agent, once.
func (p pools) hear(from *ratelimit.Agent, at time.Time, asks []ratelimit.Ask) []ratelimit.Grant {
	again := asks[0].Seq <= p.heard[from]
	p.heard[from] = max(p.heard[from], asks[0].Seq)
	grants := make([]ratelimit.Grant, len(asks))
	asks = p.mistake.in(asks)
	for i, ask := range asks {
		if again {
			ask = ask.Repeated()
		}
		grants[i] = p.take(at, ask)
	}
	return grants
}

func (p pools) take(at time.Time, ask ratelimit.Ask) (g ratelimit.Grant) {
	if ask.Burst > 0 {
		p.accounts[ask.Key], g = p.accounts[ask.Key].Take(at, ask)
		return g
	}
	k := poolKey{ask.WindowStart, ask.Key}
	total, ok := p.totals[k]
	if !ok {
		total = ask.Reserve
	}
	g = ratelimit.Take(total, ask)
	p.totals[k] = g.Total
	return g
}

// startOf is when a limit's window begins that a second is in.
func startOf(r limits.Rate, second int64) int64 {
	begin, _ := r.Bounds(second)
	return begin
}

// scenario describes one run.
type scenario struct {
	seed    uint64
	begin   time.Duration // how long after simulation.Start, which is 20 s into a minute and 800 s into an hour
	agents  int
	rates   []limits.Rate // what every request counts against
	mixed   bool          // half of the requests are PUTs, which count against "*" only
	seconds int
	load    func(second int, agent int) float64 // requests per second
	burst   int                                 // requests that arrive together; 0 means 1
	vain    float64                             // chance that a request, when it is allowed or while it waits, finds no slot
	rtt     time.Duration                       // mean agent → pool → agent
	stall   float64                             // chance that a round trip takes 50 times as long
	loss    float64                             // chance that a round trip is lost
	skew    time.Duration                       // clocks are wrong by up to this
	noHints bool                                // polygen is dead
	pause   time.Duration                       // the pool answers nothing for so long, each half second
	lostAt  time.Duration                       // the pool is unreachable from here …
	backAt  time.Duration                       // … to here,
	stops   bool                                // and then hears all that was sent meanwhile, in some order
	wait    time.Duration                       // W; 0 means max(5 rtt, 10 ms)
	flush   time.Duration                       // between two ticks; 0 means 5 ms

	// Every so long another agent is replaced by one that knows nothing: it
	// leaves as it should, or is killed.
	restart time.Duration
	killed  bool

	lending lending
	joins   time.Duration // the last agent joins the others so late; 0: it is there
	leaves  time.Duration // the last agent leaves the others here; 0: it stays
}

// agent is one instance: the core and the little that surrounds it.
type agent struct {
	core     *ratelimit.Agent
	skew     time.Duration
	inflight bool
	native   map[ratelimit.Key]entry // HAProxy's throttle table
	waiting  map[*ratelimit.Waiting]waiter
	first    int64 // the last second in which it saw a request
	rank     int

	haproxy    *haproxy
	old        *haproxy // a process that was reloaded, and may go on
	lingers    time.Time
	generation int
	lentAt     time.Time // when an answer last brought credit
	instances  int

	withdrawals int   // that are on their way, or their answers: nobody is given credit meanwhile
	told        int64 // the last second without credit that the core has been told of
}

// entry is one of HAProxy's table: it refuses until a second, or until it expires.
type entry struct {
	until   int64
	expires time.Time
}

type waiter struct {
	rates []limits.Rate
	since time.Time
	due   time.Time
	first bool
	vain  bool // it is taken back before anybody waits for it
}

func (s scenario) run() *cluster {
	c := &cluster{
		scenario:  s,
		Run:       simulation.New(s.seed),
		pool:      newPools(),
		watch:     ratelimit.NewWatch(false),
		polygen:   !s.noHints,
		admitted:  make(map[ratelimit.Key]map[int64]int),
		gone:      make(map[poolKey]int),
		offered:   make(map[int64]int),
		questions: make(map[int64]int),
		refused:   make(map[int64]int),
	}
	if c.wait == 0 {
		c.wait = max(5*s.rtt, 10*time.Millisecond)
	}
	if c.flush == 0 {
		c.flush = 5 * time.Millisecond
	}
	c.pool.mistake = s.lending.mistake
	c.Now = c.since(0)
	start := c.Now
	for i := range s.agents {
		a := &agent{
			native:  make(map[ratelimit.Key]entry),
			waiting: make(map[*ratelimit.Waiting]waiter),
			rank:    i,
			haproxy: &haproxy{},
		}
		if s.lending.skew > 0 {
			a.haproxy.skew = time.Duration(c.Rand.Int64N(int64(2*s.lending.skew))) - s.lending.skew
		}
		if s.skew > 0 {
			a.skew = time.Duration(c.Rand.Int64N(int64(2*s.skew))) - s.skew
		}
		c.start(a, start.Add(-time.Second))
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
	for i := 1; s.lending.limits > 0 && i < int(time.Duration(s.seconds)*time.Second/s.lending.limits); i++ {
		c.At(start.Add(time.Duration(i)*s.lending.limits), func() {
			for _, a := range c.agents {
				c.regenerate(a)
			}
		})
	}
	for i := 1; s.lending.reload > 0 && i < int(time.Duration(s.seconds)*time.Second/s.lending.reload); i++ {
		c.At(start.Add(time.Duration(i)*s.lending.reload), func() { c.reload(c.agents[i%len(c.agents)]) })
	}
	c.joinAndLeave(start)
	for i := 1; s.restart > 0 && i < int(time.Duration(s.seconds)*time.Second/s.restart); i++ {
		c.At(start.Add(time.Duration(i)*s.restart), func() { c.replace(c.agents[i%len(c.agents)]) })
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

// since is the time so many seconds after the load begins.
func (c *cluster) since(seconds int) time.Time {
	return simulation.Start.Add(c.begin + time.Duration(seconds)*time.Second)
}

// start gives an instance a new agent.
func (c *cluster) start(a *agent, at time.Time) {
	a.core, a.withdrawals, a.told = ratelimit.NewAgent(ratelimit.Config{}), 0, 0
	if !c.lending.on {
		a.core.Cluster(at, len(c.agents)+1, a.rank)
	}
	a.instances = c.scenario.agents
	if c.joins > 0 && c.Now.Before(c.since(0).Add(c.joins)) || c.leaves > 0 && !c.Now.Before(c.since(0).Add(c.leaves)) {
		a.instances--
	}
	a.core.Cluster(at, a.instances, a.rank)
	c.regenerate(a)
	a.core.RoundTrip(c.rtt)
	a.inflight = false
}

// replace restarts an agent; its HAProxy stays. One that leaves answers who waits
// and says what it has to say.
func (c *cluster) replace(a *agent) {
	if c.killed {
		for w := range a.waiting { // HAProxy lets them through, uncounted
			delete(a.waiting, w)
			c.answered++
		}
	} else {
		for w := range a.waiting {
			c.decided(a, w, a.core.Timeout(a.clock(c), w))
		}
		a.core.TakeOutput()
		a.core.Leave()
		for {
			asks := a.core.Collect(a.clock(c), true, nil)
			if len(asks) == 0 {
				break
			}
			grants := c.pool.hear(a.core, c.Now, asks)
			for i, ask := range asks {
				if ask.Need+ask.Ahead > 0 {
					c.problem("an agent that leaves asks for %+v", ask)
				}
				a.core.Reply(a.clock(c), ask, grants[i])
			}
		}
	}
	c.start(a, c.Now)
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
	if !c.serves(a) {
		return
	}
	sec := a.clock(c).Unix()
	c.offered[sec]++
	rates := c.rates
	if c.mixed && c.Rand.IntN(2) == 0 {
		rates = rates[len(rates)-1:]
	}
	admitted, said := c.native(a, rates)
	if said == ratelimit.Withheld && a.withdrawals > 0 {
		said = ratelimit.Uncertain
	}
	if admitted {
		c.answered++
		return
	}
	for _, r := range rates {
		if e := a.native[keyOf(r)]; sec < e.until && c.Now.Before(e.expires) {
			c.refused[sec]++
			c.answered++
			return
		}
	}
	first := a.first != sec
	a.first = sec
	c.questions[sec]++
	v, w := a.core.Start(a.clock(c), "u", rates, said)
	if left, of, ok := a.core.Left(a.clock(c), "u", rates); !ok || left < 0 || left > of.Max+of.Burst {
		c.problem("Left = %d of %+v, %v; want one of the limits and at most all of it", left, of, ok)
	}
	if w == nil {
		c.verdict(a, v, rates)
	} else if c.vain > 0 && c.Rand.Float64() < c.vain {
		a.waiting[w] = waiter{rates: rates, vain: true}
		core := a.core // it may be replaced meanwhile
		c.After(time.Duration(c.Rand.Int64N(int64(2*c.rtt))), func() {
			delete(a.waiting, w)
			c.answered++
			if a.core != core {
				return
			}
			core.Abandon(a.clock(c), w)
			c.pump(a)
		})
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

func (c *cluster) verdict(a *agent, v ratelimit.Verdict, rates []limits.Rate) {
	c.answered++
	if v.Allowed && c.vain > 0 && c.Rand.Float64() < c.vain {
		core := a.core
		c.After(time.Duration(c.Rand.Int64N(int64(2*c.rtt))), func() { // it may be of the second before, then
			if a.core == core {
				core.Cancel(a.clock(c), "u", rates, v)
				c.pump(a)
			}
		})
		return
	}
	if !v.Allowed {
		c.refused[v.Second]++
		return
	}
	for _, r := range rates {
		c.count(keyOf(r), startOf(r, v.Second))
	}
	c.lend(a)
}

// count takes note of a request admitted in a window.
func (c *cluster) count(k ratelimit.Key, window int64) {
	if c.admitted[k] == nil {
		c.admitted[k] = make(map[int64]int)
	}
	c.admitted[k][window]++
}

func keyOf(r limits.Rate) ratelimit.Key {
	return ratelimit.Key{Class: r.Class, User: "u", Window: r.Window}
}

func (c *cluster) decided(a *agent, w *ratelimit.Waiting, v ratelimit.Verdict) {
	info := a.waiting[w]
	if info.vain {
		return // it finds its verdict when it is taken back
	}
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
	c.verdict(a, v, info.rates)
}

// pump does what the daemon around the core does after each call.
func (c *cluster) pump(a *agent) {
	out := a.core.TakeOutput()
	for _, w := range out.Decided {
		if _, ok := a.waiting[w]; !ok {
			c.problem("a request was answered twice")
			continue
		}
		c.decided(a, w, w.Verdict)
	}
	for _, n := range out.TableEntries {
		c.After(time.Millisecond, func() { // through the peers session
			c.taught++
			if n.Lift {
				delete(a.native, n.Key)
			} else {
				a.native[n.Key] = entry{n.End, c.Now.Add(ratelimit.RefuseFor)}
			}
		})
	}
	for range out.Withdraw {
		c.withdrawal(a, a.clock(c).Unix())
	}
	if out.Urgent {
		c.send(a, false)
	}
}

func (c *cluster) tick(a *agent) {
	a.core.Tick(a.clock(c))
	c.pump(a)
	c.send(a, true)
	if broken := a.core.Broken(); broken != "" && len(c.problems) < 10 {
		c.problems = append(c.problems, broken)
	}
	c.After(c.flush, func() { c.tick(a) })
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
	core := a.core // it may be replaced meanwhile
	c.asked++
	c.entries += len(asks)
	there, back := c.delay(), c.delay()
	since := c.Now.Sub(c.since(0))
	if into := (since + there) % (500 * time.Millisecond); since > 0 && into < c.pause {
		there += c.pause - into
	}
	down := c.backAt > 0 && since >= c.lostAt && since < c.backAt
	if down && c.stops {
		c.At(c.since(0).Add(c.backAt+c.delay()), func() { c.unheard(asks, c.pool.hear(core, c.Now, asks)) })
	}
	lost := c.Rand.Float64() < c.loss
	if down || lost && c.Rand.IntN(2) == 0 {
		c.After(50*time.Millisecond, func() { c.failed(a, core, asks) })
		return
	}
	c.After(there, func() {
		grants := c.pool.hear(core, c.Now, asks)
		for i, ask := range asks {
			c.usage(a, ask, grants[i])
		}
		if lost {
			c.unheard(asks, grants)
			c.After(50*time.Millisecond, func() { c.failed(a, core, asks) })
			return
		}
		c.After(back, func() {
			if a.core != core {
				return
			}
			a.inflight = false
			for i, ask := range asks {
				a.core.Reply(a.clock(c), ask, grants[i])
			}
			c.pump(a)
			c.send(a, false)
		})
	})
}

// unheard notes tokens whose grant nobody hears of.
func (c *cluster) unheard(asks []ratelimit.Ask, grants []ratelimit.Grant) {
	for i, g := range grants {
		c.gone[poolKey{asks[i].WindowStart, asks[i].Key}] += g.Tokens
	}
}

// checkCounted holds each pool against what was admitted, when all agents have given
// back what they hold: it has counted that once, and tokens whose grant was lost.
func (c *cluster) checkCounted(t *testing.T) {
	t.Helper()
	for _, a := range c.agents {
		c.replace(a)
	}
	for _, r := range c.rates {
		k := keyOf(r)
		for window, admitted := range c.admitted[k] {
			if r.Window == limits.Second && window >= c.since(c.seconds-1).Unix() {
				continue // it may not be over
			}
			p := poolKey{window, k}
			if want := admitted + c.gone[p]; c.pool.totals[p] != want {
				t.Errorf("%s of %v: the pool counts %d, want %d admitted and %d granted in vain",
					r.Name(), time.Unix(window, 0).Sub(c.since(0)), c.pool.totals[p], admitted, c.gone[p])
			}
		}
	}
}

func (c *cluster) failed(a *agent, core *ratelimit.Agent, asks []ratelimit.Ask) {
	if a.core != core {
		return
	}
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
		c.watch.Observe(c.Now, fmt.Sprintf("%p", a), ask.Key, ask.WindowStart, g.Total, limits.Rate{Max: ask.Limit, Burst: ask.Burst, Calendar: berlin})
		hints, throttles := c.watch.Decisions()
		if len(hints)+len(throttles) == 0 {
			return
		}
		for _, to := range c.agents {
			c.After(c.delay(), func() {
				for _, h := range hints {
					to.core.MarkHot(to.clock(c), h.Key, h.Until, h.Instances)
					if to.instances > 1 {
						c.withdrawal(to, h.Until.Unix())
					}
				}
				for _, t := range throttles {
					to.core.Throttle(to.clock(c), t.Key, t.WindowStart, t.Limit)
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
		c.problems = append(c.problems, fmt.Sprintf("at %v: ", c.Now.Sub(c.since(0)))+fmt.Sprintf(format, args...))
	}
}

// worst is the largest admitted ÷ limit of any limit and window, with the second,
// and of a burst, of any span of seconds: n of them may have n limits and the burst.
func (c *cluster) worst() (ratio float64, second int64) {
	note := func(sec int64, admitted, limit int) {
		if x := float64(admitted) / float64(limit); x > ratio {
			ratio, second = x, sec-c.since(0).Unix()
		}
	}
	for _, r := range c.rates {
		admitted := c.admitted[keyOf(r)]
		if r.Burst == 0 {
			for sec, n := range admitted {
				note(sec, n, r.Max)
			}
			continue
		}
		for from := range admitted {
			sum := 0
			for sec := from; sec <= c.since(c.seconds+1).Unix(); sec++ {
				sum += admitted[sec]
				note(from, sum, int(sec-from+1)*r.Max+r.Burst)
			}
		}
	}
	return ratio, second
}

// mean is what was admitted of what could have been, against the last of the
// limits and the others of its class, over all seconds of the load: as much in
// each second as all of them have left.
func (c *cluster) mean() float64 {
	last := c.rates[len(c.rates)-1]
	credit := make([]int, len(c.rates))
	for i, r := range c.rates {
		credit[i] = r.Burst
	}
	left := make(map[poolKey]int)
	could, got := 0, 0
	for i := range int64(c.seconds) + 1 {
		sec := c.since(0).Unix() + i
		n := c.offered[sec]
		for i, r := range c.rates {
			if r.Class != last.Class {
				continue
			}
			k := poolKey{startOf(r, sec), keyOf(r)}
			if _, seen := left[k]; !seen {
				left[k] = r.Max + credit[i]
			}
			n = min(n, left[k])
		}
		for i, r := range c.rates {
			k := poolKey{startOf(r, sec), keyOf(r)}
			left[k] -= n
			credit[i] = min(r.Burst, left[k])
		}
		could += n
	}
	for _, n := range c.admitted[keyOf(last)] {
		got += n
	}
	return float64(got) / float64(could)
}

// wronged is the part of the requests that were refused in seconds in which
// less than 0.9 of the limit was offered, in the second and in its longer windows.
func (c *cluster) wronged() float64 {
	in := make(map[poolKey]int)
	for sec, n := range c.offered {
		for _, r := range c.rates {
			in[poolKey{startOf(r, sec), keyOf(r)}] += n
		}
	}
	var refused, offered int
	last := c.rates[len(c.rates)-1]
	for sec, n := range c.offered {
		below := true
		for _, r := range c.rates {
			below = below && (r.Class != last.Class || 10*in[poolKey{startOf(r, sec), keyOf(r)}] < 9*r.Max)
		}
		if below {
			refused += c.refused[sec]
			offered += n
		}
	}
	if offered == 0 {
		return 0
	}
	return float64(refused) / float64(offered)
}
