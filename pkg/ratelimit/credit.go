package ratelimit

import (
	"github.com/sluice-qos/sluice/pkg/cause"
	"github.com/sluice-qos/sluice/pkg/limits"
)

// Credit is what HAProxy said, with a question, about the requests that it may admit
// by itself: of the user's limits that the question is about, in the second of it.
type Credit uint8

const (
	// NoCredit: the user cannot have credit at all, because of what their limits are. All
	// agents must agree on it, for nothing is reserved in the pool for such users.
	NoCredit Credit = iota

	// Withheld: they could have credit, but HAProxy's newest process has none in force, and
	// gets some only by Lend.
	Withheld

	// Spent: HAProxy has credit in this second, and its tickets did not suffice.
	Spent

	// Uncertain: HAProxy has credit in this second, or may have, and asks for another
	// reason than that its tickets did not suffice. So there may be tickets left.
	Uncertain
)

func (a *Agent) observeCredit(b *bucket, c Credit) {
	p := &b.portion
	switch {
	// Of a long window or a burst nothing is reserved, whatever is said of the user's other limits.
	case c == NoCredit || b.pooled():
		p.possible, p.lent, p.through = false, false, 0
	// What HAProxy says of credit is from before that.
	case p.recalled(b.start):
	case p.lent && (c != Withheld || b.start <= p.from): // it was asked before it began
	default:
		// HAProxy may have spent some in this second: by a process that was reloaded since,
		// or before a withdrawal whose answer is still to come, or was lost.
		if c == Withheld && (p.lent || !p.possible && !a.decidesAlone(b)) {
			p.until = b.start
		}
		p.possible, p.lent, p.from = true, c != Withheld, 0
	}
	a.divide(b)
	a.takePortion(b)
}

// asksLate reports whether a request is of the second before HAProxy's credit began: it
// was on its way to the agent when the second ended. What was left of that second is for it.
func (a *Agent) asksLate(b *bucket, c Credit, now int64) bool {
	// Only just after the first second of credit: later the question is of the second it arrives in.
	return b.start == b.portion.from && a.entrusted(b) && c != Spent && now-b.start*second < lendAfter
}

// refuseSpent refuses a request for which HAProxy's credit did not suffice, where that
// was the whole limit. HAProxy does not say which of several limits it was. Of two the
// one for all requests is left out, for a request that the other one allows may still
// pass; of more none is known.
func (a *Agent) refuseSpent(w *Waiting, now int64) Verdict {
	var spent *bucket
	candidates := 0
	for _, b := range w.buckets[:w.n] {
		// Should it be the wrong one, refusing a class stops fewer requests than refusing all.
		if a.entrusted(b) && b.key.Class != limits.All {
			spent = b
			candidates++
		}
	}
	if candidates == 0 {
		for _, b := range w.buckets[:w.n] {
			if a.entrusted(b) {
				spent = b
			}
		}
	}
	// To refuse in HAProxy by a limit that may have something left would refuse too many.
	if candidates < 2 && !spent.refusing {
		a.throttleNow(spent, now)
	}
	return a.refuse(spent, cause.CreditSpent, now)
}
