package ratelimit

import (
	"slices"
	"time"

	"github.com/sluice-qos/sluice/pkg/internal/agenda"
)

// Tick does what is due by time alone: leases that lie idle go back, spent keys
// are asked about again, the next window is asked for, and what has not been
// used for a while is forgotten. It is to be called every few milliseconds, or when IdleFor says.
func (a *Agent) Tick(at time.Time) {
	now := at.UnixNano()
	// Before any bucket is looked at: each is judged by what the agent knows of the seconds.
	a.setBackTo(now / second)
	a.agenda.Take(now, func(b *bucket) {
		a.advanceWindow(b, now)
		a.serveQueue(b.owner, now)
		// A request that waits points to its buckets, and an answer that is on its way needs one to go to.
		if now >= a.forgetAt(b, now) && b.waiting == 0 && !b.asking {
			a.forget(b)
			return
		}
		a.review(b, now)
		a.schedule(b, now)
	})
}

// IdleFor is for how long from a time on Tick and Collect have nothing to do if nothing else is
// called, but at most a given time. As soon as that is no longer true, an Output says Sooner.
func (a *Agent) IdleFor(at time.Time, most time.Duration) time.Duration {
	return a.idle.Announce(at.UnixNano(), a.workDue(), most)
}

// workDue is the first time at which Tick or Collect may have something to do.
func (a *Agent) workDue() int64 {
	if len(a.tokenRequests)+len(a.toReport)+len(a.reports)+len(a.accountReports)+len(a.unanswered) > 0 {
		return 0
	}
	if at, any := a.agenda.Next(); any {
		return at
	}
	return agenda.Never
}

// advanceWindow moves a bucket on to the current window: what is left of the old one is
// reported under the old one, and what was asked for ahead becomes the balance.
// A clock that runs back a little stays in its window; one that was set back
// begins anew.
func (a *Agent) advanceWindow(b *bucket, now int64) {
	if b.current(now) {
		// Within a long window a clock may be set back by minutes: then what is due would wait for so long.
		if b.longWindow() && now < b.arrivals.last-second {
			a.setBack(b, now)
		}
		return
	}
	current, ends := b.rate.Bounds(now / second)
	if current < b.start {
		a.setBack(b, now)
	}
	// Tokens asked for ahead are of the next window only: after a pause they are of one that is gone.
	next := 0
	if current == b.ends {
		next, b.next = b.next, 0
	}
	// What was left of the last second is kept for requests that were on their way when it ended.
	before := 0
	if current == b.ends {
		before = b.limit - b.admitted
	}
	a.closeWindow(b)
	b.clearWindow()
	b.start, b.ends = current, ends
	b.balance, b.portion.before = next, before
	// After the window is set: the portion belongs to the new second.
	a.rollPortion(b, now)
	// It is at most that, until the pool is heard of.
	b.limit = a.ceiling(b, b.start) + b.rate.Burst
	if b.waiting > b.balance {
		a.requestTokens(b)
	}
}

// setBack follows a clock that was set back: what was due in what is now the
// future is not waited for.
func (a *Agent) setBack(b *bucket, now int64) {
	b.portion.setBack(now / second)
	b.arrivals, b.hotUntil = arrivals{last: now}, 0
	b.probeAt, b.refusingAt = min(b.probeAt, now), min(b.refusingAt, now)
}

// closeWindow reports a bucket's window for the last time, and gives back what is left
// of it and of the next.
func (a *Agent) closeWindow(b *bucket) {
	if !b.portion.possible { // else the past second's pool is of no use to anybody
		b.back += b.balance
	}
	if b.debt != 0 || b.back != 0 {
		a.report(a.makeReport(b))
	}
	// Of a window that has not begun, others may use them.
	a.giveBack(a.emptyAsk(b, b.ends), b.next)
}

// clearWindow begins a window in which nothing has happened.
func (b *bucket) clearWindow() {
	b.window = window{start: b.start, ends: b.ends, limit: b.limit}
	b.lease, b.ledger, b.shortage = lease{}, ledger{}, shortage{}
}

func (a *Agent) review(b *bucket, now int64) {
	// Alone nothing is leased, so nothing lies idle; whoever leaves has given back what it had.
	if a.decidesAlone(b) || a.leaving {
		return
	}
	if keep := max(a.balanceToKeep(b, now), a.keepPortion(b, now)); b.balance > keep {
		b.back += b.balance - keep
		b.balance = keep
	}
	if b.back > 0 {
		a.reportAtFlush(b)
	}
	if a.probing(b) && now >= b.probeAt {
		a.requestTokens(b)
	}
	if a.nextDue(b, now) {
		b.nextAsk = true
		if ask := a.nextAsk(b, now); ask.Ahead+ask.Back > 0 {
			a.reports = append(a.reports, ask)
			a.flushNow()
		}
	}
}

// balanceToKeep is the largest balance that is not given back. While the pool is lost,
// tokens of a longer window are of use here alone.
func (a *Agent) balanceToKeep(b *bucket, now int64) int {
	// Whoever waits may get them in a moment.
	if b.waiting > 0 || a.lost && b.longWindow() {
		return b.balance
	}
	if b.portion.recalled(b.start) && !a.active(b, now) {
		// Others want it.
		return 0
	}
	target := b.target(now, a.fleet.instances)
	if now-b.arrivals.last < int64(idleSpan) {
		// Twice what is expected: a lease that shrank and grew with each pause would be an ask each time.
		return 2*target + 1
	}
	// A cool key's next request need not wait; a hot one's may.
	return min(target, 1)
}

// probing reports whether a spent key is wanted here all the same. While
// HAProxy refuses by itself, nobody here sees the demand: it is believed to last.
func (a *Agent) probing(b *bucket) bool {
	return b.balance == 0 && !b.asking && (b.refusing || b.spent && b.unmet > 0)
}

func (a *Agent) nextDue(b *bucket, now int64) bool {
	return !b.nextAsk && now >= b.end()-a.lead-b.early && a.nextMatters(b, now)
}

// active reports whether requests of the key are to be expected, so that it is
// worth asking for the next window.
func (a *Agent) active(b *bucket, now int64) bool {
	return b.refusing || now-b.arrivals.last < int64(6*idleSpan)
}

// schedule puts the bucket on the agenda for the next time at which something is
// due for it.
func (a *Agent) schedule(b *bucket, now int64) {
	// Whatever is due by time alone must be in here: nobody looks at a bucket otherwise but with a request.
	end := b.end()
	due := a.forgetAt(b, now)
	if !a.decidesAlone(b) {
		if b.balance > 0 {
			due = min(due, max(now, b.arrivals.last)+int64(idleSpan))
		}
		if a.probing(b) {
			due = min(due, b.probeAt)
		}
		if !b.nextAsk && a.nextMatters(b, now) {
			due = min(due, end-a.lead-b.early)
		}
	}
	// Something is to be said or decided when the window ends, although no request may come.
	if b.balance+b.next+b.debt > 0 || b.spent || b.waiting > 0 || b.portion.recalled(b.ends) {
		due = min(due, end)
	}
	a.agenda.Put(b, max(due, now))
}

// forgetAt is when a bucket can be forgotten without loss, if there are no more
// requests. What HAProxy refuses for longer than a second is probed as long as it
// does, and what a lost pool has still to hear of is kept for it.
func (a *Agent) forgetAt(b *bucket, now int64) int64 {
	at := b.arrivals.last + int64(forgetSpan)
	// A bucket that is forgotten within the second of its portion would take that portion twice.
	at = max(at, b.portion.forgetAt())
	if b.longWindow() {
		if b.refusing {
			at = max(at, b.refusingAt+int64(refuseSpan))
		}
		if a.lost && b.owed+b.balance > 0 {
			// The pool has still to hear of it, and it is lost with the bucket.
			at = max(at, now+int64(hotSpan))
		}
	}
	return at
}

// forget drops a bucket, and its user with the last one.
func (a *Agent) forget(b *bucket) {
	a.closeWindow(b)
	// The user goes with the last bucket. It may be another record of the same name by now.
	u := b.owner
	u.buckets = slices.DeleteFunc(u.buckets, func(other *bucket) bool { return other == b })
	if len(u.buckets) == 0 && a.users[u.name] == u {
		delete(a.users, u.name)
	}
}
