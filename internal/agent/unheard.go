package agent

import (
	"strconv"
	"time"

	"github.com/sluice-qos/sluice/internal/agent/costfeed"
)

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

// questionKey is what a question is known by. That two of one user have the same 32 bits within the span is as good as never.
func questionKey(q costfeed.Question) string { return strconv.FormatInt(q.ID, 10) + " " + q.User }

// noteCharged remembers what an allowed request was charged, or gives it back at once; l.mu is held.
func (l *limiter) noteCharged(now time.Time, n *needs) {
	if n.costs == nil || n.asked.User == "" {
		return
	}
	u, key := &l.unheard, questionKey(n.asked)
	u.charges.forget(now)
	u.late.forget(now)
	if _, late := u.late.get(key); late {
		u.late.drop(key)
		l.takeBackCosts(now, n.costs)
		return
	}
	u.charges.put(key, n.costs)
}

// takeUnheard takes that HAProxy did not hear the verdict of a question in time.
func (a *Agent) takeUnheard(question costfeed.Question) {
	a.metrics.unheard.Inc()
	l := a.limiter
	l.update(func(now time.Time) {
		u, key := &l.unheard, questionKey(question)
		if c, charged := u.charges.get(key); charged {
			u.charges.drop(key)
			l.takeBackCosts(now, c)
			return
		}
		u.late.forget(now)
		u.late.put(key, struct{}{})
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
