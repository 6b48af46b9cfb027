package ratelimit

import (
	"slices"
	"time"

	"github.com/sluice-qos/sluice/pkg/cause"
	"github.com/sluice-qos/sluice/pkg/limits"
)

// Waiting is a request whose agent is out of tokens. It is decided by a later
// call of the agent's methods, which return it in Output.Decided, or by Timeout.
type Waiting struct {
	Verdict Verdict // valid once the request is decided

	owner   *user
	buckets [limits.MaxRates]*bucket
	n       int
	credit  Credit // that HAProxy said it had
	heard   uint64 // Agent.heard when it began to wait
	decided bool
}

// enqueue puts the request into its user's queue, unless more requests wait there
// already than the limit could still admit.
func (a *Agent) enqueue(on *Waiting, now int64) (Verdict, *Waiting) {
	// Only a request that waits costs an allocation.
	w := *on
	w.heard = a.heard
	for _, b := range w.buckets[:w.n] {
		// More than the limit could still admit would wait for a refusal, and hold memory meanwhile.
		if !a.available(b) && b.waiting >= b.limit-b.handedOut() {
			return a.refuse(b, cause.QueueFull, now), nil
		}
	}
	for _, b := range w.buckets[:w.n] {
		b.waiting++
		// Alone a request waits for HAProxy only, and no pool is asked.
		if b.balance < b.waiting && !a.decidesAlone(b) {
			a.requestTokens(b)
		}
	}
	w.owner.queue = append(w.owner.queue, &w)
	a.queues[w.owner] = struct{}{}
	return Verdict{}, &w
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

// Timeout decides a request that has waited as long as it may. It is refused, with one
// exception: if the pool has answered nothing meanwhile, of whatever key, and the key is
// far from its limit, the agent admits up to its even part of the limit, and one request
// without a token at least, so that a stall does not refuse users who are far below their
// limits, nor whoever's limit is smaller than the number of agents. Of windows longer than
// a second that is a second's part of it, or one, until the pool has heard of them.
//
// So while the pool is silent, all agents together admit without tokens at most the
// limit, or one request each if that is more. A pool that answers is not silent, however
// late: one that takes more than half of the time that a request may wait would else be
// passed by with each ask that has to wait for the one before it, by all agents, for good.
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

// HeardSince reports whether the pool has answered anything since a request began to wait.
func (a *Agent) HeardSince(w *Waiting) bool { return a.heard != w.heard }

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
		case a.HeardSince(w) || !a.farFromLimit(b, now):
			return b, cause.RedisLate
		}
		// All agents together then admit the limit at most, or one request each if that is more.
		part := max(1, (b.rate.Max-b.portion.reserve)/a.serving(b, now))
		switch {
		case b.longWindow() && b.owed >= min(part, max(1, part/int(b.rate.Window.Seconds()))):
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
		// It was admitted uncounted.
		return
	}
	for i := range rates {
		if b := u.findBucket(rates[i].Class, rates[i].Window); b != nil {
			a.restore(b, v.Second, at.UnixNano())
		}
	}
}

func (a *Agent) restore(b *bucket, sec, now int64) {
	a.advanceWindow(b, now)
	switch {
	case sec < b.start:
		// The window is over: what was spent is in its report.
		begin, _ := b.rate.Bounds(sec)
		a.giveBack(a.emptyAsk(b, begin), 1)
		return
	case b.admitted == 0:
		// It began anew meanwhile, as with a limit that has another pool.
		return
	// It is not reported yet, so the pool need not hear of it.
	case b.debt > 0:
		b.debt--
		b.owed, b.unleased = max(0, b.owed-1), max(0, b.unleased-1)
	default:
		// The pool has counted it, so it is as good as a token.
		b.balance++
	}
	// The window's count is of requests that run.
	b.admitted--
	if b.refusing && a.available(b) {
		a.liftRefusal(b)
	}
	a.serveQueue(b.owner, now)
	a.schedule(b, now)
}
