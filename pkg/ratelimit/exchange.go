package ratelimit

import (
	"slices"
	"time"

	"github.com/sluice-qos/sluice/pkg/cause"
	"github.com/sluice-qos/sluice/pkg/limits"
)

// maxReports bounds the reports of seconds that wait for a lost pool, and those of
// accounts apart from them. What is dropped beyond it would only have corrected totals
// of past seconds, which nobody uses, and the credit of users who burst.
const maxReports = 100_000

// maxBatch bounds the asks that Collect returns at a time, so that nobody's
// request waits behind a large batch for longer than it may.
const maxBatch = 4096

// Collect appends what is to be sent to the pool now: asks for tokens, and,
// with flush, reports as well. What is more than a batch waits for the next
// call, for which Output is then urgent. Each Ask must be answered by one call
// of Reply or Fail, and all of a batch before the next call. A batch that failed comes
// again, as often as it fails, and nothing else before it was heard.
func (a *Agent) Collect(at time.Time, flush bool, asks []Ask) []Ask {
	if reports := slices.ContainsFunc(a.unanswered, func(ask Ask) bool { return ask.Debt+ask.Back > 0 }); reports {
		// As it was, and alone: the pool knows a batch by its number, and counts what it brings once.
		asks = append(asks, a.unanswered...)
		a.unanswered = nil
		a.out.Urgent = a.out.Urgent || a.flushUrgent || len(a.tokenRequests)+len(a.accountReports) > 0
		return asks
	}
	a.unanswered = nil // what it wanted is asked for anew
	first := len(asks)
	asks = a.collect(at.UnixNano(), flush, asks)
	if len(asks) > first {
		a.seq++
		for i := range asks[first:] {
			asks[first+i].Seq = a.seq
		}
	}
	return asks
}

func (a *Agent) collect(now int64, flush bool, asks []Ask) []Ask {
	room := maxBatch
	send := func(ask Ask) bool {
		// It decides nothing any more, so tokens would be lost with it.
		if a.leaving {
			ask.Need, ask.Ahead = 0, 0
		}
		asks = append(asks, ask)
		return true
	}
	// Before asks of the same batch: what is left of an account's second is credit of its next.
	a.accountReports = takeBatch(a.accountReports, &room, send)
	a.tokenRequests = takeBatch(a.tokenRequests, &room, func(b *bucket) bool {
		a.advanceWindow(b, now) // before it is unmarked: it may want again
		b.listedToAsk = false
		ask, ok := a.makeAsk(b, now)
		if ok {
			asks = append(asks, ask)
		}
		return ok
	})
	// Reports wait for each other, 5 ms at most, so that many requests are one message.
	if flush || a.flushUrgent {
		a.flushUrgent = false
		a.toReport = takeBatch(a.toReport, &room, func(b *bucket) bool {
			b.listedToReport = false
			if b.debt == 0 && b.back == 0 {
				return false
			}
			asks = append(asks, a.makeReport(b))
			return true
		})
		a.reports = takeBatch(a.reports, &room, send)
	}
	// There may be more than a batch holds: the shell is to call again at once.
	if room == 0 {
		a.flushNow()
	}
	return asks
}

// takeBatch uses up the list while there is room and returns what is left.
func takeBatch[T any](list []T, room *int, use func(T) bool) []T {
	n := 0
	for n < len(list) && *room > 0 {
		if use(list[n]) {
			*room--
		}
		n++
	}
	left := copy(list, list[n:])
	// Else what was dropped stays reachable from the array.
	clear(list[left:])
	return list[:left]
}

// makeReport makes an Ask that carries what the bucket has to report.
func (a *Agent) makeReport(b *bucket) Ask {
	ask := Ask{
		Key: b.key, WindowStart: b.start, Limit: b.rate.Max, Burst: b.rate.Burst, Reserve: b.portion.reserve,
		Debt: b.debt, Back: b.back, Instances: a.sharers(b),
	}
	b.debt, b.back = 0, 0
	return ask
}

// makeAsk makes an Ask for tokens of the current window.
func (a *Agent) makeAsk(b *bucket, now int64) (Ask, bool) {
	// One ask at a time: with two, the second would be for tokens that the first one brings.
	if b.asking || a.leaving || a.decidesAlone(b) {
		return Ask{}, false
	}
	need := max(0, b.waiting-b.balance)
	if b.spent || b.refusing {
		// Nobody waits for a spent key. It is asked as if somebody did, for need is granted to the last token.
		need = max(need, 1, min(b.unmet, b.target(now, a.fleet.instances)))
		b.unmet = 0
	}
	ahead := max(0, b.target(now, a.fleet.instances)-b.balance)
	if need+ahead == 0 {
		return Ask{}, false
	}
	ask := a.makeReport(b)
	ask.Need, ask.Ahead = need, ahead
	b.asking = true
	return ask, true
}

// Reply takes the pool's answer to one Ask. A grant for a window that is over
// changes nothing but what is reported of that window.
func (a *Agent) Reply(at time.Time, ask Ask, g Grant) {
	now := at.UnixNano()
	b := a.findBucket(&ask.Key)
	if b == nil || a.leaving || (ask.Burst > 0) != (b.rate.Burst > 0) {
		a.giveBack(ask, g.Tokens) // nobody's, or from another pool than the bucket's
		return
	}
	a.advanceWindow(b, now)
	// A report alone is no answer to an ask for tokens, which may still be on its way.
	wanted := ask.Need+ask.Ahead > 0
	switch {
	case ask.WindowStart == b.start:
		if wanted {
			b.asking = false
		}
		// What was admitted without a token while this answer was late has one now: the
		// pool must not count both.
		paid := min(b.debt, g.Tokens)
		b.debt -= paid
		b.owed, b.unleased = max(0, b.owed-paid), max(0, b.unleased-paid) // some of it may be HAProxy's
		b.balance += g.Tokens - paid
		b.total = g.Total
		b.owed = max(0, b.owed-ask.Debt)
		if b.pooled() {
			a.learnFromPool(b, ask, g, now)
		}
		// Less than was needed: whatever was wanted ahead, the pool has nothing for requests that exist.
		if g.Tokens < ask.Need || g.Total >= b.limit {
			a.markSpent(b, now)
		} else if wanted {
			b.spent = false
		}
		if b.pooled() && (wanted || b.spent) {
			b.throttle = b.spent // nobody needs polygen's word who asks the pool in any case
		}
		if g.Tokens > 0 {
			b.probeGap = int64(firstProbe)
			if b.refusing {
				a.liftRefusal(b)
			}
		}
	// The answer to what nextAsk asked for: the bucket has not advanced yet.
	case ask.WindowStart == b.following() && wanted:
		b.next += g.Tokens
	default:
		a.giveBack(ask, g.Tokens)
		return
	}
	a.serveQueue(b.owner, now)
	if wanted && b.spent && !b.pooled() { // of pooled ones the refusals tell
		a.applyThrottle(b, now)
	}
	a.schedule(b, now)
}

// learnFromPool takes what only pools that every agent asks say.
func (a *Agent) learnFromPool(b *bucket, ask Ask, g Grant, now int64) {
	if ask.Burst > 0 {
		b.limit = g.Limit
	}
	if 100*g.Total >= selfHot*b.limit {
		b.hotUntil = max(b.hotUntil, now+int64(hotSpan))
	}
}

// Fail takes back an Ask that got no answer. Tokens that it may have been granted are
// never used. What it reported is sent again under the number of its batch, which the
// pool counts once, whether it has heard it, or hears it yet, or never does.
func (a *Agent) Fail(at time.Time, ask Ask) {
	// What it wanted is not sent again: by then something else may be needed.
	again := ask.reportOnly(ask.Debt, ask.Back)
	again.Seq, again.Instances = ask.Seq, ask.Instances
	a.unanswered = append(a.unanswered, again) // all of them and in their order: the pool knows batches
	b := a.findBucket(&ask.Key)
	if b == nil {
		return
	}
	a.advanceWindow(b, at.UnixNano())
	// The window has begun anew, and has asked for itself.
	if ask.WindowStart != b.start {
		return
	}
	if ask.Need+ask.Ahead > 0 {
		b.asking = false
	}
	if b.waiting > 0 {
		a.requestTokens(b)
	}
}

// reportOnly is an Ask of the same window that reports and wants nothing.
func (a Ask) reportOnly(debt, back int) Ask {
	return Ask{Key: a.Key, WindowStart: a.WindowStart, Limit: a.Limit, Burst: a.Burst, Reserve: a.Reserve, Debt: debt, Back: back}
}

// markSpent notes that the pool has nothing more for this window.
func (a *Agent) markSpent(b *bucket, now int64) {
	// Several answers may say so before a probe is due: the gap grows once for each probe.
	if b.probeGap == 0 || b.probeAt <= now {
		slowest := int64(slowestGap)
		if b.longWindow() {
			slowest = int64(longGap)
		}
		b.probeGap = min(max(2*b.probeGap, int64(firstProbe)), slowest)
		b.probeAt = now + b.probeGap
	}
	b.spent = true
	// A key that was used up is likely to be so in the next window.
	b.hotUntil = max(b.hotUntil, b.end()+int64(hotSpan))
}

// serveQueue decides what can be decided of a user's queue, in the order of arrival.
func (a *Agent) serveQueue(u *user, now int64) {
	if len(u.queue) == 0 {
		return
	}
	// In the order of arrival. One that cannot be decided does not hold up the others: they may need
	// other limits.
	a.dropWaiting(u, func(w *Waiting) bool {
		if w.decided {
			return true
		}
		for _, b := range w.buckets[:w.n] {
			a.advanceWindow(b, now)
		}
		v, decided := a.decide(w, now)
		if decided {
			a.finish(w, v)
			a.out.Decided = append(a.out.Decided, w)
		}
		return decided
	})
	for _, b := range u.buckets {
		if b.waiting > b.balance && !b.asking && !a.decidesAlone(b) {
			a.requestTokens(b)
		}
	}
}

// dropWaiting takes requests out of a user's queue.
func (a *Agent) dropWaiting(u *user, gone func(*Waiting) bool) {
	if u.queue = slices.DeleteFunc(u.queue, gone); len(u.queue) == 0 {
		delete(a.queues, u)
	}
}

func (a *Agent) finish(w *Waiting, v Verdict) {
	w.Verdict, w.decided = v, true
	for _, b := range w.buckets[:w.n] {
		b.waiting--
	}
}

// Timeout decides a request that has waited as long as it may. It is refused,
// with one exception: of a key that is far from its limit the agent admits up to its
// even part of the limit, and one request without a token at least, so that a stall
// does not refuse users who are far below their limits, nor whoever's limit is smaller
// than the number of agents. Of windows longer than a second that is a second's part of
// it, or one, until the pool has heard of them.
//
// So while the pool is silent, all agents together admit without tokens at most the
// limit, or one request each if that is more.
func (a *Agent) Timeout(at time.Time, w *Waiting) Verdict {
	if w.decided {
		return w.Verdict
	}
	now := at.UnixNano()
	for _, b := range w.buckets[:w.n] {
		a.advanceWindow(b, now)
	}
	var v Verdict
	if b, why := a.overdue(w, now); b != nil {
		v = a.refuse(b, why, now)
	} else {
		v = a.admitRequest(w, now)
	}
	a.finish(w, v)
	a.dropWaiting(w.owner, func(other *Waiting) bool { return other == w })
	return v
}

// Abandon takes back a request that waits and need not be decided any more, or gives
// back the tokens of one that has just been allowed and will not run.
func (a *Agent) Abandon(at time.Time, w *Waiting) {
	now := at.UnixNano()
	switch {
	case !w.decided:
		a.finish(w, Verdict{})
		a.dropWaiting(w.owner, func(other *Waiting) bool { return other == w })
	case w.Verdict.Allowed:
		for _, b := range w.buckets[:w.n] {
			a.restore(b, w.Verdict.Second, now)
		}
	}
}

// Cancel gives back the tokens of a request that Start has allowed in the verdict's
// second, against the same limits, and that will not run after all.
func (a *Agent) Cancel(at time.Time, name string, rates []limits.Rate, v Verdict) {
	u := a.users[name]
	if u == nil || !v.Allowed {
		return // it was admitted uncounted
	}
	for i := range rates {
		if b := u.findBucket(rates[i].Class, rates[i].Window); b != nil {
			a.restore(b, v.Second, at.UnixNano())
		}
	}
}

// restore undoes what spend did for a request of a second.
func (a *Agent) restore(b *bucket, sec, now int64) {
	a.advanceWindow(b, now)
	switch {
	case sec < b.start:
		// The window is over: what was spent is in its report.
		a.giveBack(b.emptyAsk(sec-sec%(b.length()/second)), 1)
		return
	case b.admitted == 0:
		return // it began anew meanwhile, as with a limit that has another pool
	case b.debt > 0: // not reported yet: then the pool need not hear of it
		b.debt--
		b.owed, b.unleased = max(0, b.owed-1), max(0, b.unleased-1)
	default:
		b.balance++ // the pool has counted it: it is as good as a token
	}
	// The window's count is of requests that run.
	b.admitted--
	if b.refusing && a.available(b) {
		a.liftRefusal(b)
	}
	a.serveQueue(b.owner, now)
	a.schedule(b, now)
}

// overdue is the bucket that refuses a request which has waited too long, and why, or nil.
// None is known to be spent, so it is the first one, which is over soonest.
func (a *Agent) overdue(w *Waiting, now int64) (*bucket, cause.Cause) {
	for _, b := range w.buckets[:w.n] {
		if a.available(b) {
			continue
		}
		switch {
		case a.entrusted(b):
			return b, cause.CreditUnknown
		case b.spent:
			return b, cause.Pool
		case !a.farFromLimit(b, now):
			return b, cause.RedisLate
		}
		// All agents together then admit the limit at most, or one request each if that is more.
		part := max(1, (b.rate.Max-b.portion.reserve)/a.serving(b, now))
		switch {
		case b.longWindow() && b.owed >= min(part, max(1, part/int(b.length()/second))):
			return b, cause.RedisLate
		case !b.longWindow() && b.admitted >= part && b.unleased > 0:
			return b, cause.RedisLate
		}
	}
	return nil, ""
}

// farFromLimit reports whether a key is far from its limit, as far as the agent knows. Of a limit
// below the number of agents, one request is so large a part that most who use it at
// all are near it: there it counts that something was left when the pool last answered.
func (a *Agent) farFromLimit(b *bucket, now int64) bool {
	return b.cool(now) || b.rate.Max < a.fleet.instances && b.total < b.limit
}

// serving is the number of agents that the even part is of: those that serve the key,
// while polygen's count of them is fresh, or else all there are.
func (a *Agent) serving(b *bucket, now int64) int {
	if b.hot(now) {
		return a.sharers(b)
	}
	return max(1, a.fleet.instances)
}

// giveBack reports tokens that nobody here will use.
func (a *Agent) giveBack(ask Ask, tokens int) {
	if tokens > 0 {
		a.report(ask.reportOnly(0, tokens))
	}
}

// report has an Ask without a bucket sent with the next flush, and one of an account
// before anything is asked: what is left of a second there is credit of the next.
func (a *Agent) report(ask Ask) {
	switch {
	// Bounded, because reports pile up while the pool is lost.
	case ask.Burst > 0 && len(a.accountReports) < maxReports:
		a.accountReports = append(a.accountReports, ask)
		a.flushNow()
	case ask.Burst > 0: // the account believes a little more or less of the past than was
	case len(a.reports) < maxReports || ask.Key.Window != limits.Second:
		a.reports = append(a.reports, ask)
	}
}

// findBucket returns a key's bucket, or nil. It takes a pointer because a copy of so
// large a struct, just written, costs an agent with many reports a tenth of its time.
func (a *Agent) findBucket(k *Key) *bucket {
	u := a.users[k.User]
	if u == nil {
		return nil
	}
	return u.findBucket(k.Class, k.Window)
}
