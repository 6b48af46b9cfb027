package concurrency

import "time"

// Places is what HAProxy says with a question of the places it has for the user. The
// zero Places: it has none.
type Places struct {
	Lent   bool // it has credit for the user, and counts this request in Here until it ends
	Here   int  // requests of the user that it counts, this one included
	Places int  // requests that it may have in progress by itself
}

type placesPhase uint8

const (
	placesNone        placesPhase = iota // HAProxy has no places
	placesLent                           // it has, as far as known
	placesRecalled                       // they are to be taken back as soon as HAProxy may be asked
	placesWithdrawing                    // it is asked to give them back, and they may still be in force
	placesEnding                         // they are taken back, and requests that they admitted are in progress
)

func (p placesPhase) recalling() bool { return p == placesRecalled || p == placesWithdrawing }

// places is what the agent knows of the places of one user. In every phase but none, at
// most inside + outside + beside requests are in progress. Requests that HAProxy tracks in
// its table of credit are in inside, whoever admitted them, if they were admitted because
// HAProxy's count was no higher than the places. Bounds are enough: that of those who were
// asked about is exact, so that none of it lasts longer than they do.
type places struct {
	phase      placesPhase
	inside     int   // the places that are lent; while ending, of the requests in HAProxy's count
	rest       int   // HAProxy's count when last read, while ending: requests that wait are in it too
	outside    int   // an upper bound of the requests in progress that were asked about and that HAProxy's count has not
	beside     int   // of those that it has, and that a slot beside the places was found for
	mostNative int   // an upper bound of the requests in rest that HAProxy admitted by itself
	since      int   // requests admitted since the withdrawal was asked for
	before     int   // outside when it was asked for, and rest when it was first read
	turned     int   // requests refused since the places were recalled: they may be in rest too
	former     int   // an upper bound of those in progress by the places of HAProxies that were replaced
	natives    int   // requests that HAProxy admitted by itself, as last told
	lentAt     int64 // when HAProxy was last given places
	sentAt     int64 // when the withdrawal was first asked for, while withdrawing
	sendAt     int64 // when it is asked for the next time
	sendGap    int64 // from then to the time after
	endedAt    int64 // when a withdrawal was first answered
}

// replaced is what is known of places when their HAProxy has been replaced: nobody sees
// the end of what they admitted.
func (p places) replaced() places {
	if p.phase == placesNone {
		return places{former: p.former}
	}
	return places{former: p.former + p.inside}
}

// standing is how a request stands to the places, which says what it counts as.
type standing uint8

const (
	outside standing = iota // HAProxy's count has it not: it needs a slot
	beside                  // the count has it, but it found no place: it needs a slot beside the places
	inside                  // it has a place
	passed                  // HAProxy's rule admits it, but inside may not count it: it is counted outside
)

func (s standing) admitted() bool { return s >= inside }

// standingOf tells a request's standing, given what HAProxy says of the places it has.
func (a *Agent) standingOf(u *user, process int64, p Places, now int64) standing {
	switch {
	case a.askerOf(process) != present:
		// Another process has other places.
		return outside
	case !p.Lent:
		a.standWithout(u, now)
		return outside
	}
	switch u.places.phase {
	case placesLent:
		if p.Places > u.places.inside {
			// They were lent by another agent.
			break
		}
		if p.Here <= u.places.inside {
			return inside
		}
		u.waits.busyAt = now
		a.recall(u, now)
		return beside
	case placesRecalled:
		if p.Here <= min(p.Places, u.places.inside) {
			// Its count is read later than it was tracked.
			return inside
		}
		return beside
	case placesWithdrawing:
		// It may be tracked after the withdrawal has read the count, so it waits for the
		// answer; unless there seems to be none.
		if now-u.places.sentAt >= int64(withdrawAgain) && p.Here <= min(p.Places, u.places.inside) {
			return passed
		}
		return outside
	}
	if u.places.phase != placesLent && now-u.places.endedAt < int64(applySpan) {
		// It was asked about before the places were withdrawn.
		return outside
	}
	a.adoptPlaces(u, p, now)
	if p.Here <= min(p.Places, u.quota.allowance(a.instances)) {
		return passed
	}
	return outside
}

// standWithout is for a question of a HAProxy that has no credit for the user. It has
// forgotten the places, or never heard of them, so that they only take up slots. Or the
// request was asked about before: then they matter if it finds no slot beside them.
func (a *Agent) standWithout(u *user, now int64) {
	if u.places.phase != placesLent {
		return
	}
	idle := now-u.places.lentAt >= int64(applySpan)
	if idle || a.alone() && a.freeHere(u) <= 0 {
		a.recall(u, now)
	}
}

// distinguish lowers the bound of the requests that HAProxy admitted by itself, given what
// its tables say with a question.
func (a *Agent) distinguish(u *user, seen Count, p Places, now int64) {
	if u.places.phase != placesEnding || p.Lent || !seen.isValid() {
		return
	}
	// Asked sooner or by others, it may tell of a time before the withdrawal.
	if a.askerOf(seen.Process) == present && now-u.places.endedAt >= int64(applySpan) {
		// Of the requests that were asked about, those that are neither newer nor outside
		// are in HAProxy's count.
		others := u.places.before + u.places.since - int(seen.Active)
		u.places.mostNative = max(0, min(u.places.mostNative, others))
	}
}

// adoptPlaces is for places that another agent lent, before this one was started.
func (a *Agent) adoptPlaces(u *user, p Places, now int64) {
	used := p.Places
	if !a.alone() {
		// HAProxy uses as many times its credit while no agent answers.
		used *= 4
	}
	u.places.outside, u.places.beside = u.progress.totalAsked(), 0
	u.places.inside = max(u.places.inside, p.Here, min(used, u.quota.limit))
	u.places.phase, u.places.lentAt = placesLent, 0
	a.recall(u, now)
}

// Natives says how many requests in progress HAProxy has admitted by itself. It is for
// what people and polygen see: that the number is of some time ago does no harm.
func (a *Agent) Natives(at time.Time, name string, n int) {
	u := a.remembered(name)
	if u == nil || u.places.phase == placesNone {
		// Without places, what was read is over.
		return
	}
	u.places.natives = max(0, n)
	if u.resting != nil {
		a.show(u)
		return
	}
	a.review(u, a.coreTime(at))
}

// tellPlaces has everybody hear of a change that may leave HAProxy with more places than it may have by
// now. Users at rest who have more are woken.
func (a *Agent) tellPlaces(change func(*user), quotaOf func(user string) quota) {
	instances := a.instances
	a.tellEverybody(func(u *user) {
		switch {
		case u.resting == nil:
			change(u)
		case u.places.inside > quotaOf(u.name).allowance(instances):
			a.wakeUnasked(u, a.now)
			a.recall(u, a.now)
			a.review(u, a.now)
		}
	})
}

// findUser returns a user of whom something is known, places included.
func (a *Agent) findUser(name string, now int64) *user {
	u := a.remembered(name)
	if u != nil && u.resting != nil {
		a.wakeUnasked(u, now)
	}
	return u
}

func (a *Agent) wakeUnasked(u *user, now int64) {
	limit := a.quotaOf(u.name).limit
	a.wake(u, limit, now)
	a.setLimit(u, limit, a.instances, now)
}

// addUnasked makes a user of whom no request has come, or nil if they are not limited or too
// many are known.
func (a *Agent) addUnasked(name string, now int64) *user {
	q := a.quotaOf(name)
	if q.unlimited {
		return nil
	}
	return a.findOrAddUser(name, q.limit, Count{}, now)
}
