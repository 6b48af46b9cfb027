// Package simulation_test simulates a cluster: the cores that ship, in agents, HAProxies, polygens
// and a Redis that are played, over links that fail, in virtual time and in one goroutine. All that
// happens follows from a history, which is drawn from a seed.
package simulation_test

import (
	"fmt"
	"time"

	"github.com/sluice-qos/sluice/test/simulation"
)

// world is one run of a history.
type world struct {
	*simulation.Run
	history
	redis    *redis
	edges    []*edge
	polygens []*polygen
	judge    judge
	steps    int
	trace    func(format string, args ...any) // nil: nobody wants to know
}

// run plays a history and returns it with what was wrong.
func (h history) run() *world {
	w := h.begin()
	w.probe()
	return w
}

// begin has everything that a history needs ready.
func (h history) begin() *world {
	w := &world{Run: simulation.New(h.seed), history: h}
	if *show {
		w.trace = func(format string, args ...any) { fmt.Printf(format+"\n", args...) }
	}
	w.judge = newJudge(w)
	w.redis = &redis{process: process{world: w, number: 0}, stored: newStored(), offset: h.skews[0]}
	for i := range h.instances {
		e := &edge{world: w, number: i, wall: h.skews[1+i]}
		e.haproxy = newHAProxy(e)
		w.edges = append(w.edges, e)
		// They do not begin in the same instant.
		w.After(time.Duration(i)*7*time.Millisecond, e.startAgent)
	}
	for i := range h.polygens {
		p := &polygen{process: process{world: w, number: 1 + h.instances + i, name: fmt.Sprint("polygen-", i)}, number: i, offset: h.skews[1+h.instances+i]}
		w.polygens = append(w.polygens, p)
		p.start()
	}
	for _, e := range h.events {
		if e.kind == failover {
			// A replica that is behind has what the master had then.
			w.After(max(0, e.at-e.by), func() { w.redis.replica = w.redis.copy() })
		}
		w.After(e.at, func() { w.happen(e) })
	}
	w.judge.start()
	return w
}

// happen lets an event of the history happen.
func (w *world) happen(e event) {
	w.note("%s", e.String()[11:])
	until := w.Now.Add(e.span)
	if e.kind == load {
		for i := range e.n {
			w.After(time.Duration(i)*e.span/time.Duration(e.n), func() { w.edges[e.who].haproxy.request(e.user, e.work, nil) })
		}
		return
	}
	switch e.kind {
	case cutPolygen, losePolygen, pausePolygen, crashPolygen:
		w.polygens[e.who].happen(e, until)
	case pauseRedis, emptyRedis, failover, setRedisClock:
		w.redis.happen(e, until)
	case setMachineClock:
		w.edges[e.who].wall += e.by
	default:
		w.edges[e.who].happen(e, until)
	}
}

func (w *world) note(format string, args ...any) {
	if w.trace != nil {
		w.trace("%9.4f s  %s", w.since().Seconds(), fmt.Sprintf(format, args...))
	}
}

// since is how long the run has lasted.
func (w *world) since() time.Duration { return w.Now.Sub(simulation.Start) }

// process is one that may stand still, die, and be badly connected to Redis.
type process struct {
	world  *world
	number int
	name   string
	life   int       // that of what it was before is over
	paused time.Time // it stands still until then
	sent   uint64    // messages
	link
}

// link is the way between a process and Redis.
type link struct {
	cut       time.Time // all is lost until then
	lossy     time.Time // and so on
	slow      time.Time
	slowBy    time.Duration
	shuffled  time.Time
	shuffleBy time.Duration
	twice     time.Time
	twiceBy   time.Duration
}

// disturb has an event change the way to Redis.
func (p *process) disturb(e event, until time.Time) {
	switch e.kind {
	case cutAgent, cutPolygen:
		p.cut = until
	case loseAgent, losePolygen:
		p.lossy = until
	case slowAgent:
		p.slow, p.slowBy = until, e.by
	case shuffle:
		p.shuffled, p.shuffleBy = until, e.by
	case duplicate:
		p.twice, p.twiceBy = until, e.by
	case pauseAgent, pausePolygen, pauseRedis:
		p.paused = until
	}
}

// after has the process do something a while from now, if it lives and runs by then.
func (p *process) after(d time.Duration, do func()) {
	life := p.life
	p.world.After(max(0, d), func() { p.do(life, do) })
}

func (p *process) do(life int, do func()) {
	if p.life != life {
		return
	}
	if p.world.Now.Before(p.paused) {
		p.world.At(p.paused, func() { p.do(life, do) })
		return
	}
	p.world.steps++
	do()
}

// chance is a number from 0 to below 1 that follows from the history's seed and how much the
// process has sent, so that what is left out of a history changes no other process' luck.
func (p *process) chance() float64 {
	p.sent++
	x := p.world.seed ^ uint64(p.number)<<32 ^ p.sent*0x9e3779b97f4a7c15
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	x ^= x >> 31
	return float64(x>>11) / (1 << 53)
}

// delay is how long a message takes one way.
func (p *process) delay() time.Duration {
	d := time.Duration((0.5 + p.chance()) * float64(p.world.roundTrip/2))
	if now := p.world.Now; now.Before(p.slow) {
		d += p.slowBy
	}
	return d
}

// toRedis has Redis do something when a message of the process has come there.
func (p *process) toRedis(do func()) {
	if p.world.Now.Before(p.cut) {
		return
	}
	r := p.world.redis
	p.world.After(p.delay(), func() { r.do(r.life, do) })
}

// fromRedis has the process do something when a message of Redis has come.
func (p *process) fromRedis(do func()) {
	if p.world.Now.Before(p.cut) {
		return
	}
	p.after(p.delay(), do)
}

// hearsay has the process do something when a message that was published has come. Those come by
// several connections, so they may be late in any order.
func (p *process) hearsay(do func()) {
	if p.world.Now.Before(p.cut) || p.world.Now.Before(p.lossy) && p.chance() < 0.5 {
		return
	}
	d := p.delay()
	if p.world.Now.Before(p.shuffled) {
		d += time.Duration(p.chance() * float64(p.shuffleBy))
	}
	p.after(d, do)
}

// callTimeout is bus.DefaultTimeout.
const callTimeout = 250 * time.Millisecond

// call asks Redis, and hears the answer, or that there is none, once.
func call[T any](p *process, ask func(s *stored, at time.Time) T, done func(answer T, ok bool)) {
	var none T
	heard := false
	hear := func(answer T, ok bool) {
		if !heard {
			heard = true
			done(answer, ok)
		}
	}
	p.after(callTimeout, func() { hear(none, false) })
	life, r := p.life, p.world.redis
	if r.down {
		p.after(p.delay()*2, func() { hear(none, false) })
		return
	}
	p.toRedis(func() {
		answer := ask(r.stored, r.now())
		if p.life == life {
			p.fromRedis(func() { hear(answer, true) })
		}
	})
	if p.world.Now.Before(p.twice) {
		late := time.Duration(p.chance() * float64(p.twiceBy))
		p.world.After(late, func() { p.toRedis(func() { ask(r.stored, r.now()) }) })
	}
}

// redis is the process that has what is stored.
type redis struct {
	process
	*stored
	replica *stored
	offset  time.Duration
	down    bool
}

// now is its clock.
func (r *redis) now() time.Time { return r.world.Now.Add(r.offset).Truncate(time.Microsecond) }

func (r *redis) happen(e event, until time.Time) {
	switch e.kind {
	case pauseRedis:
		r.disturb(e, until)
	case emptyRedis:
		r.stored = newStored()
	case setRedisClock:
		r.offset += e.by
	case failover:
		r.life++ // what is on its way to the master is lost
		r.down, r.stored = true, r.replica.copy()
		r.world.At(until, func() { r.down = false })
	}
}
