package concurrency

import "time"

// maxBatch bounds the asks that Collect returns at a time.
const maxBatch = 4096

// Backoff of asks for slots that the pool did not have: short for an instance
// that holds less than its share, longer for one that takes what others leave.
const (
	firstGap      = 5 * time.Millisecond
	slowestBelow  = 20 * time.Millisecond
	slowestBeyond = 40 * time.Millisecond
)

// want is how many slots the agent should hold.
//
// Near the limit it holds its share while requests come, and beyond the share
// only what runs; if that is not enough it asks for one more, for others may have
// left some. When more is held than there is, as after a loss, it does not: what
// ends beyond the share goes back. Far from the limit it keeps some idle slots, as
// many as have been in use, so that requests need not wait for the pool, or the
// portion, of which the pool need not be told.
func (a *Agent) want(u *user, now int64) int {
	n := a.toTell(u)
	want := n
	switch {
	case a.alone(), u.unlimited:
	case !u.hot(now):
		want = a.coolWant(u, n+len(u.queue)+len(u.line), now)
	case u.demanding(now):
		want = max(want, a.share(u, now))
		if want == n && u.held <= n+1 && !u.over {
			want++ // a slot that was found is kept for whoever comes next
		}
	}
	return max(n, min(want, u.limit))
}

// toTell is what the pool and polygen hear of requests in progress: what counts against
// the slots. Alone, where only people hear of it, what is shown to them.
func (a *Agent) toTell(u *user) int {
	if a.alone() {
		return u.running()
	}
	return u.inProgress()
}

// coolWant is the want of a user far from the limit.
func (a *Agent) coolWant(u *user, need int, now int64) int {
	switch {
	case u.portion == 0:
		return a.idleSlots(u, need)
	case max(need, u.peak()) > u.portion:
		return max(u.portion, a.idleSlots(u, need))
	case u.held < u.portion && u.recovering(now):
		return max(need, u.held)
	}
	return u.portion
}

// idleSlots is the want of a user far from his limit. What is held is near
// enough if it neither falls below half of the idle slots nor exceeds them.
func (a *Agent) idleSlots(u *user, need int) int {
	idle := min(max(u.peak(), need), u.limit/(coolPortion*a.instances))
	least, most := need+(idle+1)/2, max(u.peak(), need)+idle
	if u.held >= least && u.held <= most {
		return u.held
	}
	return most
}

// share is how many slots the instance may hold without taking them from others.
func (a *Agent) share(u *user, now int64) int {
	if now < u.shareTo {
		return u.share
	}
	return a.part(u)
}

// review draws the consequences of any change: it decides who waits, lowers what
// is held, and sees to it that the pool hears what it should.
func (a *Agent) review(u *user, now int64) {
	u.settle()
	if u.phase == lent && u.hot(now) && !a.alone() {
		a.takeBack(u, now) // others need what is not in use
	}
	a.withdraw(u, now)
	if least := max(u.inProgress(), a.share(u, now)); u.over && u.held > least && !a.countsAlone() {
		u.held = least // rather than have who waits use it
		a.hurry(u)
	}
	a.serve(u, now)
	a.shield(u, now)
	a.inProgress += u.running() - u.counted
	u.counted = u.running()
	if free := a.free(u); free != u.freeThen || free <= 0 {
		u.freeThen, u.usedAt = free, now
	} else if u.hot(now) && now-u.usedAt >= int64(idleSpan) {
		u.unmetAt = 0 // whoever was refused has not come back
	}
	if !a.countsAlone() {
		want := a.want(u, now)
		switch {
		case want < u.held:
			u.held = want // before the pool hears of it, so that nobody uses them meanwhile
			if u.hot(now) {
				if u.left == 0 {
					u.retryAt = max(u.retryAt, now+int64(slowestBelow)) // others first
				}
				a.hurry(u)
			}
			a.soil(u)
		case want > u.held && now >= u.retryAt:
			a.hurry(u)
		}
	}
	if a.due(u, now) {
		a.soil(u)
	}
	a.plan(u, now)
}

// due reports whether the pool, and through it polygen, should hear of the user.
func (a *Agent) due(u *user, now int64) bool {
	n := a.toTell(u)
	near := u.hot(now) || 100*n >= hotPercent*u.limit
	since := now - u.reportedAt
	switch {
	case u.register:
		return true
	case u.refused > 0 && since >= int64(refusedSpan):
		return true
	case n != u.reported && (near || u.watched):
		return true
	case near && n > 0 && since >= int64(reportEvery):
		return true
	case a.alone():
		return u.told > 0 && n == 0
	}
	// A field that says the portion may lapse: then the pool takes it for granted.
	return u.held < u.told || u.field && u.held+u.portion > 0 && u.held != u.portion && since >= int64(refreshSpan)
}

// hurry has the user asked for without waiting for the next flush.
func (a *Agent) hurry(u *user) {
	a.out.Urgent = true
	if !u.wanted {
		u.wanted = true
		a.wanted = append(a.wanted, u)
	}
}

// soil has the user asked for with the next flush.
func (a *Agent) soil(u *user) {
	if !u.dirty {
		u.dirty = true
		a.dirty = append(a.dirty, u)
	}
}

// Collect appends what is to be sent to the pool now: what is urgent, and with
// flush everything. What is more than a batch waits for the next call, for which
// Output is then urgent. Each Ask must be answered by one call of Reply or Fail.
func (a *Agent) Collect(at time.Time, flush bool, asks []Ask) []Ask {
	now := a.clock(at)
	room := maxBatch
	take := func(list []*user, unmark func(*user)) []*user {
		n := 0
		for ; n < len(list) && room > 0; n++ {
			u := list[n]
			unmark(u)
			if ask, ok := a.ask(u, now); ok {
				asks = append(asks, ask)
				room--
			}
		}
		left := copy(list, list[n:])
		clear(list[left:])
		return list[:left]
	}
	a.wanted = take(a.wanted, func(u *user) { u.wanted = false })
	if flush {
		a.dirty = take(a.dirty, func(u *user) { u.dirty = false })
	}
	if room == 0 {
		a.out.Urgent = true
	}
	return asks
}

// ask makes the user's Ask, if there is anything to say.
func (a *Agent) ask(u *user, now int64) (Ask, bool) {
	if u.asking || a.users[u.name] != u {
		return Ask{}, false // Reply looks again
	}
	want := a.want(u, now)
	if want > u.held && now < u.retryAt {
		want = max(u.held, a.toTell(u))
	}
	if (want == u.told || a.alone()) && !a.due(u, now) {
		return Ask{}, false
	}
	if len(u.queue)+len(u.line) > 0 && u.gap > 0 {
		u.refused = max(u.refused, 1) // so that those with idle slots hear of it in time
	}
	u.held = min(u.held, want) // as in review: the pool may give the rest away before it answers
	a.seq++
	ask := Ask{User: u.name, Seq: a.seq, Want: want, Active: a.toTell(u), Refused: u.refused, Limit: u.limit, Portion: u.portion}
	u.asking, u.field = true, true
	u.register = false
	u.refused = 0
	u.watched = u.hot(now) || 100*ask.Active >= hotPercent*u.limit || ask.Refused > 0
	u.reported, u.reportedAt = ask.Active, now
	return ask, true
}

// Reply takes the pool's answer to one Ask.
func (a *Agent) Reply(at time.Time, ask Ask, g Grant) {
	u := a.users[ask.User]
	if u == nil {
		return // users with an ask on its way are not forgotten, but limits may be lifted
	}
	now := a.clock(at)
	u.asking = false
	u.told = g.Held
	if !a.alone() {
		u.held, u.over, u.left = g.Held, g.Free < 0, max(0, g.Free)
		if 100*(u.limit-g.Free) >= hotPercent*u.limit {
			u.heat(now, now+int64(hotSpan))
		}
		if g.Held < ask.Want {
			a.backOff(u, now)
		} else {
			u.gap, u.retryAt = 0, 0
		}
	}
	a.review(u, now)
}

// backOff puts off the next ask for more.
func (a *Agent) backOff(u *user, now int64) {
	slowest := slowestBelow
	if u.held >= a.share(u, now) {
		slowest = slowestBeyond
	}
	u.gap = min(max(2*u.gap, int64(firstGap)), int64(slowest))
	u.retryAt = now + u.gap
}

// Fail takes back an Ask that got no answer. The pool may have heard it or not:
// the next Ask sets that right. Refusals are counts, which must not count twice: only
// that there were some is said again, for who is refused wants a larger share.
func (a *Agent) Fail(at time.Time, ask Ask) {
	u := a.users[ask.User]
	if u == nil {
		return
	}
	u.asking = false
	u.register = true
	u.refused += min(1, ask.Refused)
	a.review(u, a.clock(at))
}
