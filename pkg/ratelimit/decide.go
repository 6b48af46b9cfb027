package ratelimit

import (
	"time"

	"github.com/sluice-qos/sluice/pkg/cause"
	"github.com/sluice-qos/sluice/pkg/limits"
)

// Start decides a request that counts against the given limits (at most
// limits.MaxRates, each of another class or window; none means it is not limited).
// It takes a token of each limit or of none. When a token is missing that the pool
// may still have, the request waits: the Waiting is not nil and the verdict is not
// valid yet. Of several limits that refuse it, the verdict names the one that stays
// in force longest.
//
// The credit is what HAProxy has admitted or may admit by itself of these limits. It is
// the same for all of them.
func (a *Agent) Start(at time.Time, name string, rates []limits.Rate, credit Credit) (Verdict, *Waiting) {
	now := at.UnixNano()
	// A user without limits costs nothing: they are not known, so that MaxUsers bounds limited users alone.
	if len(rates) == 0 {
		return Verdict{Allowed: true, Second: now / second}, nil
	}
	if r, denied := Denied(rates); denied {
		if r.Mode == limits.Enforce {
			a.out.TableEntries = append(a.out.TableEntries, TableEntry{Key: Key{Class: r.Class, User: name, Window: r.Window}, End: now/second + limits.Month.Seconds()})
		}
		return Verdict{Limit: r, Cause: cause.LimitZero, Second: now / second}, nil
	}
	u := a.findOrAddUser(name)
	if u == nil {
		// Fail open: a bound on memory must not refuse anybody.
		a.overflow++
		return Verdict{Allowed: true, Second: now / second}, nil
	}
	w := Waiting{owner: u, n: min(len(rates), limits.MaxRates), credit: credit}
	for i := range w.n {
		b := a.findOrAddBucket(u, &rates[i], now)
		// Before anything is decided: whether HAProxy or the agent has the portion depends on it.
		a.observeCredit(b, credit)
		// Of a longer window only what its limit let pass counts, see below.
		if !b.longWindow() {
			b.arrivals.record(now)
		}
		w.buckets[i] = b
	}
	v, decided := a.decide(&w, now)
	var waiting *Waiting
	if !decided {
		v, waiting = a.enqueue(&w, now)
	}
	for _, b := range w.buckets[:w.n] {
		// What a second's limit refuses must not make a minute's lease large.
		if b.longWindow() && (v.Allowed || waiting != nil || v.Limit == b.rate) {
			b.arrivals.record(now)
		}
		a.schedule(b, now)
	}
	return v, waiting
}

// Denied is the first of some limits that is 0. It refuses every request, so that nothing is counted and no pool is asked.
func Denied(rates []limits.Rate) (by limits.Rate, any bool) {
	for i := range rates {
		if rates[i].Max == 0 {
			return rates[i], true
		}
	}
	return limits.Rate{}, false
}

// decide admits the request if every limit has a token for it, and refuses it
// if one is spent.
func (a *Agent) decide(w *Waiting, now int64) (Verdict, bool) {
	missing, entrusted := false, false
	// Of several, the one that stays in force longest: the client retries after it.
	var refusing *bucket
	for _, b := range w.buckets[:w.n] {
		// Tokens that are to go back with the next flush are still this agent's.
		if b.balance == 0 {
			b.reclaim()
		}
		switch {
		case a.asksLate(b, w.credit, now):
			// The bucket is of the new second already; what the agent may still admit of the old one was
			// kept by advanceWindow.
			if b.portion.before <= 0 {
				refusing = longer(refusing, b)
			}
		case a.entrusted(b):
			// Not yet refused, nor admitted: HAProxy alone knows what is left. Another limit may still refuse.
			entrusted = true
		case a.available(b):
		case b.spent || a.decidesAlone(b) || a.cutOff(b):
			refusing = longer(refusing, b)
		default:
			missing = true
		}
	}
	// First: who is refused by one limit takes no token of another, and causes no withdrawal.
	if refusing != nil {
		return a.refuse(refusing, a.whoCounts(refusing), now), true
	}
	if entrusted {
		// HAProxy has just said that the whole limit is used up; there is nothing to withdraw.
		if w.credit == Spent {
			return a.refuseSpent(w, now), true
		}
		a.askWithdrawal(w.owner, now)
	}
	if missing || entrusted {
		return Verdict{}, false
	}
	return a.admitRequest(w, now), true
}

// whoCounts is the cause of a refusal by what is known of a bucket without waiting.
func (a *Agent) whoCounts(b *bucket) cause.Cause {
	switch {
	// First, for who is alone has the whole limit, with Redis or without.
	case a.decidesAlone(b):
		return cause.OwnCount
	case a.cutOff(b):
		return cause.RedisLost
	}
	return cause.Pool
}

// longer is the one of two buckets, the first of which may be nil, whose window
// ends later.
func longer(a, b *bucket) *bucket {
	if a == nil || b.end() > a.end() {
		return b
	}
	return a
}

func (a *Agent) admitRequest(w *Waiting, now int64) Verdict {
	v := Verdict{Allowed: true, Second: now / second}
	for _, b := range w.buckets[:w.n] {
		if a.asksLate(b, w.credit, now) {
			// Of the second before: the new second has all its tokens still.
			b.portion.before--
			v.Second = b.start - 1
			continue
		}
		a.spendToken(b, now)
		// The clock may run back a little.
		v.Second = max(v.Second, b.start)
	}
	return v
}

func (a *Agent) available(b *bucket) bool {
	switch {
	case a.entrusted(b):
		return false
	case b.balance > 0 && (b.unleased == 0 || b.longWindow() || !a.cutOff(b)):
		// Whoever counts a second alone must not lease on top of it.
		return true
	case a.cutOff(b):
		return !b.spent && a.admittedWithoutPool(b) < a.partWithoutPool(b)
	case a.decidesAlone(b):
		// Nobody else admits requests of this window, so the count here is the whole truth.
		return b.admitted < b.limit
	}
	return false
}

// spendToken takes one token of an available bucket, or goes into debt where the
// agent counts by itself.
func (a *Agent) spendToken(b *bucket, now int64) {
	b.admitted++
	if b.balance > 0 {
		b.balance--
		// Half of a lease is left for the round trip of the ask. A spent key is probed instead.
		if !b.spent && !b.asking && 2*b.balance < b.target(now, a.fleet.instances) {
			a.requestTokens(b)
		}
	} else {
		// Admitted without a token: the pool has to hear of it, or others would admit as much again.
		b.unleased++
		b.owed++
		b.debt++
		a.reportAtFlush(b)
		if a.cutOff(b) && !b.spent && !b.asking && !a.decidesAlone(b) {
			// The pool may only be slow, and then it should know of what was admitted.
			a.requestTokens(b)
		}
		if b.admitted == b.limit {
			// The cluster should know at once that nothing is left.
			a.flushNow()
		}
	}
	// Polygen said before that the window is spent, and this was the last token here.
	if b.throttle && !b.refusing && !a.available(b) {
		a.throttleNow(b, now)
	}
}

func (a *Agent) refuse(b *bucket, why cause.Cause, now int64) Verdict {
	b.unmet++
	if a.cutOff(b) {
		// Others may admit as much. From its first refusal on, the key is divided; see partWithoutPool.
		b.hotUntil = max(b.hotUntil, now)
	}
	// A key that is not pooled waits for polygen's word; a pooled one has the pool's own.
	if b.pooled() && b.throttle {
		switch {
		case !b.refusing:
			a.throttleNow(b, now)
		case b.longWindow() && now-b.refusingAt >= int64(refuseAgain):
			// It got through, so HAProxy has forgotten the refusal.
			a.refuseInHAProxy(b, now)
		}
	}
	return Verdict{Limit: b.rate, Cause: why, Second: b.start}
}
