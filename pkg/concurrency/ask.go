package concurrency

import "time"

const (
	maxBatch = 4096 // bounds the asks that Collect returns at a time

	// Backoff of asks for slots that the pool did not have: short for an instance
	// that holds less than its share, longer for one that takes what others leave.
	firstGap      = 5 * time.Millisecond
	slowestBelow  = 20 * time.Millisecond
	slowestBeyond = 40 * time.Millisecond

	// Asks of one user that do not wait for a flush are at most urgentAsks in an urgentSpan. Flushes
	// come every 5 ms, so an agent asks for one user at most 700 times a second.
	urgentAsks = 50
	urgentSpan = 100 * time.Millisecond

	refreshSpan = 10 * time.Second       // held slots are confirmed so often; the pool forgets after 30 s
	refusedSpan = 100 * time.Millisecond // refusals alone are reported so often
)

// notice is what the pool, and through it polygen, was last told of a user.
type notice struct {
	active  int   // requests in progress
	at      int64 // when
	watched bool  // polygen saw it
	refused int   // requests refused since then
}

// askDue reports whether the pool, and through it polygen, should hear of the user.
func (a *Agent) askDue(u *user, now int64) bool {
	n, l := a.toTell(u), &u.lease
	near := u.heat.hot(now) || u.quota.nearlyUsed(n)
	since := now - u.notice.at
	switch {
	case l.doubtful,
		u.notice.refused > 0 && since >= int64(refusedSpan),
		// Polygen hears last that the user is not near any more.
		n != u.notice.active && (near || u.notice.watched),
		// What polygen is not told again it forgets.
		near && n > 0 && since >= int64(reportEvery):
		return true
	case a.alone():
		// Once is enough, for nobody else needs to know.
		return l.told > 0 && n == 0
	}
	// A Holding of the portion may expire: then the pool takes it for granted.
	lasts := l.pool != unheard && l.held+l.portion > 0 && l.held != l.portion
	return l.held < l.told || lasts && since >= int64(refreshSpan)
}

// pace counts the asks of one user that do not wait for a flush.
type pace struct {
	span int64 // the number of the urgentSpan in which asks are counted
	asks int
}

// allows counts an ask, and reports whether it is within the bound.
func (p *pace) allows(now int64) bool {
	if span := now / int64(urgentSpan); span != p.span {
		*p = pace{span: span}
	}
	p.asks++
	return p.asks <= urgentAsks
}

// listUrgent has the user asked for without waiting for the next flush, unless the user was asked
// for too often.
func (a *Agent) listUrgent(u *user) {
	if !u.lease.listed.urgent {
		if !u.lease.pace.allows(a.now) {
			if !u.lease.listed.flush {
				a.postponed++
			}
			a.listForFlush(u)
			return
		}
		u.lease.listed.urgent = true
		a.urgent = append(a.urgent, u)
	}
	a.out.Urgent = true
}

func (a *Agent) listForFlush(u *user) {
	if !u.lease.listed.flush {
		u.lease.listed.flush = true
		a.flush = append(a.flush, u)
	}
}

// Collect appends what is to be sent to the pool now: what is urgent, and with
// flush everything. What is more than a batch waits for the next call, for which
// Output is then urgent. Each Ask must be answered by one call of Reply or Fail.
func (a *Agent) Collect(at time.Time, flush bool, asks []Ask) []Ask {
	now, full := a.coreTime(at), len(asks)+maxBatch
	take := func(list []*user, unlist func(*listed)) []*user {
		n := 0
		for ; n < len(list) && len(asks) < full; n++ {
			unlist(&list[n].lease.listed)
			if ask, ok := a.makeAsk(list[n], now); ok {
				asks = append(asks, ask)
			}
		}
		left := copy(list, list[n:])
		// Forgotten users would stay in memory by the array.
		clear(list[left:])
		return list[:left]
	}
	a.urgent = take(a.urgent, func(l *listed) { l.urgent = false })
	if flush {
		a.flush = take(a.flush, func(l *listed) { l.flush = false })
	}
	// There may be more than a batch, which the next call has.
	if len(asks) == full {
		a.out.Urgent = true
	}
	return asks
}

// makeAsk makes the user's Ask, if there is anything to say.
func (a *Agent) makeAsk(u *user, now int64) (Ask, bool) {
	l := &u.lease
	if l.pool == asked || a.users[u.name] != u {
		// Reply looks again, or the user was forgotten.
		return Ask{}, false
	}
	a.changes.CatchUp(u)
	want := a.wantedSlots(u, now)
	if want > l.held && now < l.retryAt {
		// What runs is held, whatever the pool says.
		want = max(l.held, a.toTell(u))
	}
	if (want == l.told || a.alone()) && !a.askDue(u, now) {
		// It was listed for something that came to nothing.
		return Ask{}, false
	}
	if u.waits.anyWaiting() && l.gap > 0 {
		// So those with idle slots hear in time that somebody needs them.
		u.notice.refused = max(u.notice.refused, 1)
	}
	// As in review: the pool may give the rest away before it answers.
	l.held = min(l.held, want)
	a.seq++
	ask := Ask{
		User: u.name, Seq: a.seq, Want: want, Active: a.toTell(u), Refused: u.notice.refused,
		Limit: u.quota.limit, Portion: l.portion,
	}
	l.pool, l.doubtful = asked, false
	u.notice = notice{
		active: ask.Active, at: now,
		watched: u.heat.hot(now) || u.quota.nearlyUsed(ask.Active) || ask.Refused > 0,
	}
	return ask, true
}

// Reply takes the pool's answer to one Ask.
func (a *Agent) Reply(at time.Time, ask Ask, g Grant) {
	now := a.coreTime(at)
	a.heardAt = now
	u := a.known(ask.User)
	if u == nil {
		// Users with an ask on its way are not forgotten, but limits may be lifted.
		return
	}
	l := &u.lease
	l.pool, l.told = answered, g.Held
	// Alone, this is an answer of before, or to what only polygen needs.
	if !a.alone() {
		l.held, l.left = g.Held, g.Free
		// The pool sees all instances: this is how one learns of the others' load without polygen.
		if u.quota.nearlyUsed(u.quota.limit - g.Free) {
			u.heat.markHot(now, now+int64(hotSpan))
		}
		if g.Held < ask.Want {
			l.deniedAt = now
		}
		if g.Held < ask.Want || l.overcommitted() {
			// Others hold them, and have to hear first that they are needed. While more is held than
			// there is, the next ask gives up what is idle here instead of asking for more.
			a.backOff(u, now)
		} else {
			l.retryNow()
		}
	}
	a.review(u, now)
}

func (a *Agent) backOff(u *user, now int64) {
	// Below its share an instance is owed slots, so it may ask again sooner.
	slowest := slowestBelow
	if u.lease.held >= a.shareOf(u, now) {
		slowest = slowestBeyond
	}
	u.lease.gap = min(max(2*u.lease.gap, int64(firstGap)), int64(slowest))
	u.lease.retryAt = now + u.lease.gap
}

// Fail takes back an Ask that got no answer. The pool may have heard it or not:
// the next Ask sets that right.
func (a *Agent) Fail(at time.Time, ask Ask) {
	u := a.known(ask.User)
	if u == nil {
		return
	}
	u.lease.pool, u.lease.doubtful = answered, true
	// Refusals are counts, which must not count twice: only that there were some is said
	// again, for who is refused wants a larger share.
	u.notice.refused += min(1, ask.Refused)
	a.review(u, a.coreTime(at))
}
