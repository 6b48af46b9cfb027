package concurrency

import "time"

// Held is how many slots of a user the agent may use.
func (a *Agent) Held(name string) int {
	if u := a.known(name); u != nil {
		return u.lease.held
	}
	return 0
}

// Bound is how many requests of a user may be in progress on this instance, as far as the
// agent knows, places that are not in use included.
func (a *Agent) Bound(name string) int {
	if u := a.remembered(name); u != nil {
		return u.upperBound()
	}
	return 0
}

// Recall has HAProxy's places of a user withdrawn, as when the user is hot.
func (a *Agent) Recall(at time.Time, name string) {
	now := a.coreTime(at)
	if u := a.findUser(name, now); u != nil {
		a.recall(u, now)
		a.review(u, now)
	}
}

// Divide is shares, for tests.
var Divide = shares

// CatchUp has everybody hear of what concerns them all.
func (a *Agent) CatchUp() {
	for a.changes.Behind() {
		a.advanceChanges()
	}
}

// CatchUpAtOnce bounds how many hear of it in one call.
const CatchUpAtOnce = catchUpAtOnce

// LookAtAll has the next Tick look at all users.
func (w *Watch) LookAtAll() {
	for _, u := range w.users {
		w.lookAt(u, w.now)
	}
}

// Records is how many users hear of what concerns everybody.
func (a *Agent) Records() int { return a.changes.Len() }
