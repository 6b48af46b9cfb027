package agent

import (
	"time"
)

// Elements of an entry of HAProxy's table of credit: see haproxy.cfg.
const (
	factorElement = 3
	eachElement   = 6 // tickets of the first class, and behind it those of the others
)

// Elements of an entry of a second.
const (
	secondElement = 0
	openedElement = 1 // the generation under which it was opened, 0 if it was not
)

const (
	// withdrawBatch bounds the users whose credit is taken back with one message.
	withdrawBatch = 50
	// withdrawTimeout bounds the time of one, and withdrawRetry is when it is tried again.
	withdrawTimeout = 200 * time.Millisecond
	withdrawRetry   = 50 * time.Millisecond
	// firstPoll and slowestPoll are how soon it is looked again how many requests are
	// still in progress that HAProxy had admitted by itself.
	firstPoll   = 5 * time.Millisecond
	probeEvery  = time.Second // whether the runtime API answers
	slowestPoll = 100 * time.Millisecond
	// withoutCredit is how long users have none whose requests in progress have reached
	// their portion.
	withoutCredit = 2 * time.Second
	// startGrace is how long HAProxy may take to answer after this agent has started: they are
	// started in any order.
	startGrace = 10 * time.Second
)

// withdraw sees to it that a user has no credit through a second, and in any case through
// the next one; l.mu is held. A request that HAProxy is just admitting sees
// that the credit is gone, but not if there is some again: see haproxy/DESIGN.md.
func (l *limiter) withdraw(now time.Time, user string, through int64) {
	c := &l.credits
	w := c.withdrawals[user]
	// An answer of this second may still be on its way to HAProxy: see creditSecond.
	through = max(through, now.Unix()+1)
	switch {
	// Their credit stays reserved, so the limit holds: what is lost is use of it.
	case w == nil && len(c.withdrawals) >= maxWithdrawals:
		l.metrics.withdrawalsDropped.Inc()
	case w == nil:
		c.withdrawals[user] = &withdrawal{through: through}
		c.due = append(c.due, user)
		notify(c.wake)
	case through > w.through:
		w.through = through
		// HAProxy has confirmed that it has none: nothing of the further seconds is spent.
		if w.told > 0 && through > w.told {
			for r := range l.inForce.limitsOf(user).Rates() {
				l.coresOf(user).tokens.Recalled(now, user, r, w.told+1, 0, through)
			}
			w.told = through
		}
	}
}

// withdrawAgain withdraws all credit again after HAProxy was replaced: an answer from before the
// withdrawal may have brought the new process some; l.mu is held.
func (c *credits) withdrawAgain() {
	c.processes++
	for user, w := range c.withdrawals {
		w.told = 0
		c.due = append(c.due, user)
	}
	notify(c.wake)
}

// withdrawHot takes back the credit of a user who is near a limit, if they can have any.
func (l *limiter) withdrawHot(now time.Time, key string, until time.Time) {
	set := l.inForce.set.Load()
	// Alone, an agent has given the whole limit, and takes it back when its own core says so.
	if set == nil || l.inForce.instances.Load() <= 1 || !l.inForce.possible(key, set.User(key)) {
		return
	}
	l.withdraw(now, key, min(until.Unix(), now.Unix()+int64(hotFor.Seconds())))
}

// forgetWithdrawals lets users have credit again whose time without is over; l.mu is held.
func (l *limiter) forgetWithdrawals(now time.Time) {
	l.credits.granted.forget(now)
	for user, w := range l.credits.withdrawals {
		// Not while requests by credit go on: the withdrawal is what counts them.
		if w.told > 0 && w.rest == 0 && now.Unix() > w.through {
			delete(l.credits.withdrawals, user)
		}
	}
}
