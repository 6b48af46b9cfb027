package agent

import (
	"slices"
	"time"

	"github.com/sluice-qos/sluice/internal/agent/runtimeapi"
	"github.com/sluice-qos/sluice/pkg/credit"
)

// confirmWithdrawal takes HAProxy's word that a user has no credit any more, and tells the cores
// what was spent of it in this second; l.mu is held.
func (l *limiter) confirmWithdrawal(now time.Time, e *runtimeapi.Withdrawal) {
	c := &l.credits
	w := c.withdrawals[e.Key]
	if w == nil {
		return
	}
	// An answer from before the withdrawal has just brought some: HAProxy ends that itself.
	if gpt(&e.Entry, 0) != 0 {
		c.polls[e.Key] = now.Add(firstPoll)
		return
	}
	// What was spent before is known, and nothing was since.
	if w.told > 0 {
		return
	}
	// HAProxy may have answered in a later second than it was asked in; see withdraw.
	w.through = max(w.through, now.Unix()+1)
	of := l.inForce.limitsOf(e.Key)
	classes := credit.Classes(c.classes)
	// HAProxy's second may be another than the cluster's: they are the same by their numbers. Tickets of a second that has just
	// ended here may be of the cluster's present one. The last second that HAProxy has opened counts.
	second, opened := now.Unix(), (*runtimeapi.Entry)(nil)
	for i := range e.Seconds {
		if of := l.clusterSecond(time.Unix(int64(gpt(&e.Seconds[i], secondElement)), 0)); gpt(&e.Seconds[i], openedElement) != 0 && of >= second {
			second, opened = of, &e.Seconds[i]
		}
	}
	for r := range of.Rates() {
		spent := 0
		if i := slices.Index(classes, r.Class); i >= 0 && opened != nil {
			spent = ticketsSpent(&e.Entry, opened, i, len(classes))
		}
		l.coresOf(e.Key).tokens.Recalled(now, e.Key, r, second, spent, w.through)
	}
	w.told = w.through
	w.rest = e.ConnCur
	// Requests that are asked about may be in that count as well, if their bodies are held. No core needs it of these users.
	if of.Concurrent == 0 && bandwidthOf(of).Limited() {
		w.rest = 0
	}
	l.tellRest(now, e.Key, w)
}

// clusterSecond is the number that the cluster gives a second of this machine's clock, which is
// HAProxy's. It may begin up to half a second sooner or later than the cluster's of that number.
func (l *limiter) clusterSecond(here time.Time) int64 {
	return here.Add(l.clock.Offset().Round(time.Second)).Unix()
}

// ticketsSpent is how many requests HAProxy has admitted at most with tickets of a class in a second. Tickets that admitted nothing count:
// they may have been told with a question, and then no core has taken a token for it.
func ticketsSpent(e, second *runtimeapi.Entry, class, classes int) int {
	// A ticket is drawn before it is known whether it suffices, so more may be drawn than there were.
	drawn, each := int(gpc(second, class)), int(gpt(e, eachElement+class))
	// No agent answered: then they are so many times as many.
	if drawn-int(gpc(second, classes+class)) > each {
		each *= int(gpt(e, factorElement))
	}
	return min(drawn, each)
}

// stillInProgress takes how many requests a user without credit has in progress that
// HAProxy had admitted by itself; l.mu is held.
func (l *limiter) stillInProgress(now time.Time, e *runtimeapi.Entry) {
	w := l.credits.withdrawals[e.Key]
	if w == nil {
		return
	}
	// They only become fewer: new ones are asked about, and not counted there.
	w.rest = min(w.rest, e.ConnCur)
	l.tellRest(now, e.Key, w)
}

// tellRest tells the core of the requests in progress, and looks again later if there are
// any; l.mu is held.
func (l *limiter) tellRest(now time.Time, user string, w *withdrawal) {
	// The core knows nothing of users without such a limit. Their rest is looked at all the same: while it lasts the withdrawal does.
	if l.inForce.limitsOf(user).Concurrent > 0 {
		l.coresOf(user).slots.Withdrawn(now, user, w.rest)
	}
	// Twice as long each time: most end at once, and a long one is not worth a question every 5 ms.
	if w.rest > 0 {
		w.gap = min(max(2*w.gap, firstPoll), slowestPoll)
		l.credits.polls[user] = now.Add(w.gap)
	}
}

// gpt and gpc are an element of an entry, 0 if it has none.
func gpt(e *runtimeapi.Entry, i int) uint32 { return element(e.GPT, i) }

func gpc(e *runtimeapi.Entry, i int) uint32 { return element(e.GPC, i) }

func element(array []uint32, i int) uint32 {
	if i >= len(array) {
		return 0
	}
	return array[i]
}
