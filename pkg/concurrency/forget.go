package concurrency

import "time"

const (
	// entrySpan is how long HAProxy keeps an unused entry of its table of credit.
	entrySpan = 10 * time.Minute
	// forgetAtOnce bounds the users that one call of ForgetPlaces looks at. They take half a millisecond, and the
	// agent's lock is held meanwhile.
	forgetAtOnce = 1000
)

// rest puts a user aside when only places are worth remembering: the record has nothing else, and nothing of it is
// ever due.
func (a *Agent) rest(u *user, now int64) {
	*u = user{Place: u.Place, Record: u.Record, name: u.name, places: u.places, shown: u.shown, seenAt: now}
	u.resting = a.resting.PushBack(u)
	a.show(u)
}

// wake has a user at rest take part again, as a new one with these places.
func (a *Agent) wake(u *user, limit int, now int64) {
	a.resting.Remove(u.resting)
	u.resting = nil
	a.begin(u, limit, now)
}

// drop forgets a user, once: of several changes that a user hears of together, two may end in it.
func (a *Agent) drop(u *user) {
	if a.users[u.name] != u {
		return
	}
	if u.resting != nil {
		a.resting.Remove(u.resting)
	}
	a.inProgress, u.shown = a.inProgress-u.shown, 0
	delete(a.users, u.name)
	a.changes.Remove(u)
}

// ForgetPlaces drops users at rest without an entry in the table of credit of a process of HAProxy: it has neither
// places of theirs nor requests in progress by them. shown says which users were in a complete read of
// that table, which began at a time. A read lasts for tens of seconds, so a user who was last seen less than
// entrySpan before the read may have come into the table behind it.
//
// A call looks at some of the users. It reports whether there are no more to look at.
func (a *Agent) ForgetPlaces(at time.Time, process int64, began time.Time, shown func(name string) bool) (last bool) {
	now := a.coreTime(at)
	if process == 0 || process != a.process || a.changing(now) {
		// Another process may have places of theirs.
		return true
	}
	since := now - int64(at.Sub(began)) - int64(entrySpan)
	for range forgetAtOnce {
		// The user who was seen the longest time ago comes first.
		first := a.resting.Front()
		if first == nil {
			return true
		}
		u := first.Value.(*user)
		if u.seenAt > since {
			return true
		}
		a.changes.CatchUp(u)
		switch {
		case u.resting != first || a.users[u.name] != u: // a change concerned the user
		case shown(u.name) || u.places.former > 0:
			u.seenAt = now
			a.resting.MoveToBack(first)
		default:
			a.drop(u)
		}
	}
	return false
}
