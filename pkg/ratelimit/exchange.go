package ratelimit

import (
	"slices"
	"time"
)

// maxReports bounds the reports of past seconds that wait for a lost pool.
// What is dropped beyond it would only have corrected totals nobody uses.
const maxReports = 100_000

// maxBatch bounds the asks that Collect returns at a time, so that nobody's
// request waits behind a large batch for longer than it may.
const maxBatch = 4096

// Collect appends what is to be sent to the pool now: asks for tokens, and,
// with flush, reports as well. What is more than a batch waits for the next
// call, for which Output is then urgent. Each Ask must be answered by one call
// of Reply or Fail.
func (a *Agent) Collect(at time.Time, flush bool, asks []Ask) []Ask {
	now := at.UnixNano()
	room := maxBatch
	a.wanted = drain(a.wanted, &room, func(b *bucket) bool {
		a.roll(b, now) // before it is unmarked: it may want again
		b.wanted = false
		ask, ok := a.ask(b, now)
		if ok {
			asks = append(asks, ask)
		}
		return ok
	})
	if flush || a.hurried {
		a.hurried = false
		a.dirty = drain(a.dirty, &room, func(b *bucket) bool {
			b.dirty = false
			if b.debt == 0 && b.back == 0 {
				return false
			}
			asks = append(asks, a.settle(b))
			return true
		})
		a.reports = drain(a.reports, &room, func(ask Ask) bool {
			asks = append(asks, ask)
			return true
		})
	}
	if room == 0 {
		a.hurry()
	}
	return asks
}

// drain uses up the list while there is room and returns what is left.
func drain[T any](list []T, room *int, use func(T) bool) []T {
	n := 0
	for n < len(list) && *room > 0 {
		if use(list[n]) {
			*room--
		}
		n++
	}
	left := copy(list, list[n:])
	clear(list[left:])
	return list[:left]
}

// settle makes an Ask that carries what the bucket has to report.
func (a *Agent) settle(b *bucket) Ask {
	ask := Ask{Key: b.key, Second: b.second, Limit: b.limit, Debt: b.debt, Back: b.back, Instances: a.sharers(b)}
	b.debt, b.back = 0, 0
	return ask
}

// ask makes an Ask for tokens of the current second.
func (a *Agent) ask(b *bucket, now int64) (Ask, bool) {
	if b.asking || a.alone(b) {
		return Ask{}, false
	}
	need := max(0, b.waiting-b.balance)
	if b.spent || b.native {
		need = max(need, 1, min(b.unmet, b.target(now, a.instances)))
		b.unmet = 0
	}
	ahead := max(0, b.target(now, a.instances)-b.balance)
	if need+ahead == 0 {
		return Ask{}, false
	}
	ask := a.settle(b)
	ask.Need, ask.Ahead = need, ahead
	b.asking = true
	return ask, true
}

// Reply takes the pool's answer to one Ask. A grant for a second that is over
// changes nothing but what is reported of that second.
func (a *Agent) Reply(at time.Time, ask Ask, g Grant) {
	now := at.UnixNano()
	b := a.lookup(ask.Key)
	if b == nil {
		a.giveBack(ask, g.Tokens)
		return
	}
	a.roll(b, now)
	wanted := ask.Need+ask.Ahead > 0
	switch {
	case ask.Second == b.second:
		if wanted {
			b.asking = false
		}
		b.balance += g.Tokens
		b.total = g.Total
		if g.Tokens < ask.Need || g.Total >= b.limit {
			a.exhaust(b, now)
		} else if wanted {
			b.spent = false
		}
		if g.Tokens > 0 {
			b.probeGap = int64(firstProbe)
			if b.native {
				a.unshield(b)
			}
		}
	case ask.Second == b.second+1 && wanted:
		b.next += g.Tokens
	default:
		a.giveBack(ask, g.Tokens)
		return
	}
	a.serve(b.owner, now)
	a.plan(b, now)
}

// Fail takes back an Ask that got no answer. Debts are reported again: should
// the pool have counted them already, the second ends a little early. Tokens
// that it may have granted are never used.
func (a *Agent) Fail(at time.Time, ask Ask) {
	now := at.UnixNano()
	b := a.lookup(ask.Key)
	if b != nil {
		a.roll(b, now)
	}
	if b == nil || ask.Second != b.second {
		// Nobody asks for a second that has been over for a while.
		if ask.Debt > 0 && ask.Second >= now/second-2 && len(a.reports) < maxReports {
			a.reports = append(a.reports, Ask{Key: ask.Key, Second: ask.Second, Limit: ask.Limit, Debt: ask.Debt})
		}
		return
	}
	b.debt += ask.Debt
	if b.debt > 0 {
		a.soil(b)
	}
	if ask.Need+ask.Ahead > 0 {
		b.asking = false
	}
	if b.waiting > 0 {
		a.want(b)
	}
}

// exhaust notes that the pool has nothing more for this second.
func (a *Agent) exhaust(b *bucket, now int64) {
	if b.probeGap == 0 || b.probeAt <= now {
		b.probeGap = min(max(2*b.probeGap, int64(firstProbe)), int64(slowestGap))
		b.probeAt = now + b.probeGap
	}
	b.spent = true
	b.hotUntil = max(b.hotUntil, (b.second+1)*second+int64(hotSpan))
}

// serve decides what can be decided of a user's queue, in the order of arrival.
func (a *Agent) serve(u *user, now int64) {
	if len(u.queue) == 0 {
		return
	}
	u.queue = slices.DeleteFunc(u.queue, func(w *Waiting) bool {
		if w.decided {
			return true
		}
		for _, b := range w.buckets[:w.n] {
			a.roll(b, now)
		}
		v, decided := a.decide(w, now)
		if decided {
			a.finish(w, v)
			a.out.Decided = append(a.out.Decided, w)
		}
		return decided
	})
	for _, b := range u.buckets {
		if b.waiting > b.balance && !b.asking {
			a.want(b)
		}
	}
}

func (a *Agent) finish(w *Waiting, v Verdict) {
	w.Verdict, w.decided = v, true
	for _, b := range w.buckets[:w.n] {
		b.waiting--
	}
}

// Timeout decides a request that has waited as long as it may. It is refused,
// with one exception: of a cool key the agent admits up to its even part of the
// limit, so that a stall does not refuse users who are far below their limits.
func (a *Agent) Timeout(at time.Time, w *Waiting) Verdict {
	if w.decided {
		return w.Verdict
	}
	now := at.UnixNano()
	for _, b := range w.buckets[:w.n] {
		a.roll(b, now)
	}
	v := Verdict{Allowed: true, Second: w.buckets[0].second}
	for _, b := range w.buckets[:w.n] {
		if !a.available(b) && (b.spent || !b.cool(now) || b.admitted >= b.limit/max(1, a.instances)) {
			v = a.refuse(b)
			break
		}
	}
	if v.Allowed {
		for _, b := range w.buckets[:w.n] {
			a.spend(b, now)
		}
	}
	a.finish(w, v)
	w.owner.queue = slices.DeleteFunc(w.owner.queue, func(other *Waiting) bool { return other == w })
	return v
}

// giveBack reports tokens that nobody here will use.
func (a *Agent) giveBack(ask Ask, tokens int) {
	if tokens > 0 && len(a.reports) < maxReports {
		a.reports = append(a.reports, Ask{Key: ask.Key, Second: ask.Second, Limit: ask.Limit, Back: tokens})
	}
}

func (a *Agent) lookup(k Key) *bucket {
	u := a.users[k.User]
	if u == nil {
		return nil
	}
	return u.bucket(k.Class)
}
