package concurrency

import "time"

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
}

// An asker is a process in relation to the session.
type asker int

const (
	present  asker = iota // the session is with it: its counts are pushed
	stranger              // nobody tells of its requests, yet or any more
	former                // it was replaced, and may still have requests
)

// asked takes note of a process that asks.
func (a *Agent) asked(process, now int64) {
	p := &a.processes
	switch {
	case process == 0:
	case process == p.process:
		p.askedAt = now
	case p.process == 0:
		// It is younger than the one that is gone. Should that one go on asking, and
		// nobody else, the session is with the same HAProxy again.
		if process > p.gone || now >= a.deafUntil {
			p.adopt(process, now)
		}
	case process == p.next:
		// The session has not changed: then it has been with this one for longer.
		if now-p.nextAt >= int64(deafSpan) {
			p.gone = max(p.gone, p.process)
			p.adopt(process, now)
			for _, u := range a.users {
				u.forgetCount() // the other one's may be in it
			}
		}
	case process > max(p.process, p.next):
		p.next, p.nextAt = process, now
	case now-p.askedAt >= int64(strangerSpan):
		p.adopt(process, now)
	}
}

func (p *processes) adopt(process, now int64) {
	p.process, p.askedAt, p.next = process, now, 0
	if process <= p.gone {
		p.gone = 0
	}
}

// succeed is for a session that is with another process.
func (p *processes) succeed(now int64) {
	p.gone = max(p.gone, p.process)
	p.process, p.askedAt, p.next = p.next, now, 0
}

// changing reports whether a younger process has begun to ask, and the session is not
// with it yet.
func (p *processes) changing(now int64) bool {
	return p.next != 0 && now-p.nextAt < int64(strangerSpan)
}

func (p *processes) shiftProcesses(back int64) {
	p.askedAt -= back
	p.nextAt -= back
}

// whose says whose the question of a process is.
func (a *Agent) whose(process int64) asker {
	switch {
	case process == 0 || process == a.process:
		return present
	case a.drainUntil > 0 && process <= a.gone:
		return former
	}
	return stranger
}
