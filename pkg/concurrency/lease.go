package concurrency

import (
	"math"
	"time"
)

const (
	coolPortion = 4           // idle slots of users far below their limits take up to 1/coolPortion of the limit
	leaseSpan   = time.Second // what was held when the pool was lost is still so for this long
)

type heard uint8

const (
	unheard  heard = iota // nothing: it takes the portion for held
	asked                 // an ask is on its way, and no other one is sent
	answered              // it was asked, and has a Holding unless that has expired
)

// listed says in which of the agent's lists a user stands: exactly where it is true.
type listed struct{ urgent, flush bool }

// lease is what an instance holds of a user's slots. Never more is held than the pool
// takes it to hold: what is given up is given up here first, and what is asked for is held
// when the pool has granted it. Alone nothing is held.
type lease struct {
	held     int   // slots that may be used
	portion  int   // slots that the pool takes an instance to hold that it has not heard of
	told     int   // slots that the pool believes held, as far as known
	left     int   // slots that nobody held when it last answered; below 0: more are held than there are
	pool     heard // what it has heard
	doubtful bool  // it may have missed or forgotten something, and is to hear it again
	listed   listed
	pace     pace
	deniedAt int64 // when the pool last granted less than was asked for
	retryAt  int64 // no sooner are more slots asked for
	gap      int64 // from one such ask to the next; 0: the last one was granted
}

func (l *lease) retryNow() { l.gap, l.retryAt = 0, 0 }

// overcommitted reports whether all instances hold more than there are, as after a loss.
func (l *lease) overcommitted() bool { return l.left < 0 }

// exhausted reports whether the pool is known to have no slot, and those who
// hold idle ones have had the time to give them back.
func (u *user) exhausted(now int64) bool {
	return u.lease.held >= u.quota.limit || now < u.lease.retryAt && u.heat.yielded(now)
}

func (u *user) demanding(now int64) bool {
	return u.refusal.inForce() || u.waits.anyWaiting() || now-u.waits.unmetAt < int64(demandSpan)
}

func (a *Agent) freeHere(u *user) int { return a.capacity(u) - u.upperBound() }

func (a *Agent) capacity(u *user) int {
	switch {
	case u.quota.unlimited:
		return math.MaxInt
	case a.alone():
		return u.quota.limit
	case !a.lost():
		// What runs is held, even above the limit.
		return min(u.lease.held, u.quota.limit)
	case u.heat.until < a.lostAt:
		// Far from the limit a user is not refused for the pool's loss.
		return u.quota.limit
	case a.now-a.lostAt < int64(leaseSpan):
		return u.lease.held
	}
	// The others have none of what they gave back meanwhile.
	return a.evenPart(u.quota)
}

// FreeSlots is how many more requests of a user may start now, as far as this agent knows:
// exactly, where it is alone; among several, what it holds and what the pool had when
// it last answered, of which others may have taken since. It is never negative and
// never above the limit. It reports false for a user who is not known, or not limited.
func (a *Agent) FreeSlots(name string) (int, bool) {
	u := a.known(name)
	if u == nil || u.quota.unlimited {
		return 0, false
	}
	// running, not upperBound: what is shown to people is what is known, not what is feared.
	n := a.capacity(u) - u.running()
	if !a.countsAlone() {
		n += max(0, u.lease.left)
	}
	return max(0, min(n, u.quota.limit)), true
}

func (a *Agent) wantedSlots(u *user, now int64) int {
	n := a.toTell(u)
	want := n
	switch {
	case a.alone(), u.quota.unlimited:
	// Who waits needs slots, too.
	case !u.heat.hot(now):
		want = a.coolWant(u, n+u.waits.waiting(), now)
	case u.demanding(now):
		// Beyond the share only what runs; if that is not enough one more, for others may
		// have left some. It is kept for whoever comes next. But what ends beyond the share
		// goes back when more is held than there is.
		want = max(want, a.shareOf(u, now))
		if want == n && u.lease.held <= n+1 && !u.lease.overcommitted() {
			want++
		}
	}
	// What runs is told, even above the limit.
	return max(n, min(want, u.quota.limit))
}

// toTell is what the pool and polygen hear of requests in progress: what counts against
// the slots. Alone, where only people hear of it, what is shown to them.
func (a *Agent) toTell(u *user) int {
	if a.alone() {
		return u.running()
	}
	return u.upperBound()
}

// coolWant is the want of a user far from the limit: the portion, of which the pool need
// not be told, or if that is too little, some idle slots.
func (a *Agent) coolWant(u *user, need int, now int64) int {
	portion := u.lease.portion
	switch {
	case portion == 0, max(need, u.peaks.highest()) > portion:
		return max(portion, a.idleWant(u, need))
	case u.lease.held < portion && u.heat.recovering(now):
		// The portions of all might make the user hot again.
		return max(need, u.lease.held)
	}
	return portion
}

// idleWant is the want of a user far from the limit who needs more than the portion: as
// many idle slots as have been in use, so that requests need not wait for the pool.
func (a *Agent) idleWant(u *user, need int) int {
	idle := min(max(u.peaks.highest(), need), u.quota.limit/(coolPortion*a.instances))
	// A band, or each request would change what is held by one and cost an ask.
	least, most := need+(idle+1)/2, max(u.peaks.highest(), need)+idle
	if u.lease.held >= least && u.lease.held <= most {
		// It is near enough: not every request is worth an ask.
		return u.lease.held
	}
	return most
}

// giveUp gives up what others need more, before requests that wait could use it.
func (a *Agent) giveUp(u *user, now int64) {
	if !u.lease.overcommitted() || a.countsAlone() {
		return
	}
	// What runs cannot be given up. All else must be, of a share too: another instance may hold more
	// than its own, and need not know yet that together they hold too much.
	if least := u.upperBound(); u.lease.held > least {
		u.lease.held = least
		a.listUrgent(u)
	}
}

// reviewLease lowers what is held to what is wanted, and has more asked for.
func (a *Agent) reviewLease(u *user, now int64) {
	if a.countsAlone() {
		// What was held last is all that an agent has which loses the pool.
		return
	}
	l := &u.lease
	switch want := a.wantedSlots(u, now); {
	case want < l.held:
		// Given up before the pool hears of it, so that nobody here uses them meanwhile.
		l.held = want
		if u.heat.hot(now) {
			if l.left <= 0 {
				// The others come first.
				l.retryAt = max(l.retryAt, now+int64(slowestBelow))
			}
			a.listUrgent(u)
		}
		// Listed also if the ask now finds another one on its way.
		a.listForFlush(u)
	case want > l.held && now >= l.retryAt:
		a.listUrgent(u)
	}
}
