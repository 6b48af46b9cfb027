package ratelimit_test

import (
	"slices"
	"time"

	"github.com/sluice-qos/sluice/pkg/credit"
	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

// lending describes what a scenario does with HAProxy's credit. The zero value: nobody
// has any.
type lending struct {
	on       bool
	skew     time.Duration // HAProxy's clock differs from its agent's by up to this
	withdraw time.Duration // mean time until a withdrawal reaches HAProxy, and until its answer is there; 0 means 300 µs
	loss     float64       // chance that a withdrawal is lost, and that its answer is
	teach    time.Duration // longest time until HAProxy has heard of a generation; 0 means 5 ms
	late     time.Duration // an answer that brings credit takes up to so long to reach HAProxy; 0 means 2 ms
	reload   time.Duration // every so long the next HAProxy is reloaded,
	linger   time.Duration // and its old process goes on for so long
	limits   time.Duration // and every so long the limits change: it is another generation

	mistake mistake // that the checks must find
}

// mistake is one that is made on purpose.
type mistake int

const (
	forgetSpent   mistake = iota + 1 // a withdrawal says that nothing was spent
	forgetReserve                    // the pool begins at nothing
	giveBackTwice                    // the pool takes everything twice that is given back
	lapseOpened                      // HAProxy says that its credit has lapsed in a second that it has opened
	takeOvertaken                    // HAProxy takes credit from answers that a withdrawal has overtaken
)

// lapsed is what HAProxy says of credit of another generation that has not opened the second.
const lapsed = ratelimit.Uncertain + 1

// in makes the mistake, if it is one of the pool's.
func (m mistake) in(asks []ratelimit.Ask) []ratelimit.Ask {
	if m != forgetReserve && m != giveBackTwice {
		return asks
	}
	asks = slices.Clone(asks)
	for i := range asks {
		if m == forgetReserve {
			asks[i].Reserve = 0
		} else {
			asks[i].Back *= 2
		}
	}
	return asks
}

// haproxy is one process: its entry of the simulated user in the table of credit, and those in the table of seconds.
// The first request of a second opens it, by HAProxy's own clock.
type haproxy struct {
	skew       time.Duration
	row        int   // the generation in force
	generation int   // of the entry; 0: no credit
	given      int64 // the second in which an answer brought it: it begins with the next one
	each       map[ratelimit.Key]int
	seconds    map[int64]*secondOfCredit
	stopping   bool

	overtaken int64 // answers of this second, by the agent's clock, and those before bring no credit
}

// secondOfCredit is what HAProxy has counted in a second.
type secondOfCredit struct {
	opened int // under this generation; 0: it was not
	drawn  map[ratelimit.Key]int
}

// now is the process' second.
func (h *haproxy) now(a *agent, c *cluster) int64 { return a.clock(c).Add(h.skew).Unix() }

// draw admits a request, or says what HAProxy says when it asks instead.
func (h *haproxy) draw(at time.Time, rates []limits.Rate, m mistake) (bool, ratelimit.Credit) {
	sec := at.Unix()
	if h.generation == 0 {
		return false, ratelimit.Withheld
	}
	s := h.seconds[sec]
	if s == nil {
		s = &secondOfCredit{drawn: make(map[ratelimit.Key]int)}
		if h.seconds == nil {
			h.seconds = make(map[int64]*secondOfCredit)
		}
		h.seconds[sec] = s
		delete(h.seconds, sec-5)
	}
	if s.opened != h.generation {
		switch {
		case h.stopping:
			return false, ratelimit.Uncertain
		case s.opened != 0: // by credit of another generation
			return false, ratelimit.Uncertain
		case h.generation != h.row:
			return false, lapsed
		case h.given >= sec:
			return false, ratelimit.Uncertain // it has credit, which is of the next second
		}
		s.opened = h.generation
	}
	for _, r := range rates { // those of a class are first
		k := keyOf(r)
		if s.drawn[k]++; s.drawn[k] > h.each[k] {
			if m == lapseOpened && h.generation != h.row {
				return false, lapsed
			}
			return false, ratelimit.Spent
		}
	}
	return true, 0
}

// spent is what HAProxy has drawn of a limit, and in which second: the last one that it has opened around its own, if
// that is not over by the agent's clock, which says now.
func (h *haproxy) spent(sec, now int64, k ratelimit.Key) (int64, int) {
	for of := sec + 1; of >= max(now, sec-1); of-- {
		if s := h.seconds[of]; s != nil && s.opened != 0 {
			return of, min(s.drawn[k], h.each[k])
		}
	}
	return now, 0
}

// native lets HAProxy admit a request by itself, if it can.
func (c *cluster) native(a *agent, rates []limits.Rate) (bool, ratelimit.Credit) {
	if !c.lending.on {
		return false, ratelimit.NoCredit
	}
	h := a.haproxy
	if c.Now.Before(a.lingers) && c.Rand.IntN(2) == 0 {
		h = a.old
	}
	sec := h.now(a, c)
	ok, said := h.draw(a.clock(c).Add(h.skew), rates, c.lending.mistake)
	if !ok {
		switch {
		case h.stopping && said == ratelimit.Withheld:
			said = ratelimit.Uncertain // the new process may have credit
		case said != lapsed:
		// It may yet be taught the generation of its credit; or the question is of another second, or older than an answer.
		case h.row != a.generation || sec != a.clock(c).Unix() || c.Now.Sub(a.lentAt) < 1500*time.Millisecond:
			said = ratelimit.Uncertain
		default:
			for _, r := range rates {
				a.core.Recalled(a.clock(c), "u", r, sec, 0, sec)
			}
			said = ratelimit.Withheld
		}
		return false, said
	}
	c.natives++
	for _, r := range rates {
		c.count(keyOf(r), sec)
	}
	return true, 0
}

// lend brings credit with an answer.
func (c *cluster) lend(a *agent) {
	at := a.clock(c)
	if !c.lending.on || a.withdrawals > 0 || a.told >= at.Unix() || !a.core.Lendable(at, "u", c.rates) {
		return
	}
	granted := at.Unix()
	a.core.Lend(at, "u", c.rates, granted+1)
	a.lentAt = c.Now
	h, generation, each := a.haproxy, a.generation, make(map[ratelimit.Key]int)
	for _, r := range c.rates {
		each[keyOf(r)] = credit.Portion(r.Max, a.instances)
	}
	c.lent++
	c.After(time.Duration(c.Rand.Int64N(int64(max(2*time.Millisecond, c.lending.late)))), func() {
		if h.overtaken >= granted && c.lending.mistake != takeOvertaken {
			c.overtaken++
			return
		}
		if h.generation != generation {
			h.each, h.given, h.generation = each, h.now(a, c), generation
		}
	})
}

// withdrawal takes the credit of an instance back through a second.
func (c *cluster) withdrawal(a *agent, through int64) {
	if !c.lending.on || !c.serves(a) {
		return
	}
	core := a.core
	if now := a.clock(c).Unix(); a.told >= now { // HAProxy has none: it only lasts longer
		if through > a.told {
			for _, r := range c.rates {
				core.Recalled(a.clock(c), "u", r, a.told+1, 0, through)
			}
			a.told = through
		}
		return
	}
	delay := func() time.Duration {
		mean := max(300*time.Microsecond, c.lending.withdraw)
		return mean/2 + time.Duration(c.Rand.ExpFloat64()*float64(mean/2))
	}
	if c.Rand.Float64() < c.lending.loss {
		return
	}
	a.withdrawals++
	decided := a.clock(c).Unix()
	c.After(delay(), func() {
		h := a.haproxy
		sec, now := h.now(a, c), a.clock(c).Unix()
		h.generation = 0
		h.overtaken = max(h.overtaken, decided)
		type found struct {
			second int64
			spent  int
		}
		read := make([]found, len(c.rates))
		for i, r := range c.rates {
			read[i].second, read[i].spent = h.spent(sec, now, keyOf(r))
			if c.lending.mistake == forgetSpent {
				read[i].spent = 0
			}
		}
		if c.Rand.Float64() < c.lending.loss {
			if a.core == core {
				a.withdrawals--
			}
			return
		}
		c.After(delay(), func() {
			if a.core != core {
				return
			}
			a.withdrawals--
			if a.haproxy != h { // the new process has not heard of it
				c.withdrawal(a, through)
				return
			}
			for i, r := range c.rates {
				core.Recalled(a.clock(c), "u", r, read[i].second, read[i].spent, through)
			}
			a.told = max(a.told, through)
			c.recalled++
			c.pump(a)
		})
	})
}

// number tells an agent how many there are, which begins another generation of credit.
func (c *cluster) number(a *agent, instances int) {
	a.core.Cluster(a.clock(c), instances, a.rank)
	if a.instances == instances {
		return
	}
	a.instances = instances
	c.regenerate(a)
}

// regenerate begins another generation.
func (c *cluster) regenerate(a *agent) {
	if !c.lending.on {
		return
	}
	a.generation++
	generation := a.generation
	c.After(time.Duration(c.Rand.Int64N(int64(max(5*time.Millisecond, c.lending.teach)))), func() { a.haproxy.row = max(a.haproxy.row, generation) })
}

// reload replaces a HAProxy's process by one that knows nothing.
func (c *cluster) reload(a *agent) {
	a.old, a.lingers = a.haproxy, c.Now.Add(c.lending.linger)
	a.old.stopping = true
	a.haproxy = &haproxy{skew: a.old.skew, row: a.generation}
	a.core.Reloaded(a.clock(c))
	if through := a.told; through > 0 { // the new process does not know
		a.told = 0
		c.withdrawal(a, through)
	}
}

// serves reports whether an instance has requests: one that joins waits until the others
// know of it.
func (c *cluster) serves(a *agent) bool {
	since := c.Now.Sub(c.since(0))
	switch {
	case a != c.agents[len(c.agents)-1]:
		return true
	case c.joins > 0:
		return since >= c.joins+500*time.Millisecond
	case c.leaves > 0:
		return since < c.leaves
	}
	return true
}

// joinAndLeave has the last agent join the others, or leave them. Each hears of it within
// the distance of two heartbeats. Whoever joins serves later than that.
func (c *cluster) joinAndLeave(start time.Time) {
	heartbeats := int64(300 * time.Millisecond)
	for i, a := range c.agents {
		last := i == len(c.agents)-1
		switch {
		case c.joins > 0 && last:
			c.start(a, start.Add(c.joins))
			c.At(start.Add(c.joins), func() {
				c.start(a, c.Now)
			})
		case c.joins > 0:
			c.At(start.Add(c.joins+time.Duration(c.Rand.Int64N(heartbeats))), func() { c.number(a, len(c.agents)) })
		case c.leaves > 0 && last:
			c.At(start.Add(c.leaves), func() { c.replace(a) })
		case c.leaves > 0:
			c.At(start.Add(c.leaves+time.Duration(c.Rand.Int64N(heartbeats))), func() { c.number(a, len(c.agents)-1) })
		}
	}
}
