package ratelimit

import (
	"time"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// withdrawAgain is how long an agent waits for a Recalled before it asks again.
const withdrawAgain = int64(100 * time.Millisecond)

// askWithdrawal has the shell withdraw the user's credit, because a request waits to
// know what was spent.
func (a *Agent) askWithdrawal(u *user, now int64) {
	if since := now - u.withdrawAt; since >= 0 && since < withdrawAgain {
		return
	}
	// Once for all requests that wait: each would be a command in HAProxy.
	u.withdrawAt = now
	a.out.Withdraw = append(a.out.Withdraw, u.name)
}

// Recalled says that HAProxy's credit for a limit is withdrawn, that it had drawn so
// many tickets of it in a second, and that it will get none through another second. It
// may be called again at any time, also for users of whom nothing is known here, and
// when there was no credit, or credit of an older generation that has not opened the second: then nothing was
// spent, and the second is the present one.
//
// What HAProxy has not spent goes to requests that wait here, and to the pool; so does
// its portion of each following second, before that second begins.
//
// Answers that were on their way when it was withdrawn must bring none any more: HAProxy
// sees to that, however late they come.
func (a *Agent) Recalled(at time.Time, name string, rate limits.Rate, sec int64, spent int, through int64) {
	now := at.UnixNano()
	u := a.findOrAddUser(name)
	if u == nil || a.leaving {
		return
	}
	// Answered: the next request that waits asks anew at once.
	u.withdrawAt = 0
	b := a.findOrAddBucket(u, &rate, now)
	if b.pooled() {
		return
	}
	p := &b.portion
	// No clock is further ahead.
	sec = min(sec, b.start+1)
	// Nothing was lent since, so the recall only lasts longer. Answers to two withdrawals may come in any order.
	recalled := p.recalled(b.start)
	p.through = max(p.through, through, sec)
	if recalled && sec > b.start {
		a.schedule(b, now)
		return
	}
	// HAProxy's clock is ahead, and what it spent in this second is not known.
	if sec > b.start {
		a.spendRest(b)
	}
	p.possible, p.lent, p.until = true, false, min(p.until, sec-1)
	a.divide(b)
	a.settleRecalled(b, sec, spent)
	a.takePortion(b)
	a.relieve(b)
	a.serveQueue(u, now)
	a.review(b, now)
	if b.back > 0 {
		a.flushNow()
	}
	a.schedule(b, now)
}

// settleRecalled settles the portion of a second of which HAProxy had drawn so many tickets.
func (a *Agent) settleRecalled(b *bucket, sec int64, spent int) {
	p := &b.portion
	switch {
	// That second is over, and what was spent in it changes nothing.
	case p.settled > sec:
	case p.settled == sec:
		a.countSpentCredit(b, sec, max(0, spent-p.counted))
		// Told twice of one second: only what is more than the last time counts.
		p.counted = max(p.counted, spent)
	case a.decidesAlone(b):
		a.countSpentCredit(b, sec, spent)
		p.settled, p.counted = sec, spent
	case sec >= b.start:
		p.settled, p.counted = sec, spent
		if rest := p.each - spent; rest < 0 {
			a.countSpentCredit(b, sec, -rest)
		} else if a.mayTake(sec) {
			a.addTokens(b, sec, rest)
		}
	}
}

func (a *Agent) spendRest(b *bucket) {
	p := &b.portion
	switch {
	case a.entrusted(b):
		b.admitted = max(b.admitted, b.limit)
	case p.haproxyHas(b.start) && p.settled < b.start:
		p.settled, p.counted = b.start, p.each
	}
}

// countSpentCredit takes note of requests that HAProxy admitted by itself beyond the portion, or
// alone, at all. advanceWindow does so for the next second.
func (a *Agent) countSpentCredit(b *bucket, sec int64, spent int) {
	switch {
	case sec != b.start || spent <= 0:
	case a.decidesAlone(b):
		b.admitted += spent
	default:
		// Tokens in hand pay for it first; what they do not cover the pool has to hear of.
		own := min(b.balance, spent)
		b.balance -= own
		b.debt += spent - own
		a.reportAtFlush(b)
	}
}

// addTokens adds to the tokens in hand for this second or the next.
func (a *Agent) addTokens(b *bucket, sec int64, tokens int) {
	switch sec {
	case b.start:
		b.balance += tokens
	case b.ends:
		b.next += tokens
	}
}

// Reloaded says that HAProxy has begun a new process. What the old one has spent of this
// second nobody can tell, so nothing of it is given back from now on.
func (a *Agent) Reloaded(at time.Time) {
	// HAProxy's clock may be ahead.
	a.reloaded = (at.UnixNano() + lendAfter) / second
}
