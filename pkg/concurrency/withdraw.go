package concurrency

import "time"

const (
	// applySpan is how long an answer that lends places may take until HAProxy has taken it, and
	// tracks the request of it: before that, a withdrawal that is asked for could not count that
	// request. HAProxy waits 30 ms for an answer.
	applySpan = 100 * time.Millisecond
	// A withdrawal that nothing came of is asked for again after withdrawAgain, and each
	// time after twice as long, up to withdrawRarely.
	withdrawAgain  = 100 * time.Millisecond
	withdrawRarely = 5 * time.Second
)

func (a *Agent) recall(u *user, now int64) {
	p := &u.places
	if p.phase != placesLent {
		return
	}
	p.phase, p.turned = placesRecalled, 0
	// The request whose answer has just lent them may not be in HAProxy's count yet.
	p.sendAt, p.sendGap = max(now, p.lentAt+int64(applySpan)), int64(withdrawAgain)
	a.withdraw(u, now)
}

// withdraw asks for the withdrawal when it is time, again and again until it is answered.
func (a *Agent) withdraw(u *user, now int64) {
	p := &u.places
	if !p.phase.recalling() || now < p.sendAt {
		return
	}
	if p.phase == placesRecalled {
		// Whoever comes from now on may be in the count that is read, or not.
		p.phase, p.sentAt, p.since, p.before = placesWithdrawing, now, 0, p.outside
	}
	p.sendAt, p.sendGap = now+p.sendGap, min(2*p.sendGap, int64(withdrawRarely))
	a.out.Withdraw = append(a.out.Withdraw, u.name)
}

// reviewPlaces recalls the places of a user who is near the limit, and asks for what is to
// be withdrawn by now.
func (a *Agent) reviewPlaces(u *user, now int64) {
	// Alone there is nobody else who could need them.
	if u.heat.hot(now) && !a.alone() {
		// Others need what is not in use.
		a.recall(u, now)
	}
	a.withdraw(u, now)
}

// Withdrawn says that HAProxy has no places for the user any more, and that at most rest
// requests which they admitted are in progress. These count until a later call says less:
// it is to be called again until there are none. It must come from the process that the
// peers session is with, and nothing that was lent before it may come into force after it.
func (a *Agent) Withdrawn(at time.Time, name string, rest int) {
	now, rest := a.coreTime(at), max(0, rest)
	u := a.findUser(name, now)
	if u == nil && rest > 0 {
		u = a.addUnasked(name, now)
	}
	if u == nil || a.changing(now) {
		// While HAProxy is being replaced, it may be the new one that says so.
		return
	}
	if u.places.phase == placesNone && rest == 0 {
		return
	}
	if p := &u.places; p.phase == placesEnding {
		// Counts of a table that is read again and again only fall.
		p.rest = min(p.rest, rest)
		p.inside, p.mostNative = min(p.inside, p.rest), min(p.mostNative, p.rest)
	} else {
		u.withdrawn(rest, now)
	}
	// All of them have ended.
	if u.places.rest == 0 {
		u.places.phase = placesNone
	}
	u.places.natives = min(u.places.natives, u.places.inside)
	a.review(u, now)
}

func (u *user) withdrawn(rest int, now int64) {
	p := &u.places
	switch p.phase {
	case placesWithdrawing:
		// HAProxy's count has those beside the places, and who waits or was refused.
		// What is more than that was admitted while HAProxy took the agent for dead.
		phantoms := p.turned + u.waits.waiting()
		p.inside = min(rest, max(p.inside+p.beside, rest-phantoms))
		p.beside = 0
		p.before += rest
	case placesLent, placesRecalled:
		// Nobody has asked for it. Who waits may have been tracked after the count was read, and
		// so may the request whose answer has just lent the places.
		u.waits.uncount()
		p.inside = min(p.inside, rest)
		u.withdrawnUnasked(rest)
	case placesNone:
		// They were lent by another agent.
		p.inside = rest
		u.withdrawnUnasked(rest)
	}
	p.phase, p.rest, p.mostNative, p.endedAt = placesEnding, rest, rest, now
}

// withdrawnUnasked is for a withdrawal that this agent did not ask for: those who were
// asked about cannot be told from those in HAProxy's count.
func (u *user) withdrawnUnasked(rest int) {
	asked := u.progress.totalAsked()
	u.places.outside, u.places.beside = asked, 0
	u.places.since, u.places.before = asked, rest
}
