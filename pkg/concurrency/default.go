package concurrency

import "time"

const (
	// denySpan is when HAProxy is told once more that a user has no places. It forgets
	// that 10 minutes after it was told, and would then give the user some by itself.
	denySpan = 2 * time.Minute
	// denyAgain is when a denial is repeated that was not answered.
	denyAgain = time.Second
)

// byDefault is what HAProxy gives by itself to users whom nobody has asked about: the same
// number of places to each. So of a user of whom nothing is known it may have requests in
// progress, and the agent begins to know them as one who was lent these places. Only who has
// an entry in HAProxy's table that says so has none: users known here without places get
// one before HAProxy begins, and again before it forgets that.
//
// The zero byDefault is nothing.
type byDefault struct {
	phase   defaultPhase
	process int64             // that has it; only while phase is not defaultNone
	places  int               // of each user
	of      func(string) bool // whom it is for

	// Users who are to have such an entry before HAProxy begins.
	undenied map[string]bool

	// The same places of processes that were replaced, until they have ended.
	former   int
	formerOf func(string) bool
}

// defaultPhase says whether users of whom nothing is known may have requests in progress.
type defaultPhase uint8

const (
	defaultNone  defaultPhase = iota // they have none
	defaultBegun                     // HAProxy gives them places, or is about to
	defaultOver                      // it gives none any more, but what they admitted is in progress
)

// mayHavePlaces reports whether HAProxy may have places for a user of whom nothing is known.
func (d *byDefault) mayHavePlaces(name string) bool { return d.phase != defaultNone && d.of(name) }

// placesOf is what has to be assumed of a user of whom nothing is known.
func (d *byDefault) placesOf(name string) (p places) {
	if d.mayHavePlaces(name) {
		p.phase, p.inside = placesLent, d.places
	}
	if d.former > 0 && d.formerOf(name) {
		p.former = d.former
	}
	return p
}

// CanBeginDefault reports whether a process of HAProxy may be told of places that each user
// has by default: the pool takes them for held, nobody else's requests can be in progress,
// and the process is the one that withdrawals and counts are of.
func (a *Agent) CanBeginDefault(at time.Time, process int64) bool {
	now := a.coreTime(at)
	return a.byDefault.phase == defaultNone && process != 0 && process == a.process &&
		(a.alone() || a.settled(now)) && !a.lost() && !a.Draining() && !a.changing(now) && !a.justReplaced(now) && !a.catchingUp()
}

// BeginDefault says that HAProxy will be told that each of some users has so many places
// (> 0) by default, which must be none of those that an instance without a Holding does not
// hold. It must not be told before DefaultDenied. CanBeginDefault must just have allowed it.
func (a *Agent) BeginDefault(at time.Time, process int64, n int, of func(user string) bool) {
	a.coreTime(at)
	d := &a.byDefault
	d.phase, d.process, d.places, d.of = defaultBegun, process, n, of
	// HAProxy gives places to everyone without an entry, so whoever must have none needs one first.
	d.undenied = make(map[string]bool)
	a.tellEverybody(a.denyDefault, func(part *parkedPart, name string, p places) {
		switch {
		case d.phase != defaultBegun || !of(name) || p.phase != placesLent:
		// HAProxy may forget the places, and give as many as it gives all.
		case p.inside < n:
			part.wanted = append(part.wanted, name)
		case p.unused(n):
			a.setParked(name, places{})
		}
	})
}

// denyDefault is for a user who was known when HAProxy was to begin to give places by default, and
// may have fewer: it is told so before. It may have ended since, and then it never began.
func (a *Agent) denyDefault(u *user) {
	d := &a.byDefault
	if d.phase != defaultBegun || !d.of(u.name) {
		return
	}
	if u.places.phase == placesLent && u.places.inside >= d.places {
		// The answer that was to bring the places may have been too late: then HAProxy does not
		// count those who were asked about, and gives as many places beside them.
		if u.places.outside, u.places.beside = u.progress.totalAsked(), 0; a.freeHere(u) >= 0 {
			return
		}
	}
	d.undenied[u.name] = true
	u.places.denyAt = 0
	a.recall(u, a.now)
	a.review(u, a.now)
}

// unused reports whether places are what each user has by default, and nothing else is known.
// Those that an answer brought are remembered: HAProxy may have been told before that there
// are none.
func (p places) unused(n int) bool {
	return p.phase == placesLent && p.inside == n && p.lentAt == 0 && p.former == 0 && p.natives == 0
}

// DefaultDenied reports whether HAProxy knows of everybody who shall have no places by
// default, so that it may begin.
func (a *Agent) DefaultDenied() bool {
	return a.byDefault.phase == defaultBegun && len(a.byDefault.undenied) == 0 && !a.catchingUp()
}

// EndDefault says that HAProxy gives nothing by default any more, or will not in a moment.
// What it has admitted by then goes on.
func (a *Agent) EndDefault() {
	if d := &a.byDefault; d.phase == defaultBegun {
		d.phase, d.undenied = defaultOver, nil
	}
}

// DefaultOver is the process that has ended to give places by default, and of which it is
// not known yet whose requests it has in progress by them; 0: there is none.
func (a *Agent) DefaultOver() int64 {
	if a.byDefault.phase != defaultOver {
		return 0
	}
	return a.byDefault.process
}

// InUse says that the process of DefaultOver has requests of a user in progress by places.
func (a *Agent) InUse(at time.Time, name string, n int) {
	d := &a.byDefault
	if n <= 0 || a.known(name) != nil || a.parked.has(name) || !d.mayHavePlaces(name) {
		return
	}
	p := d.placesOf(name)
	p.inside, p.natives = max(p.inside, n), n
	a.parkInUse(name, p, a.coreTime(at))
}

// parkInUse remembers places that a user has by default and that are in use. Those that are more
// than the pool takes for held are told to it, and taken back.
func (a *Agent) parkInUse(name string, p places, now int64) {
	p.parkedAt = now
	a.setParked(name, p)
	q := a.quotaOf(name)
	if p.inside <= q.allowance(a.instances) {
		return
	}
	if u := a.findOrAddUser(name, q.limit, Count{}, now); u != nil {
		a.recall(u, now)
		a.review(u, now)
	}
}

// DefaultEnded says that InUse has named all users of the process of DefaultOver who have
// requests in progress by places, as read after it had ended to give any.
func (a *Agent) DefaultEnded() {
	if d := &a.byDefault; d.phase == defaultOver {
		// Who has not heard of the process yet has places by default.
		a.catchUp()
		*d = byDefault{former: d.former, formerOf: d.formerOf}
	}
}

// replaceDefault is for a session that is with another process; former is false if the one
// before it has ended, and its requests with it.
func (a *Agent) replaceDefault(former bool) {
	d := &a.byDefault
	if d.phase == defaultNone || d.process == a.process {
		return
	}
	next := byDefault{former: d.former, formerOf: d.formerOf}
	if former {
		// Nothing is offered while a process drains, so there is one at most.
		next.former, next.formerOf = d.former+d.places, d.of
	}
	*d = next
}

// reviewDenial sees to it that HAProxy has an entry of a user without places.
func (a *Agent) reviewDenial(u *user, now int64) {
	p := &u.places
	if p.phase != placesNone && p.phase != placesEnding || now < p.denyAt || !a.byDefault.mayHavePlaces(u.name) {
		return
	}
	p.denyAt = now + int64(denyAgain)
	a.out.Withdraw = append(a.out.Withdraw, u.name)
}

// denied is for a user of whom HAProxy has said that they have no places.
func (a *Agent) denied(u *user, now int64) {
	u.places.denyAt = now + int64(denySpan)
	delete(a.byDefault.undenied, u.name)
}

// Denied says that HAProxy has no places for a user, and knows for minutes that it must not
// give them any. An answer that brought some since is known here.
func (a *Agent) Denied(at time.Time, name string) {
	if a.known(name) != nil || a.parked.has(name) || !a.byDefault.mayHavePlaces(name) {
		return
	}
	now := a.coreTime(at)
	u := a.addUnasked(name, now)
	if u == nil {
		return
	}
	u.places = places{former: u.places.former}
	a.denied(u, now)
	a.holdPortion(u, now)
	a.review(u, now)
}
