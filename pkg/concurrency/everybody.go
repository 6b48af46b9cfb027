package concurrency

// catchUpAtOnce bounds the users who hear of a change in one Tick, which takes their agent's lock
// for about half a millisecond: 200 000 have all heard of it within half a second. Who is asked
// about hears of it first.
const catchUpAtOnce = 1000

// tellEverybody has all users, and all parts of the parked ones, hear of a change: each before it is
// used the next time, and all within some Ticks. ofUser must go by the change alone, and not by
// what holds when it is called.
func (a *Agent) tellEverybody(ofUser func(*user), ofParked func(part *parkedPart, name string, p places)) {
	a.changes.Announce(ofUser)
	if ofParked != nil {
		a.parked.changes.Announce(func(part *parkedPart) {
			for name, p := range part.places {
				ofParked(part, name, p)
			}
		})
	}
	for u := range a.waiting {
		// Requests of theirs wait for what has changed.
		a.changes.CatchUp(u)
	}
	a.advanceChanges()
}

// advanceChanges has some users hear of what concerns everybody.
func (a *Agent) advanceChanges() {
	for left := catchUpAtOnce; left > 0; {
		if u, any := a.changes.First(); any {
			a.changes.CatchUp(u)
			left--
			continue
		}
		part, any := a.parked.changes.First()
		if !any {
			return
		}
		// Counted before it hears of anything, for users may be known again by that.
		left -= 1 + len(part.places)
		a.catchUpPart(part)
	}
}

// catchUpPart has a part of the parked users hear of what concerns everybody. Whoever is wanted for a
// change is known only when the part has heard of all: else they would miss what came behind it.
func (a *Agent) catchUpPart(part *parkedPart) {
	a.parked.changes.CatchUp(part)
	wanted := part.wanted
	part.wanted = nil
	for _, name := range wanted {
		if u := a.findOrAddUser(name, a.quotaOf(name).limit, Count{}, a.now); u != nil {
			a.recall(u, a.now)
			a.denyDefault(u)
			a.review(u, a.now)
		}
	}
}

// catchingUp reports whether there is anybody who has not heard of all that concerns everybody.
func (a *Agent) catchingUp() bool { return a.changes.Behind() || a.parked.changes.Behind() }

// catchUp has everybody hear of all that concerns them, at once: it takes a moment, and is for what
// must not begin or end before.
func (a *Agent) catchUp() {
	for a.catchingUp() {
		a.advanceChanges()
	}
}
