package concurrency

// serveWaiting decides what can be decided of those who wait.
func (a *Agent) serveWaiting(u *user, now int64) {
	w := &u.waits
	for len(w.line) > 0 && a.roomFor(u, w.line[0]) { // first: it has waited longer
		a.inLine--
		w.line = a.decide(w.line, a.admitWaiting(u, now, w.line[0]))
	}
	for len(w.queue) > 0 {
		switch {
		case a.roomFor(u, w.queue[0]):
			w.queue = a.decide(w.queue, a.admitWaiting(u, now, w.queue[0]))
		case a.knownFull(u, now): // the answer they wait for would be no
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
	case w.counted && u.places.phase.recalling(): // the withdrawal will count it in inside
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
