package concurrency_test

import (
	"time"

	"github.com/sluice-qos/sluice/pkg/concurrency"
)

// A haproxy is one simulated process: what its tables say of the user.
type haproxy struct {
	process int64
	running int               // requests at the origin
	table   concurrency.Count // the table of requests that the agent admitted
	pushing bool

	// The table of credit.
	outdated bool // it is of another generation, so that nothing in it is in force
	credited bool
	places   int
	from     time.Time // when it begins to admit by itself
	counted  int       // requests tracked: conn_cur
	taken    int64     // the second in which credit was last withdrawn: answers of it bring none

	stopping bool      // a reload has put another process in its place,
	stopped  time.Time // then
	dead     bool
}

// A request is one on its way through a HAProxy.
type request struct {
	haproxy *haproxy
	native  bool  // HAProxy admitted it by itself
	grant   int   // places that the answer lends
	second  int64 // of that answer
	lent    bool  // there was credit when it came
	tracked bool  // in the table of credit
	here    int   // the count when it was tracked
	limit   int   // the places then
}

// leave is the end of a request in the table of credit.
func (r *request) leave() {
	if r.tracked {
		r.tracked = false
		r.haproxy.counted--
	}
}

func (r *request) track() {
	if !r.tracked {
		r.tracked = true
		r.haproxy.counted++
	}
}

func (r *request) count() concurrency.Count {
	count := r.haproxy.table
	count.Process = r.haproxy.process
	return count
}

func (r *request) places() concurrency.Places {
	if !r.lent {
		return concurrency.Places{}
	}
	return concurrency.Places{Lent: true, Here: r.here, Places: r.limit}
}

// request is what HAProxy does with a request until there is a verdict.
func (c *cluster) request(a *agent, answer func(*request, concurrency.Verdict)) {
	c.started++
	r := &request{haproxy: a.haproxy}
	if n := len(a.replaced); n > 0 && c.Rand.IntN(10) == 0 {
		r.haproxy = a.replaced[n-1] // a connection from before the reload
	}
	if a.native > c.Now.Unix() {
		c.answer(r, concurrency.Verdict{Limit: c.limit}, answer)
		return
	}
	ask := func() {
		v, w := a.core.Start(c.Now, "u", c.limit, r.count(), r.places())
		c.await(a, r, v, w, false, max(5*c.link.RTT, 10*time.Millisecond), answer)
		c.pump(a)
	}
	if !c.credit {
		ask()
		return
	}
	// Another thread may be between any two of these steps.
	h := r.haproxy
	then := func(step func()) {
		c.After(c.step(), func() {
			if h.dead {
				c.answer(r, concurrency.Verdict{Limit: c.limit}, answer)
				return
			}
			step()
		})
	}
	r.lent = h.credited
	then(func() {
		if r.lent {
			r.track()
		}
		then(func() {
			r.here, r.limit = h.counted, h.places
			ticket := c.Rand.IntN(20) > 0 // the rate does not refuse it
			lasts := !c.Now.Before(h.from) && (!h.stopping || c.Now.Sub(h.stopped) <= 2*time.Second)
			if !r.lent || !lasts || h.outdated || r.here > r.limit || !ticket {
				then(ask)
				return
			}
			then(func() {
				if !h.credited {
					then(ask)
					return
				}
				r.native = true
				c.natively++
				c.answer(r, concurrency.Verdict{Allowed: true}, answer)
			})
		})
	})
}

// step is how long a thread takes for a step: mostly no time.
func (c *cluster) step() time.Duration {
	switch n := c.Rand.IntN(100); {
	case n < 80:
		return 0
	case n < 99 || !c.faults:
		return time.Duration(c.Rand.IntN(300)) * time.Microsecond
	}
	return time.Duration(c.Rand.IntN(30)) * time.Millisecond
}

// late is how much later than usual HAProxy takes an answer.
func (c *cluster) late() time.Duration {
	if c.faults && c.Rand.IntN(20) == 0 {
		return time.Duration(c.Rand.IntN(80)) * time.Millisecond
	}
	return 0
}

// lend has the answer to an admitted request bring places.
func (c *cluster) lend(a *agent, r *request) {
	if r.native || r.lent || a.withdrawal != nil || !a.core.Lendable(c.Now, "u") {
		return
	}
	if c.rates > 0 && c.Rand.IntN(3) == 0 { // hot by now, for another agent's word
		c.After(time.Duration(c.Rand.IntN(150))*time.Millisecond, func() { c.withdraw(a) })
	}
	r.second = c.Now.Unix()
	if r.grant = a.core.Lend(c.Now, "u"); r.grant <= 0 {
		c.problem("%d places were lent", r.grant)
	}
	if c.faults && c.Rand.IntN(10) == 0 {
		r.grant = 0 // it came too late
	}
}

// write is HAProxy taking the places that an answer brings.
func (c *cluster) write(r *request) {
	if r.grant > 0 && !r.haproxy.dead {
		r.track()
		h := r.haproxy
		if r.second <= h.taken {
			return
		}
		h.places, h.from, h.credited = r.grant, c.Now.Truncate(time.Second).Add(time.Second), true
		h.outdated = false
	}
}

// withdrawal is what the daemon knows of credit that it takes back, until it may be given again.
type withdrawal struct {
	through int64 // the last second without
	told    bool  // HAProxy has confirmed it
	rest    int   // as HAProxy said last
}

// withdraw is what the daemon does when credit is to be taken back, for the rates or
// because the core wants the places: once, for it lasts at least until the second is over.
func (c *cluster) withdraw(a *agent) {
	through := c.Now.Unix() + 1
	switch w := a.withdrawal; {
	case w == nil:
		a.withdrawal = &withdrawal{through: through}
		c.takeBack(a)
	case w.told: // the core has not heard of it
		w.through = max(w.through, through)
		c.tell(a, a.session, w, 5*time.Millisecond)
	}
}

// takeBack has HAProxy take the credit away, and tells the core what is left until nothing is.
func (c *cluster) takeBack(a *agent) {
	h, w := a.session, a.withdrawal
	if c.faults && c.Rand.IntN(5) == 0 {
		c.After(50*time.Millisecond, func() { c.takeBack(a) }) // nothing comes of it
		return
	}
	c.withdrawals++
	second := c.Now.Unix()
	c.After(c.runtime(), func() {
		if h != a.session || h.dead {
			return // the new process is told
		}
		h.credited, h.taken = false, second
		rest := h.counted
		c.After(c.runtime(), func() {
			if h == a.session {
				w.told, w.rest, w.through = true, rest, max(w.through, c.Now.Unix()+1)
				c.tell(a, h, w, 5*time.Millisecond)
			}
		})
	})
}

// tell tells the agent of the count in the table of credit, and reads it again later.
func (c *cluster) tell(a *agent, h *haproxy, w *withdrawal, gap time.Duration) {
	a.core.Withdrawn(c.Now, "u", w.rest)
	c.pump(a)
	if w.rest == 0 {
		return
	}
	c.After(gap+c.runtime(), func() {
		rest := h.counted
		c.After(c.runtime(), func() {
			if h == a.session && w == a.withdrawal && w.told {
				w.rest = min(w.rest, rest)
				c.tell(a, h, w, min(2*gap, 100*time.Millisecond))
			}
		})
	})
}

// forget lets credit be given again.
func (c *cluster) forget(a *agent) {
	if w := a.withdrawal; w != nil && w.told && w.rest == 0 && c.Now.Unix() > w.through {
		a.withdrawal = nil
	}
}

// withdrawAgain tells a new process of what the old one had been told.
func (c *cluster) withdrawAgain(a *agent) {
	if w := a.withdrawal; w != nil {
		w.told = false
		c.takeBack(a)
	}
}

// runtime is how long the runtime API takes one way.
func (c *cluster) runtime() time.Duration {
	if c.faults && c.Rand.IntN(10) == 0 {
		return time.Duration(c.Rand.IntN(40)) * time.Millisecond
	}
	return 50*time.Microsecond + time.Duration(c.Rand.IntN(1000))*time.Microsecond
}

// introduce has a request of another user tell the agent which process it is with.
func (c *cluster) introduce(a *agent) {
	if _, w := a.core.Start(c.Now, "other", 1, concurrency.Count{Process: a.session.process}, concurrency.Places{}); w != nil {
		a.core.Abandon(c.Now, w)
	}
}

// maintain reloads or restarts an agent's HAProxy now and then, and tells the agent what
// people are to see.
func (c *cluster) maintain(a *agent) {
	var natives func()
	natives = func() {
		a.core.Natives(c.Now, "u", a.session.running-int(a.session.table.Active))
		c.After(time.Second, natives)
	}
	c.After(time.Second, natives)
	c.introduce(a)
	each := func(period time.Duration, do func()) {
		var again func()
		again = func() {
			do()
			c.After(period+time.Duration(c.Rand.Int64N(int64(period))), again)
		}
		if period > 0 {
			c.After(time.Duration(c.Rand.Int64N(int64(2*period))), again)
		}
	}
	each(c.rates, func() { c.withdraw(a) })
	if c.faults {
		each(time.Second, func() { a.forgetEntry() })
	}
	each(c.change, func() { c.changes(a) })
	each(c.reload, func() { c.reloads(a) })
	each(c.restart, func() { c.restarts(a) })
}

// changes is another generation of credit: what is in force of the one before ends with the second.
func (c *cluster) changes(a *agent) {
	h := a.session
	c.After(time.Duration(c.Rand.IntN(1000))*time.Millisecond, func() { h.outdated = h.credited })
}

// forgetEntry has HAProxy forget a user without requests, as when its table is full.
func (a *agent) forgetEntry() {
	if h := a.haproxy; h.counted == 0 {
		h.credited = false
	}
}

func (c *cluster) reloads(a *agent) {
	old := a.haproxy
	if old != a.session || c.over() {
		return
	}
	old.stopping, old.stopped = true, c.Now
	a.replaced = append(a.replaced, old)
	a.haproxy = &haproxy{process: old.process + 1}
	c.After(time.Duration(20+c.Rand.IntN(400))*time.Millisecond, func() {
		a.session = a.haproxy
		a.core.Replaced(c.Now)
		c.withdrawAgain(a)
		c.introduce(a)
		c.push(a, a.session) // it tells all that it has
		c.pump(a)
		if len(a.replaced) == 1 {
			c.drain(a)
		}
	})
}

// drain waits for the end of the processes that were replaced.
func (c *cluster) drain(a *agent) {
	running := 0
	for _, h := range a.replaced {
		running += h.running + h.counted
	}
	if running == 0 && a.session == a.haproxy && c.Rand.IntN(5) == 0 {
		for _, h := range a.replaced {
			h.dead = true
		}
		a.replaced = nil
		a.core.Drained(c.Now)
		c.pump(a)
		return
	}
	c.After(20*time.Millisecond, func() { c.drain(a) })
}

func (c *cluster) restarts(a *agent) {
	old := a.haproxy
	if old != a.session || len(a.replaced) > 0 || c.over() {
		return
	}
	c.account()
	c.running -= old.running
	old.running, old.dead = 0, true
	a.haproxy = &haproxy{process: old.process + 1}
	c.After(time.Duration(20+c.Rand.IntN(400))*time.Millisecond, func() {
		a.session = a.haproxy
		a.core.Restarted(c.Now)
		c.withdrawAgain(a)
		c.introduce(a)
		c.push(a, a.session) // it tells all that it has
		c.pump(a)
	})
}

// running is how many requests run on an instance's HAProxies.
func (a *agent) running() int {
	n := a.haproxy.running
	for _, h := range a.replaced {
		n += h.running
	}
	return n
}
