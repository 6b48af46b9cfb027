package concurrency

import "time"

// Cluster tells the agent how many instances there are, itself included, and its
// own place among them (0 for the first). One that was alone registers what it
// has in progress.
func (a *Agent) Cluster(at time.Time, instances, rank int) {
	now := a.clock(at)
	was, alone := a.instances, a.alone()
	a.instances, a.rank = max(1, instances), max(0, rank)
	if was == a.instances {
		return
	}
	a.settleAt = now + int64(settleSpan)
	a.unparkMore(now)
	for _, u := range a.users {
		if alone != a.alone() {
			u.held = 0 // alone it holds nothing, and together nothing yet
			if !u.field {
				u.told = 0
			}
		}
		a.setPortion(u, now)
		if u.phase == withdrawing {
			u.retryAt = max(u.retryAt, now+int64(applySpan)) // the pool needs not hear what is over at once
		}
	}
	a.reviewAll(now, alone != a.alone())
}

// unparkMore looks at users again whose places are more than HAProxy may have by now.
func (a *Agent) unparkMore(now int64) {
	for name, p := range a.parked {
		if limit, able := a.lookup(name); p.inside > a.allowance(able, limit) {
			a.user(name, limit, Count{}, now)
		}
	}
}

// Lost tells the agent whether the pool cannot be asked, or not in the time a
// request may wait. Without it nothing waits: of users near their limits the
// agent admits what it holds, after a second its part, and of others the limit.
// When the pool is back it hears what is in progress.
func (a *Agent) Lost(at time.Time, lost bool) {
	if a.lost == lost {
		return
	}
	now := a.clock(at)
	a.lost = lost
	if lost {
		a.lostAt = now
	}
	a.reviewAll(now, !lost)
}

// reviewAll is for what happens rarely and concerns everybody.
func (a *Agent) reviewAll(now int64, register bool) {
	for _, u := range a.users {
		known := u.portion > 0 && !u.field && u.inProgress() <= u.held // without a word
		u.register = u.register || register && !known && (u.inProgress() > 0 || u.told > 0)
		a.review(u, now)
	}
}

// Progress takes what HAProxy's table says of a user, with his limit (0: not
// limited). It must be called in the order in which HAProxy says it.
func (a *Agent) Progress(at time.Time, name string, limit int, c Count) {
	if !c.valid() {
		return
	}
	now := a.clock(at)
	u := a.users[name]
	if u == nil {
		if c.Active == 0 || limit <= 0 {
			return
		}
		if u = a.user(name, limit, c, now); u == nil {
			return // as many as may be are known already
		}
	}
	u.push(c, a.young(now))
	u.heardAt = now
	a.setLimit(u, limit, now)
	u.note(now)
	a.review(u, now)
}

// Limits tells the agent that limits may have changed: what each known user's is
// now (0: not limited). Otherwise it would hear of it only with the next request,
// which a block may refuse.
func (a *Agent) Limits(at time.Time, limit func(user string) int) {
	now := a.clock(at)
	a.settleAt = now + int64(settleSpan)
	a.unparkMore(now)
	for name, u := range a.users {
		_, u.able = a.lookup(name)
		a.setLimit(u, limit(name), now)
		a.setPortion(u, now)
		a.review(u, now)
	}
}

// setLimit takes a user's limit. Of one who is not limited any more, requests in
// progress count until they have ended, but none is refused.
func (a *Agent) setLimit(u *user, limit int, now int64) {
	if u.unlimited == (limit <= 0) && (u.unlimited || limit == u.limit) {
		return
	}
	u.unlimited = limit <= 0
	u.gap, u.retryAt = 0, 0
	if !u.unlimited {
		u.release = max(0, u.release+limit-u.limit) // until polygen knows
		u.limit = limit
	}
	a.setPortion(u, now)
	if u.taughtAt > 0 {
		a.teach(u, now)
	}
}

// Synced says that HAProxy has pushed all it knows since an earlier time: whom it
// has not named since has nothing in progress.
func (a *Agent) Synced(at, since time.Time) {
	now := a.clock(at)
	for _, u := range a.users {
		if u.heardAt < now-int64(at.Sub(since)) && u.tracked > u.ended && u.seen < u.heardAt {
			u.ended = u.tracked
			a.review(u, now)
		}
	}
}

// Restarted says that HAProxy has ended, and with it everything in progress but
// what one that has started since was asked about.
func (a *Agent) Restarted(at time.Time) {
	a.takeOver(a.clock(at))
	a.ended()
	a.reviewAll(a.now, false)
}

// ended is for what was in progress on HAProxies that were replaced, or have ended.
func (a *Agent) ended() {
	a.drainUntil = 0
	for _, u := range a.users {
		u.draining, u.former = 0, 0
	}
	for name, p := range a.parked {
		a.inProgress -= p.shown()
		if p.former = 0; p.phase == none {
			delete(a.parked, name)
			continue
		}
		a.inProgress += p.shown()
		a.parked[name] = p
	}
}

// Replaced says that another HAProxy has taken over the session, as after a
// reload. What was in progress goes on, and nobody tells of its end: it counts
// until Drained, or until it must be over.
func (a *Agent) Replaced(at time.Time) {
	a.takeOver(a.clock(at))
	a.drainUntil = a.now + int64(a.config.DrainFor)
	a.reviewAll(a.now, false)
}

func (a *Agent) takeOver(now int64) {
	a.deafUntil = now + int64(deafSpan)
	a.succeed(now)
	for _, u := range a.users {
		u.drain()
	}
	for name, p := range a.parked {
		a.inProgress -= p.shown()
		p = p.replaced()
		a.inProgress += p.shown()
		a.parked[name] = p
	}
}

// young reports whether the present HAProxy has just replaced another one.
func (a *Agent) young(now int64) bool { return a.drainUntil > 0 && now < a.deafUntil }

// Draining reports whether a replaced HAProxy may still have requests.
func (a *Agent) Draining() bool { return a.drainUntil > 0 }

// Drained says that every HAProxy but the present one has ended.
func (a *Agent) Drained(at time.Time) {
	a.ended()
	a.reviewAll(a.clock(at), false)
}

// Share takes polygen's word on how a user's slots are best divided. An instance that
// has nothing of the user lets the pool know, which else would count its portion.
func (a *Agent) Share(at time.Time, s Sharing) {
	if a.alone() {
		return
	}
	now := a.clock(at)
	u := a.known(s.User, now)
	if u == nil {
		if limit, able := a.lookup(s.User); a.portion(able, limit) == 0 {
			return
		}
		if u = a.meet(s.User, now); u == nil {
			return
		}
	}
	before := a.share(u, now)
	u.share, u.shareTo = 0, min(s.Until.UnixNano(), now+int64(shareFor))
	for _, share := range s.Shares {
		if share.Instance == a.config.Instance {
			u.share = share.Slots
		}
	}
	u.heat(now, u.shareTo)
	if u.share > before {
		u.gap, u.retryAt = 0, 0
	}
	a.review(u, now)
}

// Block takes polygen's word that a user's requests in progress have reached his
// limit. HAProxy refuses him by itself if requests are refused again and again;
// a few are better asked about, for each may find a slot that has just become
// free.
func (a *Agent) Block(at time.Time, name string, limit Limit) {
	u := a.users[name]
	if u == nil {
		return
	}
	now := a.clock(at)
	u.blockUntil, u.release = now+int64(blockSpan), limit.Release
	if a.free(u) <= 0 && u.refusals >= shieldAt {
		u.native = true
	}
	u.refusals = 0
	if u.native || now-u.taughtAt >= int64(refreshSpan) {
		a.teach(u, now)
	}
	if u.phase == lent && !a.alone() {
		a.takeBack(u, now)
	}
	a.review(u, now)
}

// Unblock takes polygen's word that a user's requests in progress have fallen
// below his limit.
func (a *Agent) Unblock(at time.Time, name string) {
	u := a.users[name]
	if u == nil {
		return
	}
	now := a.clock(at)
	u.blockUntil = 0
	u.gap, u.retryAt = 0, 0
	a.review(u, now)
}

// shield lets requests through to the agent again when there is room, or when
// nobody says any more that there is none.
func (a *Agent) shield(u *user, now int64) {
	if !u.native {
		return
	}
	room := a.free(u) > 0
	if a.countsAlone() && !u.unlimited {
		room = u.inProgress() <= min(u.release, a.capacity(u)-1)
	}
	if room || now >= u.blockUntil {
		u.native = false
		u.unmetAt = now // there were requests, which HAProxy refused
		a.teach(u, now)
	}
}

// teach brings HAProxy's table up to date.
func (a *Agent) teach(u *user, now int64) {
	u.taughtAt = now
	n := Native{User: u.name}
	if !u.unlimited {
		n.Limit, n.Cap = u.limit, a.part(u)
	}
	if u.native {
		n.Until = u.blockUntil / second
	}
	a.out.Native = append(a.out.Native, n)
}

// Tick does what is due. It is to be called every 5 ms.
func (a *Agent) Tick(at time.Time) {
	now := a.clock(at)
	if a.drainUntil > 0 && now >= a.drainUntil {
		a.Drained(at)
	}
	a.agenda.Take(now, func(u *user) {
		if a.users[u.name] != u {
			return // forgotten
		}
		u.expire(now)
		u.note(now)
		if a.idleForLong(u, now) {
			return
		}
		a.review(u, now)
	})
}

// idleForLong forgets a user of whom there is nothing to remember.
func (a *Agent) idleForLong(u *user, now int64) bool {
	if !u.idle(now) {
		return false
	}
	a.inProgress -= u.counted
	delete(a.users, u.name)
	if u.phase == lent || u.former > 0 {
		a.parked[u.name] = u.places
		a.inProgress += u.shown()
	}
	return true
}

// plan puts the user on the agenda for the next time at which something is due.
func (a *Agent) plan(u *user, now int64) {
	next := now + int64(peakSpan) // peaks fall, refusals grow old, users become idle
	for _, list := range [...][]int64{u.pending, u.fresh} {
		if len(list) > 0 {
			next = min(next, list[0]+int64(bridgeSpan))
		}
	}
	if u.refused > 0 {
		next = min(next, u.reportedAt+int64(refusedSpan))
	}
	if u.retryAt > now && !a.countsAlone() && u.demanding(now) {
		next = min(next, u.retryAt)
	}
	if u.freeThen > 0 && u.unmetAt > 0 && u.hot(now) {
		next = min(next, u.usedAt+int64(idleSpan))
	}
	if u.native {
		next = min(next, u.blockUntil)
	}
	if u.phase == withdrawing {
		next = min(next, u.sendAt)
	}
	a.agenda.Put(u, next)
}
