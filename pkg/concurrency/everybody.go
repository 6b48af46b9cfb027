package concurrency

// catchUpAtOnce bounds the users who hear of a change in one Tick, which takes their agent's lock
// for about half a millisecond: 200 000 have all heard of it within half a second. A user with a question
// hears of it first.
const catchUpAtOnce = 1000

// tellEverybody has all users hear of a change: each before it is used the next time, and all within some Ticks. The
// change must go by itself alone, and not by what holds when it is called.
func (a *Agent) tellEverybody(change func(*user)) {
	a.changes.Announce(change)
	for u := range a.waiting {
		// Requests of theirs wait for what has changed.
		a.changes.CatchUp(u)
	}
	a.advanceChanges()
}

func (a *Agent) advanceChanges() {
	for range catchUpAtOnce {
		u, any := a.changes.First()
		if !any {
			return
		}
		a.changes.CatchUp(u)
	}
}
