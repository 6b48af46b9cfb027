package concurrency

import "time"

// ignoreSpan is how long after HAProxy ended questions of its last moments may still be read.
const ignoreSpan = time.Second

// strangerSpan is how long the present process may be silent before another one,
// which seems to be older, is taken for the present one: clocks are set back.
const strangerSpan = 5 * time.Second

// processes knows which HAProxy process asks. The peers session, by which counts
// are pushed, is with one. After a reload two of them ask: the new one may do so
// before the session is with it, and the old one goes on asking for what its
// connections bring. The zero value knows none.
type processes struct {
	process int64 // that the session is with, as far as known; 0: it has not asked yet
	askedAt int64 // when it last did
	next    int64 // that has asked beside it, and is younger; 0: none
	nextAt  int64 // when it first did
	gone    int64 // the youngest that was replaced or has ended; 0: none

	ignoreUntil int64 // what HAProxy says with its questions is not believed until then
	drainUntil  int64 // when the requests of replaced processes are over at the latest; 0: there are none
}

type asker uint8

const (
	present  asker = iota // the session is with it: its counts are pushed
	stranger              // nobody tells of its requests, yet or any more
	former                // it was replaced, and may still have requests
)

// noteQuestion takes note of a process that asks. It reports whether the session is with another
// one than was thought.
func (p *processes) noteQuestion(process, now int64) (other bool) {
	switch {
	case process == 0: // unknown
	case process == p.process:
		p.askedAt = now
	case p.process == 0:
		// It is younger than the one that is gone. Should that one go on asking, and
		// nobody else, the session is with the same HAProxy again.
		if process > p.gone || now >= p.ignoreUntil {
			p.setPresent(process, now)
		}
	case process == p.next:
		// The session has not changed: then it has been with this one for longer.
		if now-p.nextAt >= int64(ignoreSpan) {
			p.gone = max(p.gone, p.process)
			p.setPresent(process, now)
			return true
		}
	// After a reload the session follows within moments.
	case process > max(p.process, p.next):
		p.next, p.nextAt = process, now
	case now-p.askedAt >= int64(strangerSpan):
		p.setPresent(process, now)
	}
	return false
}

func (p *processes) setPresent(process, now int64) {
	p.process, p.askedAt, p.next = process, now, 0
	// It was not gone: clocks, or the session, have gone back.
	if process <= p.gone {
		p.gone = 0
	}
}

func (p *processes) succeed(now int64) {
	p.gone = max(p.gone, p.process)
	p.process, p.askedAt, p.next = p.next, now, 0
}

// changing reports whether a younger process has begun to ask, and the session is not
// with it yet.
func (p *processes) changing(now int64) bool {
	return p.next != 0 && now-p.nextAt < int64(strangerSpan)
}

func (p *processes) askerOf(process int64) asker {
	switch {
	case process == 0 || process == p.process:
		return present
	case p.drainUntil > 0 && process <= p.gone:
		return former
	}
	return stranger
}

// justReplaced reports whether the present HAProxy has just replaced another one.
func (p *processes) justReplaced(now int64) bool { return p.drainUntil > 0 && now < p.ignoreUntil }

// Draining reports whether a replaced HAProxy may still have requests.
func (a *Agent) Draining() bool { return a.drainUntil > 0 }

// Restarted says that HAProxy has ended, and with it everything in progress but
// what one that has started since was asked about.
func (a *Agent) Restarted(at time.Time) {
	a.takeOver(a.coreTime(at))
	a.drained()
}

// Replaced says that another HAProxy has taken over the session, as after a
// reload. What was in progress goes on, and nobody tells of its end: it counts
// until Drained, or until it must be over.
func (a *Agent) Replaced(at time.Time) {
	a.takeOver(a.coreTime(at))
	a.drainUntil = a.now + int64(a.config.DrainFor)
}

// Drained says that every HAProxy but the present one has ended.
func (a *Agent) Drained(at time.Time) {
	a.coreTime(at)
	a.drained()
}

func (a *Agent) takeOver(now int64) {
	// Questions of the old process may still come in.
	a.ignoreUntil = now + int64(ignoreSpan)
	a.succeed(now)
	a.tellEverybody(func(u *user) {
		if u.resting != nil {
			u.places = u.places.replaced()
			a.show(u)
			return
		}
		u.replaceProcess()
		a.review(u, a.now)
	})
}

// drained forgets what was in progress on processes that were replaced, or have ended.
func (a *Agent) drained() {
	a.drainUntil = 0
	a.tellEverybody(func(u *user) {
		u.progress.draining, u.places.former = 0, 0
		switch {
		case u.resting == nil:
			a.review(u, a.now)
		case u.places.phase == placesNone:
			a.drop(u)
		default:
			a.show(u)
		}
	})
}
