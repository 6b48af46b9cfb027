package concurrency

import (
	"time"

	"github.com/sluice-qos/sluice/pkg/internal/agenda"
)

const (
	second = int64(time.Second)

	setBack = 100 * time.Millisecond // a clock that runs back so far has been set

	// bridgeSpan is how long an admitted request may take to appear in HAProxy's
	// table, as far as the agent hears of it: measured 1 to 22 ms. One that has not
	// by then never came to be, because its client had gone.
	bridgeSpan = time.Second

	deafSpan    = time.Second            // after HAProxy ended, questions of its last moments may still be read for so long
	peakSpan    = 500 * time.Millisecond // slots are kept for the peak of the last one to two of these
	coolPortion = 4                      // idle slots of users far below their limits take up to 1/coolPortion of the limit
	hotSpan     = 500 * time.Millisecond // a pool found nearly empty is so for this long
	hotPercent  = 70                     // of the slots held make a pool nearly empty
	yieldSpan   = 30 * time.Millisecond  // within this others give back what they hold idle
	idleSpan    = 50 * time.Millisecond  // near the limit, free slots nobody takes for so long go back
	forgetSpan  = time.Second            // a user without any request for so long is forgotten
	leaseSpan   = time.Second            // what was held when the pool was lost is still so for this long
	refreshSpan = 10 * time.Second       // held slots are confirmed so often; the pool forgets after 30 s
	refusedSpan = 100 * time.Millisecond // refusals alone are reported so often
	blockSpan   = 2 * time.Second        // a block holds for this long after its last repetition
	shieldAt    = 5                      // refusals between two repetitions of a block make HAProxy refuse by itself
)

// A Count is what HAProxy's table says of a user: two numbers that only grow
// while the entry exists, so that of two Counts the later one is the larger.
type Count struct {
	Tracked int64 // requests tracked since the entry exists
	Active  int64 // of these, in progress

	// Process is the HAProxy process that asks, by a number of its own, which grows
	// with the time it was started: one that is reloaded is another process. 0 means
	// unknown. Pushed counts need none.
	Process int64
}

func (c Count) valid() bool { return c.Active >= 0 && c.Active <= c.Tracked }

// user is what an agent knows of one user.
type user struct {
	agenda.Place

	name      string
	limit     int
	unlimited bool  // by now; limit is what it was
	able      bool  // HAProxy may have credit for the user
	seen      int64 // when a request last started
	asker     int64 // the process that then asked
	busyAt    int64 // when a request was last refused, or found no place; 0: long ago

	places

	// What is in progress.
	tracked, ended int64   // HAProxy's count
	pushed         int64   // tracked, as HAProxy itself last pushed it
	heardAt        int64   // when
	pending        []int64 // when the requests were admitted that HAProxy has not counted yet
	fresh          []int64 // the same of processes that the session is not with
	draining       int     // in progress on a HAProxy that was replaced
	counted        int     // what Agent.inProgress has of him

	// The lease.
	allowed  int    // places that HAProxy may have
	portion  int    // slots that the pool takes the instance to hold that never asked
	field    bool   // it has asked: the pool knows a Holding
	held     int    // slots that may be used
	over     bool   // all instances hold more than there are
	left     int    // slots that nobody held when the pool last answered
	told     int    // slots that the pool believes held, as far as known
	asking   bool   // an ask is on its way
	wanted   bool   // stands in Agent.wanted
	dirty    bool   // stands in Agent.dirty
	register bool   // the pool may have forgotten
	retryAt  int64  // no sooner are more slots asked for
	gap      int64  // from one such ask to the next
	share    int    // as polygen says,
	shareTo  int64  // until when; then it is the even part again
	hotSince int64  // since when the pool has been nearly empty
	hotUntil int64  // until when that is taken for granted
	peaks    [2]int // most in progress, in this and the last peakSpan
	peakSpan int64  // the number of this one

	// What the pool and polygen were last told.
	reported   int   // in progress
	reportedAt int64 // when
	watched    bool  // polygen saw it
	refused    int   // since then

	queue   []*Waiting // wait for the pool's answer
	line    []*Waiting // wait for a slot
	unmetAt int64      // when a request was last refused or had to wait for a slot; 0: it did not come back

	freeThen int   // free slots when last looked at,
	usedAt   int64 // and since when it is so

	// The native shield.
	blockUntil int64 // polygen's block holds until then
	release    int
	refusals   int   // since the block was last repeated; of requests that may wait in line none count
	patientTo  int64 // until when requests are taken for such, because one was
	native     bool  // HAProxy refuses him by itself
	taughtAt   int64 // when HAProxy's table was last told
}

// inProgress is an upper bound of the requests in progress here, whoever admitted them,
// and of those that HAProxy may admit by itself.
func (u *user) inProgress() int {
	switch u.phase {
	case none:
		return u.believed() + u.former
	case ending:
		return min(u.inside+u.slots(), u.mostNative+u.believed()) + u.former
	}
	return u.inside + u.slots() + u.former
}

// running is how many requests are in progress here, as far as known.
func (u *user) running() int {
	switch u.phase {
	case none:
		return u.inProgress()
	case ending:
		return max(u.believed(), u.inProgress())
	}
	return max(u.believed(), min(u.believed()+u.natives, u.inside+u.slots())) + u.former
}

// slots is how many slots requests have that the places do not count.
func (u *user) slots() int { return min(u.outside+u.beside, u.believed()) }

// settle lowers bounds when requests that were asked about have ended.
func (u *user) settle() {
	u.outside, u.beside = min(u.outside, u.believed()), min(u.beside, u.believed())
}

// believed is how many requests that were asked about are in progress here.
func (u *user) believed() int {
	return int(u.tracked-u.ended) + len(u.pending) + len(u.fresh) + u.draining
}

// advance takes a later, or older, count of HAProxy's table. One that is young may
// learn at any moment what the one before it had ever tracked, and goes on from there.
func (u *user) advance(c Count, young bool) {
	if !c.valid() {
		return
	}
	tracked := max(u.tracked, c.Tracked)
	arrived := min(int(tracked-u.tracked), len(u.pending))
	if young && int(tracked-u.tracked) > len(u.pending) {
		arrived = min(arrived, max(0, int(c.Active-u.tracked+u.ended)))
	}
	// Nobody says which they are. Taken for the latest, they leave behind those
	// that never come to be, however many follow.
	u.pending = u.pending[:len(u.pending)-arrived]
	unasked := int(tracked-u.tracked) - arrived // or not known any more
	u.outside += unasked
	u.since += unasked
	u.tracked, u.ended = tracked, max(u.ended, c.Tracked-c.Active)
	u.settle()
}

// push takes a count that HAProxy pushed. It pushes in order: fewer requests than
// before are those of an entry that began anew.
func (u *user) push(c Count, young bool) {
	if c.Tracked < u.pushed {
		u.forgetCount()
	}
	u.pushed = c.Tracked
	u.advance(c, young)
}

// drain turns what is in progress on a HAProxy that was replaced into a number
// that nobody lowers, and its places into another.
func (u *user) drain() {
	n := int(u.tracked-u.ended) + len(u.pending)
	if u.phase != none {
		n = min(n, u.slots())
	}
	u.draining += n
	u.pending, u.fresh = u.fresh, nil
	u.forgetCount()
	u.places = u.replaced()
}

// replaced is what is known of places when their HAProxy has been replaced.
func (p places) replaced() places {
	if p.phase == none {
		return places{former: p.former}
	}
	return places{former: p.former + p.inside}
}

// forgetCount is for a table that began anew.
func (u *user) forgetCount() { u.tracked, u.ended, u.pushed = 0, 0, 0 }

// expire drops the pending requests that never came to be.
func (u *user) expire(now int64) {
	for _, list := range []*[]int64{&u.pending, &u.fresh} {
		n := 0
		for n < len(*list) && now-(*list)[n] >= int64(bridgeSpan) {
			n++
		}
		*list = (*list)[:copy(*list, (*list)[n:])]
	}
	u.settle()
}

// note keeps the peak of what is in progress.
func (u *user) note(now int64) {
	switch span := now / int64(peakSpan); {
	case span == u.peakSpan+1:
		u.peaks[0], u.peaks[1] = 0, u.peaks[0]
		u.peakSpan = span
	case span != u.peakSpan:
		u.peaks = [2]int{}
		u.peakSpan = span
	}
	u.peaks[0] = max(u.peaks[0], u.inProgress())
}

func (u *user) peak() int { return max(u.peaks[0], u.peaks[1]) }

// hot reports whether the user's pool is, or may soon be, empty.
func (u *user) hot(now int64) bool { return now < u.hotUntil }

func (u *user) heat(now, until int64) {
	if !u.hot(now) {
		u.hotSince = now
	}
	u.hotUntil = max(u.hotUntil, until)
}

// exhausted reports whether the pool is known to have no slot, and those who
// hold idle ones have had the time to give them back.
func (u *user) exhausted(now int64) bool {
	return u.held >= u.limit || now < u.retryAt && u.hot(now) && now-u.hotSince >= int64(yieldSpan)
}

// demanding reports whether requests want more slots than there are.
func (u *user) demanding(now int64) bool {
	return u.native || len(u.queue)+len(u.line) > 0 || now-u.unmetAt < int64(demandSpan)
}

// shift moves everything that is to happen, or has, back in time.
func (u *user) shift(back int64) {
	for i := range u.pending {
		u.pending[i] -= back
	}
	for i := range u.fresh {
		u.fresh[i] -= back
	}
	for _, t := range []*int64{
		&u.seen, &u.heardAt, &u.retryAt, &u.shareTo, &u.hotSince, &u.hotUntil, &u.reportedAt,
		&u.unmetAt, &u.usedAt, &u.blockUntil, &u.taughtAt, &u.patientTo,
		&u.busyAt, &u.lentAt, &u.sentAt, &u.sendAt, &u.endedAt,
	} {
		if *t != 0 {
			*t -= back
		}
	}
}

// idle reports whether nothing of the user is worth remembering but places.
func (u *user) idle(now int64) bool {
	return u.believed() == 0 && (u.phase == none && u.reported == 0 || u.phase == lent) &&
		len(u.queue)+len(u.line) == 0 && !u.asking && !u.native && !u.wanted && !u.dirty &&
		(u.held == u.portion && u.told == u.portion || u.held == 0 && !u.field) && now-u.seen >= int64(forgetSpan)
}

// recovering reports whether the user was near the limit until a while ago: others may
// need the slots.
func (u *user) recovering(now int64) bool { return now-u.hotUntil < int64(calmSpan) }
