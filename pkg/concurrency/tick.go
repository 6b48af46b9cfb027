package concurrency

import (
	"time"

	"github.com/sluice-qos/sluice/pkg/internal/agenda"
)

// schedule puts the user on the agenda for the next time at which something is due.
func (a *Agent) schedule(u *user, now int64) {
	// Whatever happens, a user is looked at so often: peaks fall, refusals grow old, users
	// become idle. So nothing below may come too late by more than that.
	next := u.progress.nextExpiry(now + int64(peakSpan))
	if u.notice.refused > 0 {
		next = min(next, u.notice.at+int64(refusedSpan))
	}
	if u.lease.retryAt > now && !a.countsAlone() && u.demanding(now) {
		next = min(next, u.lease.retryAt)
	}
	if u.spare.slots > 0 && u.waits.unmetAt > 0 && u.heat.hot(now) {
		next = min(next, u.spare.since+int64(idleSpan))
	}
	if u.refusal.inForce() {
		next = min(next, u.refusal.until)
	}
	if u.places.phase.recalling() {
		next = min(next, u.places.sendAt)
	}
	a.agenda.Put(u, next)
}

// IdleFor is for how long from a time on Tick and Collect have nothing to do if nothing else is
// called, but at most a given time. As soon as that is no longer true, an Output says Sooner.
func (a *Agent) IdleFor(at time.Time, most time.Duration) time.Duration {
	return a.idle.Announce(a.coreTime(at), a.workDue(), most)
}

// workDue is the first time at which Tick or Collect may have something to do.
func (a *Agent) workDue() int64 {
	if len(a.urgent) > 0 || len(a.flush) > 0 || a.changes.Behind() {
		return 0
	}
	due := int64(agenda.Never)
	if at, any := a.agenda.Next(); any {
		due = at
	}
	if a.drainUntil > 0 {
		due = min(due, a.drainUntil)
	}
	return due
}

// Tick does what is due. It is to be called every 5 ms, or when IdleFor says.
func (a *Agent) Tick(at time.Time) {
	now := a.coreTime(at)
	if a.drainUntil > 0 && now >= a.drainUntil {
		a.Drained(at)
	}
	a.advanceChanges()
	a.agenda.Take(now, func(u *user) {
		a.changes.CatchUp(u)
		if a.users[u.name] != u || u.resting != nil {
			// It was forgotten, and is perhaps known again as another record.
			return
		}
		u.progress.expire(now)
		u.settle()
		u.peaks.record(now, u.upperBound())
		if !a.forget(u, now) {
			a.review(u, now)
		}
	})
}
