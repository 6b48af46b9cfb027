package concurrency

import (
	"slices"
	"time"
)

func (a *Agent) serveWaiting(u *user, now int64) {
	w := &u.waits
	// In the order of arrival: the first has waited longest.
	for len(w.line) > 0 && a.roomFor(u, w.line[0]) {
		a.inLine--
		w.line = a.decide(w.line, a.admitWaiting(u, now, w.line[0]))
	}
	for len(w.queue) > 0 {
		switch {
		case a.roomFor(u, w.queue[0]):
			w.queue = a.decide(w.queue, a.admitWaiting(u, now, w.queue[0]))
		// The answer that they wait for would be no.
		case a.knownFull(u, now):
			w.queue = a.decide(w.queue, a.refuse(u, a.whoCounts(), now))
		default:
			return
		}
	}
}

// roomFor reports whether a request that waits may start: if there is a slot for it, or
// if it has one already.
func (a *Agent) roomFor(u *user, w *Waiting) bool { return a.freeHere(u) > 0 || a.inRest(u, w) }

// inRest reports whether a request is in what is left of withdrawn places, for all of
// which there are slots.
func (a *Agent) inRest(u *user, w *Waiting) bool {
	return w.counted && u.places.phase == placesEnding && u.places.rest+u.slotsBesidePlaces()+u.places.former <= a.capacity(u)
}

func (a *Agent) admitWaiting(u *user, now int64, w *Waiting) Verdict {
	s := outside
	switch {
	case a.inRest(u, w):
		// It is in the count that was read, so inside grows to it and never beyond.
		u.places.inside, s = min(u.places.rest, u.places.inside+1), inside
	// The withdrawal will count it in inside.
	case w.counted && u.places.phase.recalling():
		s = beside
	}
	return a.admitRequest(u, now, w.process, s)
}

// decide tells the first of a queue its verdict, and returns the rest.
func (a *Agent) decide(queue []*Waiting, v Verdict) []*Waiting {
	w := queue[0]
	queue[0] = nil
	w.Verdict, w.decided = v, true
	a.out.Decided = append(a.out.Decided, w)
	if len(queue) == 1 {
		return nil // lets go of the array
	}
	return queue[1:]
}

// Abandon takes back a request that waits and need not be decided any more, or gives
// back the slot of one that has just been allowed and will not run.
func (a *Agent) Abandon(at time.Time, w *Waiting) {
	switch {
	case !w.decided:
		a.changes.CatchUp(w.owner)
		a.leaveQueues(w)
		a.review(w.owner, a.coreTime(at))
	// A request that was refused has no slot to give back.
	case w.Verdict.Allowed:
		a.Cancel(at, w.owner.name, w.process)
	}
}

// Cancel gives back the slot of a request that was allowed, asked about by that
// process, and will not run after all.
func (a *Agent) Cancel(at time.Time, name string, process int64) {
	if u := a.known(name); u != nil {
		u.progress.cancel(a.askerOf(process))
		a.review(u, a.coreTime(at))
	}
}

// leaveQueues takes a request out of the queue it waits in, undecided, and reports
// whether that was the line.
func (a *Agent) leaveQueues(w *Waiting) (line bool) {
	queues := &w.owner.waits
	w.decided = true
	if i := slices.Index(queues.line, w); i >= 0 {
		queues.line = slices.Delete(queues.line, i, i+1)
		a.inLine--
		return true
	}
	queues.queue = slices.DeleteFunc(queues.queue, func(other *Waiting) bool { return other == w })
	return false
}
