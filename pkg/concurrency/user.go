package concurrency

import (
	"container/list"

	"github.com/sluice-qos/sluice/pkg/internal/agenda"
	"github.com/sluice-qos/sluice/pkg/internal/changes"
)

// user is what an agent knows of one user: a part for each concern, whose type states its
// invariant. Times are those of the agent's clock, and 0 means never. Whoever changes a part
// calls Agent.review, which draws the consequences for the others.
type user struct {
	agenda.Place
	changes.Record

	name     string
	quota    quota    // how many slots there are
	progress progress // requests in progress that were asked about
	places   places   // what HAProxy may have in progress by itself
	waits    waits    // requests that are not decided yet
	lease    lease    // slots held, and what is asked for
	share    share    // slots that others leave to this instance
	heat     heat     // whether the pool is nearly empty
	peaks    peaks    // how many slots were in use
	spare    spare    // for how long slots have been free
	notice   notice   // what the pool and polygen were last told
	refusal  refusal  // whether HAProxy refuses the user by itself

	resting *list.Element // of Agent.resting; nil: the user is not at rest
	seenAt  int64         // when the user was put to rest, or last found in HAProxy's table of credit; only at rest

	startedAt int64 // when a request last started
	asker     int64 // the process that then asked
	shown     int   // what Agent.inProgress has of the user
}

// newUser begins to know a user, whose portion is held unless it may be in doubt.
func (a *Agent) newUser(name string, limit int, now int64) *user {
	u := &user{name: name}
	a.begin(u, limit, now)
	a.users[name] = u
	a.changes.Add(u)
	return u
}

func (a *Agent) begin(u *user, limit int, now int64) {
	u.quota = quota{limit: max(1, limit), creditable: a.quotaOf(u.name).creditable}
	a.holdPortion(u, now)
}

// holdPortion has a user hold what the pool takes for held of whom it has not heard.
func (a *Agent) holdPortion(u *user, now int64) {
	u.lease.portion = u.quota.portion(a.instances)
	if u.lease.held = u.lease.portion; !a.settled(now) {
		// Others may hold all slots. Places that are lent were lent when it was settled, or
		// were asked for.
		u.lease.held = min(u.lease.held, u.upperBound())
	}
	// The pool counts the portion until it is told of less.
	u.lease.told = u.lease.portion
}

// upperBound is an upper bound of the requests in progress here, whoever admitted them, and of
// those that HAProxy may yet admit by itself. It decides; running is only shown.
func (u *user) upperBound() int {
	asked := u.progress.totalAsked()
	switch u.places.phase {
	case placesNone:
		return asked + u.places.former
	case placesEnding:
		// Either bound holds: by how HAProxy's count came to be, and by who is in it.
		return min(u.places.inside+u.slotsBesidePlaces(), u.places.mostNative+asked) + u.places.former
	}
	return u.places.inside + u.slotsBesidePlaces() + u.places.former
}

// running is how many requests are in progress here, as far as known.
func (u *user) running() int {
	if u.places.phase == placesNone {
		// It is exact but for those on other processes.
		return u.upperBound()
	}
	asked := u.progress.totalAsked()
	if u.places.phase == placesEnding {
		return max(asked, u.upperBound())
	}
	// The places are an upper bound that nobody may use: what is shown is what was told.
	return max(asked, min(asked+u.places.natives, u.places.inside+u.slotsBesidePlaces())) + u.places.former
}

// slotsBesidePlaces is how many slots requests have that the places do not count.
func (u *user) slotsBesidePlaces() int {
	return min(u.places.outside+u.places.beside, u.progress.totalAsked())
}

func (u *user) settle() {
	asked := u.progress.totalAsked() // is exact
	u.places.outside, u.places.beside = min(u.places.outside, asked), min(u.places.beside, asked)
}

// advance takes a count of HAProxy's table of requests that were asked about.
func (u *user) advance(c Count, young bool) {
	unasked := u.progress.advance(c, young)
	// No place was kept for them.
	u.places.outside += unasked
	u.places.since += unasked
	u.settle()
}

// replaceProcess is for a HAProxy that was replaced: what is in progress on it, and its places,
// become numbers that nobody lowers.
func (u *user) replaceProcess() {
	n := u.progress.present()
	if u.places.phase != placesNone {
		// The others are in its places.
		n = min(n, u.slotsBesidePlaces())
	}
	u.progress.replaceProcess(n)
	u.places = u.places.replaced()
}

// forget drops a user of whom nothing is worth remembering, or puts them to rest if there are places. It reports
// whether it did.
func (a *Agent) forget(u *user, now int64) bool {
	l := &u.lease
	// Whatever comes begins with the same slots, and the pool has nothing to hear.
	asNew := l.held == l.portion && l.told == l.portion || l.held == 0 && l.pool == unheard
	told := u.places.phase == placesNone && u.notice.active == 0 || u.places.phase == placesLent
	busy := u.progress.totalAsked() > 0 || u.waits.anyWaiting() || u.refusal.inForce() || l.pool == asked || l.listed != listed{}
	if now-u.startedAt < int64(forgetSpan) || busy || !asNew || !told {
		return false
	}
	if u.places.phase == placesNone && u.places.former == 0 {
		a.drop(u)
	} else {
		a.rest(u, now)
	}
	return true
}
