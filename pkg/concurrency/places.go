package concurrency

import (
	"time"

	"github.com/sluice-qos/sluice/pkg/credit"
)

const (
	// applySpan is how long an answer that lends places may take until HAProxy has written
	// them, or never will: what is withdrawn sooner could be written after it. HAProxy waits
	// 10 ms for an answer.
	applySpan = 100 * time.Millisecond
	// A withdrawal that nothing came of is asked for again after withdrawAgain, and each
	// time after twice as long, up to withdrawRarely.
	withdrawAgain  = 100 * time.Millisecond
	withdrawRarely = 5 * time.Second
	// calmSpan is for how long nobody may have been refused before places are lent, and how
	// long after a user was near the limit an instance holds its portion again.
	calmSpan = 5 * time.Second
	// settleSpan is how long after the instances or the limits have changed an agent asks
	// the pool before it uses its portion: until then others may hold all slots, as they
	// could while there were fewer instances. It is also as long as fields of the pool live.
	settleSpan = 30 * time.Second
	// burst is how many requests a browser sends at a time. So many of a lone instance's
	// slots are kept for requests that were asked about before HAProxy had its places.
	burst = 6
)

// Places is what HAProxy says with a question of the places it has for the user. The
// zero Places: it has none.
type Places struct {
	Lent   bool // it has credit for the user, and counts this request in Here until it ends
	Here   int  // requests of the user that it counts, this one included
	Places int  // requests that it may have in progress by itself
}

// phase is where the places of a user's slots are.
type phase uint8

const (
	none        phase = iota // HAProxy has no places
	lent                     // it has, as far as known
	withdrawing              // they are to be taken back, and may still be in force
	ending                   // they are taken back, and requests that they admitted are in progress
)

// where is what an admitted request counts as.
type where uint8

const (
	outside where = iota // of the places
	beside
	inside
)

// standing is where a request is of which credited says so.
func standing(admitted, counted bool) where {
	switch {
	case !counted:
		return outside
	case admitted:
		return inside
	}
	return beside
}

// places is what the agent knows of the places of one user. In every phase but none, at
// most inside + outside + beside requests are in progress. Requests that HAProxy tracks in
// its table of credit are in inside, whoever admitted them, if they were admitted because
// HAProxy's count was no higher than the places. Bounds are enough: that of those who were
// asked about is exact, so that none of it lasts longer than they do.
type places struct {
	phase      phase
	inside     int   // the places that are lent; while ending, of the requests in HAProxy's count
	rest       int   // HAProxy's count when last read, while ending: requests that wait are in it too
	outside    int   // an upper bound of the requests in progress that were asked about and that HAProxy's count has not
	beside     int   // of those that it has, and that a slot beside the places was found for
	mostNative int   // an upper bound of the requests in rest that HAProxy admitted by itself
	since      int   // requests admitted since the withdrawal was asked for
	before     int   // outside when it was asked for, and rest when it was first read
	turned     int   // requests refused since the withdrawal became due: they may be in rest too
	former     int   // an upper bound of those in progress by the places of HAProxies that were replaced
	natives    int   // requests that HAProxy admitted by itself, as last told
	lentAt     int64 // when HAProxy was last given places
	sentAt     int64 // when a withdrawal was first asked for; 0: it has not been
	sendAt     int64 // when it is asked for the next time
	sendGap    int64 // from then to the time after
	endedAt    int64 // when a withdrawal was first answered
}

// shown is how many requests are in progress of a user of whom only this is known.
func (p places) shown() int { return min(p.natives, p.inside) + p.former }

// settled reports whether the pool has counted the portions of all instances for long.
func (a *Agent) settled(now int64) bool { return now >= a.settleAt }

// allowance is how many places HAProxy may have.
func (a *Agent) allowance(able bool, limit int) int {
	if !able {
		return 0
	}
	return credit.Portion(limit, a.instances)
}

// portion is how many slots the pool takes an instance to hold that it has not heard of.
func (a *Agent) portion(able bool, limit int) int {
	if a.alone() {
		return 0
	}
	return a.allowance(able, limit)
}

// setPortion is for a user whose limit, or the number of instances, has changed. A
// portion that the pool has not been asked for grows only when it is.
func (a *Agent) setPortion(u *user, now int64) {
	before := u.portion
	able := u.able && !u.unlimited
	u.allowed, u.portion = a.allowance(able, u.limit), a.portion(able, u.limit)
	if u.portion != before && !u.field {
		u.held = min(u.held, u.portion)
		u.told = u.held
		u.register = u.register || u.inProgress() > u.held
	}
	if u.inside > u.allowed {
		a.takeBack(u, now)
	}
}

// credited is for a request of which HAProxy says what places it has. It reports whether
// they admit the request, and whether it is in inside as long as it is in progress.
func (a *Agent) credited(u *user, process int64, p Places, now int64) (admitted, counted bool) {
	if a.whose(process) != present {
		return false, false // another process has other places
	}
	if !p.Lent {
		// HAProxy has forgotten them, or never heard. Or the request was asked about before,
		// and there is no slot beside the places.
		if u.phase == lent && (now-u.lentAt >= int64(applySpan) || a.alone() && a.free(u) <= 0) {
			a.takeBack(u, now)
		}
		return false, false
	}
	switch u.phase {
	case none, ending:
		if now-u.endedAt < int64(applySpan) {
			return false, false // it was asked about before the places were withdrawn
		}
		a.adopt(u, p, now)
		return p.Here <= min(p.Places, u.allowed), false
	case lent:
		if p.Places <= u.inside && p.Here <= u.inside {
			return true, true
		}
		u.busyAt = now
		a.takeBack(u, now)
		return false, true
	}
	// Once the withdrawal is on its way, the request may be tracked after it has read the
	// count, and waits for the answer; unless there seems to be none.
	admitted = p.Here <= min(p.Places, u.inside)
	if u.sentAt == 0 {
		return admitted, true
	}
	return admitted && now-u.sentAt >= int64(withdrawAgain), false
}

// distinguish lowers the bound of the requests that HAProxy admitted by itself, given what
// its tables say with a question that it asked after the places were withdrawn. Of the
// requests that were asked about, those that are neither newer nor outside are in its count.
func (a *Agent) distinguish(u *user, seen Count, p Places, now int64) {
	if u.phase == ending && !p.Lent && seen.valid() && a.whose(seen.Process) == present && now-u.endedAt >= int64(applySpan) {
		u.mostNative = max(0, min(u.mostNative, u.before+u.since-int(seen.Active)))
	}
}

// adopt is for places that another agent lent, before this one was started. While none
// answered, HAProxy may have used the whole limit.
func (a *Agent) adopt(u *user, p Places, now int64) {
	u.outside, u.beside = u.believed(), 0
	used := p.Places
	if !a.alone() {
		used *= 4
	}
	u.inside = max(u.inside, p.Here, min(used, u.limit))
	u.lentAt = 0
	u.phase = lent
	a.takeBack(u, now)
}

// takeBack has HAProxy's places withdrawn.
func (a *Agent) takeBack(u *user, now int64) {
	if u.phase != lent {
		return
	}
	u.phase = withdrawing
	u.sentAt, u.turned, u.sendGap = 0, 0, int64(withdrawAgain)
	u.sendAt = max(now, u.lentAt+int64(applySpan))
	a.withdraw(u, now)
}

// withdraw asks for the withdrawal when it is time.
func (a *Agent) withdraw(u *user, now int64) {
	if u.phase != withdrawing || now < u.sendAt {
		return
	}
	if u.sentAt == 0 {
		u.sentAt, u.since, u.before = now, 0, u.outside
	}
	u.sendAt, u.sendGap = now+u.sendGap, min(2*u.sendGap, int64(withdrawRarely))
	a.out.Withdraw = append(a.out.Withdraw, u.name)
}

// Recall has HAProxy's places of a user withdrawn for another reason than the user's
// requests in progress. Output.Withdraw names the user when it can be done.
func (a *Agent) Recall(at time.Time, name string) {
	now := a.clock(at)
	if u := a.known(name, now); u != nil {
		a.takeBack(u, now)
		a.review(u, now)
	}
}

// Withdrawn says that HAProxy has no places for the user any more, and that at most rest
// requests which they admitted are in progress. These count until a later call says less:
// it is to be called again until there are none. It must come from the process that the
// peers session is with.
func (a *Agent) Withdrawn(at time.Time, name string, rest int) {
	now := a.clock(at)
	u := a.known(name, now)
	if u == nil {
		if rest <= 0 {
			return
		}
		if u = a.meet(name, now); u == nil {
			return
		}
	}
	rest = max(0, rest)
	switch {
	case a.changing(now):
		return // HAProxy is being replaced: it may be the new one that says so
	case u.phase == none && rest == 0:
		return
	case u.phase == none:
		u.outside, u.beside, u.inside, u.rest, u.mostNative = u.believed(), 0, rest, rest, rest
		u.since, u.before = u.believed(), rest
	case u.phase == ending:
		u.rest = min(u.rest, rest)
		u.inside, u.mostNative = min(u.inside, u.rest), min(u.mostNative, u.rest)
	case u.sentAt == 0:
		// Nobody has asked for it. Who waits may have been tracked after the count was read.
		if now-u.lentAt < 2*int64(applySpan) {
			a.takeBack(u, now) // the places may be written after this withdrawal
			a.review(u, now)
			return
		}
		u.outside, u.beside = u.believed(), 0
		for _, w := range append(u.queue[:len(u.queue):len(u.queue)], u.line...) {
			w.counted = false
		}
		u.inside, u.rest, u.mostNative = min(u.inside, rest), rest, rest
		u.since, u.before = u.believed(), rest // they cannot be told from those in the count
	default:
		// HAProxy's count has those beside the places, and who waits.
		// What is more than that was admitted while HAProxy took the agent for dead.
		phantoms := u.turned + len(u.queue) + len(u.line)
		u.inside = min(rest, max(u.inside+u.beside, rest-phantoms))
		u.rest, u.mostNative, u.beside = rest, rest, 0
		u.before += rest
	}
	if u.phase != ending {
		u.endedAt = now
	}
	u.phase = ending
	if u.rest == 0 {
		u.phase = none
	}
	u.natives = min(u.natives, u.inside)
	u.sentAt = 0
	a.review(u, now)
}

// Lendable reports whether HAProxy may be given places for a user, with the answer to the
// request that was just admitted.
func (a *Agent) Lendable(at time.Time, name string) bool {
	u := a.users[name]
	if u == nil {
		return false
	}
	now := a.clock(at)
	if a.lost || u.unlimited || u.hot(now) || a.whose(u.asker) != present || a.changing(now) || a.young(now) {
		return false
	}
	switch u.phase {
	case none:
	case lent:
		// HAProxy renews them by itself, unless they are of another generation.
		return u.inside <= u.allowed && now-u.lentAt >= 2*second
	default:
		return false
	}
	n := a.lendable(u)
	return n > 0 && u.believed() <= max(1, n/2) &&
		len(u.queue)+len(u.line) == 0 && (u.busyAt == 0 || now-u.busyAt >= int64(calmSpan)) &&
		len(a.parked) < a.config.MaxUsers
}

// lendable is how many places could be lent now. HAProxy tracks the request that it is
// told so with: that one is inside. Alone, an instance keeps some slots: for requests that
// were asked about before the answer was there, and for the time after a reload, in which
// the places of the old HAProxy count until it has ended.
func (a *Agent) lendable(u *user) int {
	taken := max(0, u.believed()-1) + u.former
	if !a.alone() {
		return min(u.allowed, u.held) - taken
	}
	free := u.allowed - taken
	return free - min(free/2, max(burst, free/4))
}

// Lend says that HAProxy is given places with the answer to the request that was just
// admitted, and returns how many: 0 if it is not Lendable. Given again, they are as many
// as before.
func (a *Agent) Lend(at time.Time, name string) int {
	if !a.Lendable(at, name) {
		return 0
	}
	u, now := a.users[name], a.now
	if u.phase == none {
		u.inside, u.outside, u.beside = a.lendable(u), max(0, u.believed()-1), 0
		u.phase = lent
	}
	u.lentAt, u.sentAt = now, 0
	a.review(u, now)
	return u.inside
}

// Natives says how many requests in progress HAProxy has admitted by itself. It is for
// what people and polygen see: that the number is of some time ago does no harm.
func (a *Agent) Natives(at time.Time, name string, n int) {
	if p, ok := a.parked[name]; ok {
		a.inProgress -= p.shown()
		p.natives = max(0, n)
		a.inProgress += p.shown()
		a.parked[name] = p
		return
	}
	if u := a.users[name]; u != nil && u.phase != none {
		u.natives = max(0, n)
		a.review(u, a.clock(at))
	}
}

// Remain says that at most rest requests of a user are in progress on HAProxies that were
// replaced, out of those in their tables of credit. Where nobody can tell, the places
// count until they have ended.
func (a *Agent) Remain(at time.Time, name string, rest int) {
	now := a.clock(at)
	if u := a.known(name, now); u != nil {
		u.former = min(u.former, max(0, rest))
		a.review(u, now)
	}
}

func (a *Agent) lookup(name string) (limit int, able bool) {
	if a.config.Lookup == nil {
		return 0, false
	}
	return a.config.Lookup(name)
}

// known returns a user of whom something is known, places included.
func (a *Agent) known(name string, now int64) *user {
	if u := a.users[name]; u != nil {
		return u
	}
	if _, ok := a.parked[name]; ok {
		return a.meet(name, now)
	}
	return nil
}

// meet makes a user of whom no request has come, or nil if they are not limited or too
// many are known.
func (a *Agent) meet(name string, now int64) *user {
	limit, _ := a.lookup(name)
	if _, ok := a.parked[name]; limit <= 0 && !ok {
		return nil
	}
	return a.user(name, limit, Count{}, now)
}
