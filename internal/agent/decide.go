package agent

import (
	"time"

	"github.com/sluice-qos/sluice/pkg/cause"
	"github.com/sluice-qos/sluice/pkg/concurrency"
	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

// decide answers one question of a user with these limits. It returns at once unless the
// agent is out of what the cluster may still have, and then after the wait at most; in
// line, after the user's.
//
// A request needs a slot, a token of each limit, and room for what it may cost: all of them or none. Limits in a
// dry run are asked last.
func (l *limiter) decide(set *limits.Set, q question, of *limits.Limits) verdict {
	// Arrays of this function's frame: to allocate them for each request would cost more than the verdict.
	var room [2 * limits.MaxRates]limits.Rate
	var rates, dry rates
	rates[own], dry[own] = splitRates(of.AppendRates(room[:0:limits.MaxRates], q.verb, q.op), room[limits.MaxRates:])
	// Operators asked for it (on_redis_loss: open), or Redis has been lost for longer than they let hold. A limit of 0 needs no Redis.
	if _, denied := ratelimit.Denied(rates[own]); !denied && l.shardOf(q.user).reach.open.Load() {
		return verdict{allowed: true, priority: of.Priority}
	}
	possible := l.inForce.possible(q.user, of)
	// HAProxy drew the tickets: tokens of the agent would count the request twice.
	if possible && q.credit.drawn {
		rates[own] = nil
	}
	n := needs{question: q}
	n.costs = l.costsOf(set, q, of)
	behind := q.later == costBehind && n.costs != nil
	if behind {
		n.costs = nil
	}
	left := rates
	// The first question took the others.
	if q.later == costOnly {
		rates[own], dry[own] = nil, nil
	}
	n.tokens[own].key = q.user
	n.tokens[own].credit = q.credit.status(possible)
	if refused, by := l.enforce(&n, of, &rates); by {
		// Credit of the limits before would serve while no agent answers.
		if refused.cause == cause.LimitZero && q.credit.places.Lent {
			l.update(func(now time.Time) { l.withdraw(now, q.user, now.Unix()) })
		}
		return refused
	}
	// From here on the request is allowed: what a dry run says of it changes nothing.
	rehearsed := l.dryRun(&n, of, &dry)
	v := verdict{allowed: true, uncounted: of.Concurrent > 0 && !of.CountsInProgress(q.verb, q.op), priority: of.Priority, share: l.shareOf(q.user, of), behind: behind}
	if q.log {
		v.left = l.quotaLeftOf(&n, of, &left, rehearsed)
	}
	v.charged = n.costs
	// Who can have none is not to wait for the lock once more.
	if possible {
		l.update(func(now time.Time) { v.credit = l.grantCredit(now, q, of) })
	}
	return v
}

// needs are what a request needs to run: a slot, if they are limited, and the tokens of
// each key that it counts for. All of them or none are taken.
type needs struct {
	question

	slots     int                 // the limit of requests in progress; 0: no slot is needed
	patient   bool                // it may wait in line for one
	slot      concurrency.Verdict // allowed if none is needed; not valid while it waits
	slotWaits *concurrency.Waiting
	slotDone  <-chan struct{} // closed when it waits no longer; nil: it does not wait

	tokens [keys]tokens
	costs  *costs // nil: what it costs is not limited
}

// The keys that a request counts for, in the order in which they are asked.
const (
	own  = iota // the user's
	keys        // how many there are
)

// rates are the limits of each key. They are no part of needs: then they would be
// allocated for each request.
type rates [keys][]limits.Rate

// tokens are one of each limit of a key, all of them or none.
type tokens struct {
	key    string
	credit ratelimit.Credit

	verdict ratelimit.Verdict // the zero one if nobody was asked; not valid while it waits
	waits   *ratelimit.Waiting
	done    <-chan struct{} // closed when it waits no longer; nil: it does not wait
}

// enforce takes what the request needs, or reports how it is refused.
func (l *limiter) enforce(n *needs, of *limits.Limits, rates *rates) (refused verdict, by bool) {
	n.slot.Allowed = true
	// A request that a limit of 0 refuses does not wait for a place.
	_, denied := ratelimit.Denied(rates[own])
	counted := of.CountsInProgress(n.verb, n.op) && of.ConcurrentMode == limits.Enforce && n.later != costOnly && !denied
	switch {
	case counted && n.inLine:
		// It waits in line for longer than a second may last: tokens taken before would be
		// of another second. A slot that is no use without them goes back.
		if n.slot = l.slotInLine(n.question, of); n.slot.Allowed && !l.takeAll(n, rates) {
			l.update(func(now time.Time) { l.coresOf(n.user).slots.Cancel(now, n.user, n.seen.Process) })
		}
	case counted:
		n.slots, n.patient = of.Concurrent, of.Wait > 0
		l.takeAll(n, rates)
	default:
		l.takeAll(n, rates)
	}
	if !n.slot.Allowed {
		v := verdict{cause: n.slot.Cause, limit: n.slot.Limit}
		// Who has waited is not sent to wait again: the wait is a bound, of all questions about a request together.
		if !n.inLine {
			v.wait = of.Wait
		}
		return v, true
	}
	if i := n.refusedTokens(); i >= 0 {
		v := n.tokens[i].verdict
		return verdict{cause: v.Cause, rate: v.Limit, retry: time.Unix(v.End(), 0).Sub(l.clock.Now()), window: v.End() - v.Second}, true
	}
	if i := n.refusedCosts(); i >= 0 {
		v := n.costs.of[i].verdict
		return verdict{cause: v.Cause, cost: v.Limit, retry: time.Unix(v.End(), 0).Sub(l.clock.Now()), window: v.End() - v.Second}, true
	}
	return verdict{}, false
}

// refusedTokens is the first of the keys whose tokens are refused, or -1.
func (n *needs) refusedTokens() int {
	for i := range n.tokens {
		if t := &n.tokens[i]; t.waits == nil && !t.verdict.Allowed {
			return i
		}
	}
	return -1
}

// refused reports whether the request need not wait for anything more.
func (n *needs) refused() bool {
	return n.slotWaits == nil && !n.slot.Allowed || n.refusedTokens() >= 0 || n.refusedCosts() >= 0
}

// takeAll takes all that the request needs, or nothing, and reports which. All pools are
// asked at the same time, and the question has one deadline: several waits, one after
// the other, would be longer than HAProxy waits, which then lets the request pass.
func (l *limiter) takeAll(n *needs, rates *rates) bool {
	// Most users have no limit, or HAProxy has drawn what they need: they need no lock either.
	if n.slots == 0 && len(rates[own]) == 0 && n.costs == nil {
		n.tokens[own].verdict.Allowed = true
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.carryOut()
	if l.askCores(n, rates); !n.refused() && l.beginWaits(n) {
		// Looked up while no lane can have heard of the ask: the answer, which may change it, must not
		// shorten the wait of whoever asked, at the mercy of who runs first.
		longest := l.waitFor(n.user)
		// The lanes must hear of the ask before the wait for its answer begins.
		l.carryOut()
		l.mu.Unlock()
		l.awaitAll(n, longest)
		l.mu.Lock()
		l.collect(n)
	}
	return l.allOrNone(n, rates)
}

// askCores asks for each thing that the request needs, until one is refused; l.mu is held.
func (l *limiter) askCores(n *needs, rates *rates) {
	now := l.clock.Now()
	// The slot comes first: if it is refused, no token was taken that would have to go back.
	if n.slots > 0 {
		s := l.coresOf(n.user).slots
		n.slot, n.slotWaits = s.Start(now, n.user, n.slots, n.seen, n.credit.places)
		if n.patient {
			s.Patient(now, n.user)
		}
		if n.slotWaits == nil && !n.slot.Allowed {
			return
		}
	}
	for i := range n.tokens {
		t := &n.tokens[i]
		t.credit = l.believedCredit(now, n, t)
		t.verdict, t.waits = l.coresOf(t.key).tokens.Start(now, t.key, rates[i], t.credit)
		if t.waits == nil && !t.verdict.Allowed {
			return
		}
	}
	// The charge comes last: what is refused by what HAProxy or this agent knows is not to go to Redis and back.
	l.askCosts(now, n)
}

// believedCredit is what the core may believe of a key's credit: HAProxy tells what it has,
// and not what it is about to have, or to lose; l.mu is held.
func (l *limiter) believedCredit(now time.Time, n *needs, t *tokens) ratelimit.Credit {
	switch w := l.credits.withdrawals[t.key]; {
	// It is being taken back, and nobody knows yet what was spent of it.
	case t.credit == ratelimit.Withheld && w != nil && w.told == 0:
		return ratelimit.Uncertain
	case t.credit == ratelimit.Uncertain && l.creditIsOver(now, n, t.key):
		// As if it was withdrawn before this second. New credit begins with the next one.
		for r := range l.inForce.limitsOf(t.key).Rates() {
			l.coresOf(t.key).tokens.Recalled(now, t.key, r, now.Unix(), 0, now.Unix())
		}
		return ratelimit.Withheld
	}
	return t.credit
}

// creditIsOver reports whether a user's credit is of an older generation, by which this second was not opened and no second will
// be; l.mu is held.
func (l *limiter) creditIsOver(now time.Time, n *needs, user string) bool {
	// The question may be older than an answer that has just brought credit of this generation.
	if at, just := l.credits.granted.get(user); just && now.Sub(at) < grantAgain {
		return false
	}
	// HAProxy may yet be taught a generation between the one in its question and this agent's, and open the second by credit of that
	// one. A late thread's question is of another second than the cluster's.
	return n.credit.lapsed == l.credits.generation && now.Unix() == l.clusterSecond(time.Unix(n.credit.second, 0))
}

// allOrNone decides what is not decided yet, which waits no longer. If anything is
// refused it gives back what was taken in vain. It reports whether all was taken; l.mu
// is held.
func (l *limiter) allOrNone(n *needs, rates *rates) bool {
	now := l.clock.Now()
	// The time is over for all of them at once. The first that is refused then decides: what would
	// follow it is only given back.
	if n.slotWaits != nil && !n.refused() {
		n.slot, n.slotWaits = l.coresOf(n.user).slots.Timeout(now, n.slotWaits), nil
	}
	for i := range n.tokens {
		if t := &n.tokens[i]; t.waits != nil && !n.refused() {
			t.verdict, t.waits = l.coresOf(t.key).tokens.Timeout(now, t.waits), nil
		}
	}
	l.timeoutCosts(now, n)
	if !n.refused() {
		l.noteCharged(now, n)
		return true
	}
	l.returnCosts(now, n)
	// Nothing of it is used: with the others it can still admit another request.
	for i := range n.tokens {
		if t := &n.tokens[i]; t.waits != nil {
			l.coresOf(t.key).tokens.Abandon(now, t.waits)
		} else {
			l.coresOf(t.key).tokens.Cancel(now, t.key, rates[i], t.verdict)
		}
	}
	switch {
	case n.slotWaits != nil:
		l.coresOf(n.user).slots.Abandon(now, n.slotWaits)
		// Not the slot refuses the request but a token: enforce looks at this to name the cause.
		n.slot.Allowed = true
	case n.slots > 0 && n.slot.Allowed:
		l.coresOf(n.user).slots.Cancel(now, n.user, n.seen.Process)
	}
	return false
}
