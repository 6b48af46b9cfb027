package concurrency_test

import (
	"fmt"
	"time"

	"github.com/sluice-qos/sluice/pkg/concurrency"
	"github.com/sluice-qos/sluice/pkg/credit"
	"github.com/sluice-qos/sluice/test/simulation"
)

// A cluster is a simulated one: clients, HAProxies that track requests, agents,
// the pool and polygen, over links that delay and lose messages, in simulated
// time. Agents, the pool's arithmetic and polygen's rule are the very code that
// ships.
type cluster struct {
	scenario
	*simulation.Run
	agents   []*agent
	names    []string
	pool     map[string]concurrency.Holding
	watch    *concurrency.Watch
	running  int // requests at the origin
	most     int
	area     float64 // running × seconds since the warm-up
	areaAt   time.Time
	unblocks int // policies

	freedAt     time.Time       // when a slot became free while clients wanted one; zero if none did
	idleFor     []time.Duration // from there to the next admission
	asked       int
	answered    int
	natively    int // admitted by HAProxy itself
	withdrawals int
	started     int
	refused     int
	longest     time.Duration // that a request waited for the pool
	unheld      bool          // a request was admitted without a slot, because the pool was silent
	problems    []string
}

// scenario describes one run of one user.
type scenario struct {
	seed     uint64
	agents   int
	limit    int
	clients  []int // closed loops at each agent
	ramp     time.Duration
	retry    time.Duration // after a refusal
	work     func(*simulation.Run) time.Duration
	hold     time.Duration // how long requests wait in line; 0: they are refused
	abort    float64       // chance that an admitted request never comes to be
	link     simulation.Link
	seconds  int
	silent   bool          // polygen is dead
	together bool          // all clients begin in the same instant
	begins   time.Duration // when the load does
	ends     bool          // the load, 1.15 s before the run does, with credit 12 s
	dies     time.Duration // when polygen does; 0: it does not
	pause    time.Duration // the pool answers nothing for so long, each half second
	lostAt   time.Duration
	backAt   time.Duration
	young    bool          // the instances have just met
	moveEach time.Duration // all clients move to the next agent so often

	credit  bool          // HAProxy may have places
	change  time.Duration // the generation of credit changes so often; 0: never
	faults  bool          // questions and withdrawals take long, and get lost
	reload  time.Duration // each HAProxy is reloaded so often; 0: never
	restart time.Duration // or restarted
	rates   time.Duration // credit is withdrawn so often, and often just given, because of rates; 0: never
}

// work like the acceptance test's: 0.15 to 2.85 s.
func mixedWork(r *simulation.Run) time.Duration {
	return 150*time.Millisecond + time.Duration(r.Rand.Int64N(int64(2700*time.Millisecond)))
}

type agent struct {
	core     *concurrency.Agent
	name     string
	inflight bool
	pumping  bool
	haproxy  *haproxy   // that takes new requests
	session  *haproxy   // that the agent talks to, by peers and the runtime API
	replaced []*haproxy // by reloads, with requests in progress
	native   int64      // HAProxy's block table: the deadline
	waiting  map[*concurrency.Waiting]*waiter

	withdrawal *withdrawal // nil: HAProxy may be given credit
	arrived    int         // requests that waited so far
	served     int         // place of the last one in line that was admitted
}

type waiter struct {
	since  time.Time
	due    time.Time
	inLine bool
	place  int // in the order of arrival
	client func(concurrency.Verdict)
}

const warmUp = 3 * time.Second

func (s scenario) run() *cluster {
	c := &cluster{
		scenario: s, Run: simulation.New(s.seed),
		pool: make(map[string]concurrency.Holding), watch: concurrency.NewWatch(0),
	}
	c.areaAt = c.Now.Add(warmUp)
	for i := range s.agents {
		a := &agent{name: fmt.Sprint("i", i), waiting: make(map[*concurrency.Waiting]*waiter)}
		a.core = concurrency.NewAgent(concurrency.Config{
			Instance: a.name, Lookup: func(string) (int, bool) { return s.limit, s.credit },
		})
		met := c.Now.Add(-time.Minute)
		if s.young {
			met = c.Now
		}
		a.core.Cluster(met, s.agents, i)
		a.haproxy = &haproxy{process: 1}
		a.session = a.haproxy
		c.agents = append(c.agents, a)
		c.names = append(c.names, a.name)
		if s.credit {
			c.maintain(a)
		}
		c.After(time.Duration(i)*time.Millisecond, func() { c.tick(a) })
		if s.backAt > 0 {
			c.After(s.lostAt+25*time.Millisecond, func() { a.core.Lost(c.Now, true); c.pump(a) })
			c.After(s.backAt+200*time.Millisecond, func() { a.core.Lost(c.Now, false); c.pump(a) })
		}
	}
	c.watch.Instances(c.Now, c.names)
	c.After(0, c.watchTick)
	client := 0
	for i, n := range s.clients {
		for range n {
			at := time.Duration(c.Rand.Int64N(int64(max(s.retry, 10*time.Millisecond))))
			if s.together {
				at = 0
			}
			if s.ramp > 0 {
				at = s.ramp * time.Duration(client) / time.Duration(total(s.clients))
			}
			client++
			c.After(s.begins+at, func() { c.client(i) })
		}
	}
	c.Until(c.Now.Add(time.Duration(s.seconds) * time.Second))
	c.account()
	return c
}

func total(ns []int) (sum int) {
	for _, n := range ns {
		sum += n
	}
	return sum
}

// client is one closed loop.
func (c *cluster) client(home int) {
	at := home
	if c.moveEach > 0 {
		at = (home + int(c.since()/c.moveEach)) % len(c.agents)
	}
	if c.ends && c.over() {
		return
	}
	a := c.agents[at]
	c.request(a, func(r *request, v concurrency.Verdict) {
		if !v.Allowed {
			r.leave()
			c.After(c.retry, func() { c.client(home) })
			return
		}
		c.begin(a, r, func() { c.client(home) })
	})
}

func (c *cluster) await(a *agent, r *request, v concurrency.Verdict, w *concurrency.Waiting, inLine bool, most time.Duration, answer func(*request, concurrency.Verdict)) {
	decided := func(v concurrency.Verdict) {
		if !v.Allowed && !inLine && c.hold > 0 {
			v, w := a.core.Hold(c.Now, "u", c.limit, r.count(), r.places())
			c.await(a, r, v, w, true, c.hold, answer)
			c.pump(a)
			return
		}
		if v.Allowed && c.credit {
			c.lend(a, r)
		}
		c.answer(r, v, answer)
	}
	if w == nil {
		decided(v)
		return
	}
	a.arrived++
	a.waiting[w] = &waiter{place: a.arrived, since: c.Now, due: c.Now.Add(most), inLine: inLine, client: decided}
	c.After(most, func() {
		if _, still := a.waiting[w]; still {
			v := a.core.Timeout(c.Now, w)
			c.unheld = c.unheld || v.Allowed
			c.decided(a, w, v)
			c.pump(a)
		}
	})
}

func (c *cluster) decided(a *agent, w *concurrency.Waiting, v concurrency.Verdict) {
	x := a.waiting[w]
	delete(a.waiting, w)
	if c.Now.After(x.due) {
		c.problem("a request waited %v longer than it may", c.Now.Sub(x.due))
	}
	if x.inLine && v.Allowed {
		if x.place < a.served {
			c.problem("request %d was admitted after %d", x.place, a.served)
		}
		a.served = x.place
	}
	if !x.inLine {
		c.longest = max(c.longest, c.Now.Sub(x.since))
	}
	x.client(v)
}

func (c *cluster) answer(r *request, v concurrency.Verdict, client func(*request, concurrency.Verdict)) {
	c.answered++
	if !v.Allowed {
		c.refused++
	}
	client(r, v)
}

// begin runs a request that the agent admitted.
func (c *cluster) begin(a *agent, r *request, then func()) {
	h := r.haproxy
	if r.native {
		c.runs(h, r.leave, then)
		return
	}
	if c.Rand.Float64() < c.abort {
		if c.Rand.IntN(2) == 0 {
			c.write(r)
		}
		r.leave()
		then() // the client has gone: HAProxy never tracks it
		return
	}
	c.After(100*time.Microsecond+c.late(), func() {
		if h.dead {
			then()
			return
		}
		c.write(r)
		h.table.Tracked++
		h.table.Active++
		c.push(a, h)
		c.runs(h, func() {
			h.table.Active--
			r.leave()
			c.push(a, h)
		}, then)
	})
}

// runs is a request at the origin.
func (c *cluster) runs(h *haproxy, end, then func()) {
	c.account()
	c.running++
	h.running++
	c.most = max(c.most, c.running)
	if !c.freedAt.IsZero() {
		c.idleFor = append(c.idleFor, c.Now.Sub(c.freedAt))
		c.freedAt = time.Time{}
	}
	c.After(c.work(c.Run), func() {
		if !h.dead {
			c.account()
			if c.running == c.limit && total(c.clients) > 2*c.limit && c.Now.After(simulation.Start.Add(warmUp)) {
				c.freedAt = c.Now
			}
			c.running--
			h.running--
			end()
		}
		then()
	})
}

// push is HAProxy telling its agent, a little later, of what has changed.
func (c *cluster) push(a *agent, h *haproxy) {
	if h.pushing || h.stopping || h != a.session {
		return
	}
	h.pushing = true
	c.After(time.Millisecond+time.Duration(c.Rand.ExpFloat64()*float64(time.Millisecond)), func() {
		h.pushing = false
		seen := h.table
		c.After(200*time.Microsecond, func() {
			if h == a.session {
				a.core.Progress(c.Now, "u", c.limit, seen)
				c.pump(a)
			}
		})
	})
}

// account adds up how much has been running.
func (c *cluster) account() {
	if c.Now.After(c.areaAt) {
		c.area += float64(c.running) * c.Now.Sub(c.areaAt).Seconds()
		c.areaAt = c.Now
	}
}

// over reports whether the load has ended.
func (c *cluster) over() bool {
	tail := 1150 * time.Millisecond
	if c.credit {
		tail = 12 * time.Second // slots go back only when the user has been far from the limit for a while
	}
	return c.since() > time.Duration(c.seconds)*time.Second-tail
}

// since is how long the run has lasted.
func (c *cluster) since() time.Duration { return c.Now.Sub(simulation.Start) }

func (c *cluster) mean() float64 {
	return c.area / (c.areaAt.Sub(simulation.Start) - warmUp).Seconds()
}

// pump does what the daemon around the core does after each call.
func (c *cluster) pump(a *agent) {
	if a.pumping {
		return // what was decided earlier comes first
	}
	a.pumping = true
	defer func() { a.pumping = false }()
	for {
		out := a.core.TakeOutput()
		for range out.Withdraw {
			c.withdraw(a)
		}
		for _, n := range out.TableEntries {
			c.After(time.Millisecond, func() { a.native = n.Until })
		}
		for _, w := range out.Decided {
			if _, ok := a.waiting[w]; !ok {
				c.problem("a request was answered twice")
				continue
			}
			c.decided(a, w, w.Verdict)
		}
		if out.Urgent {
			c.send(a, false)
		}
		if len(out.Decided) == 0 {
			c.verify(a)
			return
		}
	}
}

func (c *cluster) tick(a *agent) {
	a.core.Tick(c.Now)
	c.forget(a)
	c.pump(a)
	c.send(a, true)
	c.After(5*time.Millisecond, func() { c.tick(a) })
}

func (c *cluster) send(a *agent, flush bool) {
	if a.inflight {
		return
	}
	asks := a.core.Collect(c.Now, flush, nil)
	if len(asks) == 0 {
		return
	}
	for _, ask := range asks {
		if held := a.core.Held(ask.User); held > ask.Want {
			c.problem("an agent that asks for %d slots goes on to use %d", ask.Want, held)
		}
	}
	a.inflight = true
	c.asked++
	there, back := c.Delay(c.link), c.Delay(c.link)
	if into := (c.since() + there) % (500 * time.Millisecond); into < c.pause {
		there += c.pause - into
	}
	down := c.backAt > 0 && c.since() >= c.lostAt && c.since() < c.backAt
	lost := c.Rand.Float64() < c.link.Loss
	if lost && c.Rand.IntN(3) == 0 {
		// It is lost for the agent only, and arrives when a later one has.
		c.After(80*time.Millisecond, func() { c.take(a, asks) })
		lost, down = true, true
	}
	if down || lost && c.Rand.IntN(2) == 0 {
		c.After(50*time.Millisecond, func() { c.failed(a, asks) })
		return
	}
	c.After(there, func() {
		grants := c.take(a, asks)
		if lost {
			c.After(50*time.Millisecond, func() { c.failed(a, asks) })
			return
		}
		c.After(back, func() {
			a.inflight = false
			for i, ask := range asks {
				a.core.Reply(c.Now, ask, grants[i])
			}
			c.pump(a)
			c.send(a, false)
		})
	})
}

func (c *cluster) failed(a *agent, asks []concurrency.Ask) {
	a.inflight = false
	for _, ask := range asks {
		a.core.Fail(c.Now, ask)
	}
	c.pump(a)
}

// take is the script in Redis, which also tells polygen of users near their limits.
func (c *cluster) take(a *agent, asks []concurrency.Ask) []concurrency.Grant {
	grants := make([]concurrency.Grant, len(asks))
	for i, ask := range asks {
		if ask.User != "u" {
			continue
		}
		before, had, newer := c.active(), c.holding(a.name), ask.Seq > c.pool[a.name].Seq
		grants[i] = concurrency.Take(c.pool, len(c.names), a.name, ask)
		held := 0
		for _, name := range c.names {
			held += c.holding(name)
		}
		// Places that may be in use are registered, even if they count twice for a moment.
		registered := c.credit && grants[i].Held <= max(had, ask.Active)
		if held > ask.Limit && newer && c.backAt == 0 && !c.mayExceed() && !registered {
			c.problem("%d slots are held, of %d", held, ask.Limit)
		}
		if newer && !c.mute() && (10*max(before, c.active()) >= 7*ask.Limit || ask.Refused > 0) {
			c.After(c.Delay(c.link), func() {
				c.watch.Observe(c.Now, concurrency.Report{Instance: a.name, User: ask.User, Active: ask.Active, Refused: ask.Refused, Limit: ask.Limit})
				c.decree()
			})
		}
	}
	return grants
}

// mute reports whether polygen is dead.
func (c *cluster) mute() bool { return c.silent || c.dies > 0 && c.since() >= c.dies }

// verify holds what the pool, the agent and HAProxy know of slots against each
// other: who is nearer to the pool may only know of more.
func (c *cluster) verify(a *agent) {
	bound, believed := a.core.Bound("u"), a.core.InProgress("u")
	if running := a.running(); bound < running {
		c.problem("%s takes %d to be in progress at most, of %d", a.name, bound, running)
	}
	free, known := a.core.FreeSlots("u")
	if free < 0 || free > c.limit || len(c.agents) == 1 && known && c.backAt == 0 && free != max(0, c.limit-believed) {
		c.problem("Free = %d with %d of %d in progress", free, believed, c.limit)
	}
	if len(c.agents) == 1 || c.mayExceed() || c.backAt > 0 || !known {
		return
	}
	// A request that the places admit while they are withdrawn is counted twice for a moment.
	need := bound
	if c.credit {
		need = a.running()
	}
	if held := a.core.Held("u"); held < need {
		c.problem("%s holds %d slots for %d requests", a.name, held, need)
	} else if pool := c.holding(a.name); pool < held {
		c.problem("the pool believes %d slots held, of %d", pool, held)
	}
}

// holding is how many slots the pool takes an instance to hold.
func (c *cluster) holding(name string) int {
	h, asked := c.pool[name]
	if !asked && c.credit && len(c.agents) > 1 {
		return credit.Portion(c.limit, len(c.agents))
	}
	return h.Held
}

// mayExceed reports whether an instance may have admitted its part without a slot: requests
// can time out, as they do now and then on a good link too.
func (c *cluster) mayExceed() bool {
	return c.unheld || c.link.Loss > 0 || c.link.Stall > 0 || c.pause > 0
}

func (c *cluster) active() (n int) {
	for _, h := range c.pool {
		n += h.Active
	}
	return n
}

func (c *cluster) watchTick() {
	if !c.mute() {
		c.watch.Tick(c.Now)
		c.decree()
	}
	c.After(100*time.Millisecond, c.watchTick)
}

// decree sends polygen's policies to all agents.
func (c *cluster) decree() {
	d := c.watch.Decisions()
	if d.IsEmpty() {
		return
	}
	c.unblocks += len(d.Unblocks)
	for _, a := range c.agents {
		c.After(c.Delay(c.link), func() {
			for _, b := range d.Blocks {
				a.core.Block(c.Now, b.User, b.Limit)
			}
			for _, u := range d.Unblocks {
				a.core.Unblock(c.Now, u)
			}
			for _, s := range d.Sharings {
				a.core.Share(c.Now, s)
			}
			c.pump(a)
		})
	}
}

func (c *cluster) problem(format string, args ...any) {
	if len(c.problems) < 10 {
		c.problems = append(c.problems, fmt.Sprintf("at %v: ", c.since())+fmt.Sprintf(format, args...))
	}
}
