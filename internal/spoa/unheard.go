package spoa

import "time"

const (
	// unheardSpan is how long it stays known what a request was charged. HAProxy says within a second that it heard no
	// verdict, if this agent reads; while it does not, nothing is forgotten either.
	unheardSpan = 10 * time.Second
	// maxUnheard bounds what stays known: the charges of 5000 requests a second, some 30 MB. Of one beyond it that HAProxy
	// did not hear of, the estimate stays charged.
	maxUnheard = 100_000
)

// unheard is what makes good that HAProxy did not hear of a charge in time, and lets the request pass: it says so at
// once, and charges afterwards what the answer says. So the charge goes back, in whichever order both become
// known here.
type unheard struct {
	charges recent[*costs]   // by question
	late    recent[struct{}] // questions that HAProxy no longer waits for, and that were not charged by then
}

func newUnheard() unheard {
	return unheard{newRecent[*costs](unheardSpan, maxUnheard), newRecent[struct{}](unheardSpan, maxUnheard)}
}

// noteCharged remembers what an allowed request was charged, or gives it back at once; l.mu is held.
func (l *limiter) noteCharged(now time.Time, n *needs) {
	if n.costs == nil || n.id == "" {
		return
	}
	u := &l.unheard
	u.charges.forget(now)
	u.late.forget(now)
	if _, late := u.late.get(n.id); late {
		u.late.drop(n.id)
		l.takeBackCosts(now, n.costs)
		return
	}
	u.charges.put(n.id, n.costs)
}

// takeUnheard takes that HAProxy did not hear the verdict of a question in time.
func (a *Agent) takeUnheard(question string) {
	a.metrics.unheard.Inc()
	l := a.limiter
	l.update(func(now time.Time) {
		u := &l.unheard
		if c, charged := u.charges.get(question); charged {
			u.charges.drop(question)
			l.takeBackCosts(now, c)
			return
		}
		u.late.forget(now)
		u.late.put(question, struct{}{})
	})
}

// takeBackCosts gives back what a request was charged; l.mu is held.
func (l *limiter) takeBackCosts(now time.Time, c *costs) {
	l.cancelCosts(now, c)
	tier := l.inForce.limitsOf(c.of[own].key).Tier
	for _, u := range c.units {
		l.metrics.refunded.add(series{tier, u.unit}, u.amount)
	}
}
