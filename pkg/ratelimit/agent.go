package ratelimit

import (
	"time"

	"github.com/sluice-qos/sluice/pkg/cause"
	"github.com/sluice-qos/sluice/pkg/internal/agenda"
	"github.com/sluice-qos/sluice/pkg/limits"
)

// Config is what an Agent needs to know once.
type Config struct {
	// MaxUsers bounds the users that are known at a time; a user is forgotten
	// 3 s after their last request, whatever the windows of their limits, but not while
	// the pool is lost and still has to hear what they did in a longer one. Requests of
	// users beyond the bound are admitted uncounted (Agent.Overflowed counts them).
	// 0 means 500 000: about 290 MB if each has one limit, and 190 MB more for each
	// further one.
	MaxUsers int
}

// Verdict is the answer to one request.
type Verdict struct {
	Allowed bool
	Limit   limits.Rate // the limit that refused it; zero if allowed
	Cause   cause.Cause // who found that nothing of it is left; "" if allowed
	Second  int64       // the cluster second it was decided in, or at which the refusing limit's window began
}

// End is the second at which the refusing limit's window is over.
func (v Verdict) End() int64 { return v.Second + v.Limit.Window.Seconds() }

// Waiting is a request whose agent is out of tokens. It is decided by a later
// call of the agent's methods, which return it in Output.Decided, or by Timeout.
type Waiting struct {
	Verdict Verdict // valid once the request is decided

	owner   *user
	buckets [limits.MaxRates]*bucket
	n       int
	credit  Credit // that HAProxy said it had
	decided bool
}

// TableEntry is an instruction for HAProxy's own table: refuse the key until its
// window ends, or, with Lift, no longer. See RefuseFor for longer windows than a
// second. There is none for limits that are not enforced.
type TableEntry struct {
	Key         Key
	WindowStart int64 // at which the window began
	Limit       int
	Lift        bool
}

// End is the second at which the window is over.
func (n TableEntry) End() int64 { return n.WindowStart + n.Key.Window.Seconds() }

// Output is what became due during the calls since the last one.
type Output struct {
	Decided      []*Waiting // requests that need not wait any longer
	TableEntries []TableEntry

	// Withdraw names users whose credit is to be withdrawn from HAProxy, for a request
	// waits to know what was spent of it; Recalled is the answer. A name may come again.
	Withdraw []string

	Urgent bool // Collect has something that should not wait for the next flush
	Sooner bool // Tick or Collect has something to do sooner than IdleFor last said
}

// Agent decides the requests of one instance. It is not safe for concurrent use.
type Agent struct {
	maxUsers       int
	users          map[string]*user
	queues         map[*user]struct{} // users whose requests wait
	agenda         agenda.Agenda[*bucket]
	tokenRequests  []*bucket // an ask for tokens is due
	toReport       []*bucket // something is to be reported with the next flush
	reports        []Ask     // reports for windows gone by, and asks for the next one
	accountReports []Ask     // reports that go before asks
	flushUrgent    bool      // the reports are not to wait for the next flush
	unanswered     []Ask     // a batch that got no answer, without what it wanted
	seq            uint64    // of the last batch
	idle           agenda.IdleTime
	out            Output

	fleet    fleet
	reloaded int64 // the last second in which HAProxy was reloaded
	// When HAProxy was last told to renew no credit that was given until then, ns.
	generationAt int64
	byDefault    spell // in which HAProxy may have credit without Lend
	leaving      bool  // Leave has been called
	lead         int64 // how early the next window is asked for, ns
	lost         bool  // the pool cannot be asked
	lostAt       int64 // when it was lost, ns
	apartThrough int64 // the last second of a loss that is over: others may not have reported it yet
	overflow     uint64
	created      uint64 // buckets, ever
}

// NewAgent returns an agent that knows of no other: it is alone until Cluster
// says otherwise.
func NewAgent(c Config) *Agent {
	if c.MaxUsers <= 0 {
		c.MaxUsers = 500_000
	}
	return &Agent{maxUsers: c.MaxUsers, users: make(map[string]*user), queues: make(map[*user]struct{}), fleet: fleet{instances: 1}, lead: int64(nextLead)}
}

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
		a.observeCredit(b, credit, now)
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

// decide admits the request if every limit has a token for it, and refuses it
// if one is spent.
func (a *Agent) decide(w *Waiting, now int64) (Verdict, bool) {
	missing, entrusted := false, false
	var refusing *bucket // of several, the one that stays in force longest: the client retries after it
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
	case a.decidesAlone(b): // first: who is alone has the whole limit, with Redis or without
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
		v.Second = max(v.Second, b.start) // the clock may run back a little
	}
	return v
}

// enqueue puts the request into its user's queue, unless more requests wait there
// already than the limit could still admit.
func (a *Agent) enqueue(on *Waiting, now int64) (Verdict, *Waiting) {
	w := *on // only a request that waits costs an allocation
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

// available reports whether the bucket can admit a request now.
func (a *Agent) available(b *bucket) bool {
	switch {
	case a.entrusted(b):
		return false
	case b.balance > 0 && (b.unleased == 0 || b.longWindow() || !a.cutOff(b)):
		return true // whoever counts a second alone must not lease on top of it
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
			a.requestTokens(b) // the pool may only be slow
		}
		if b.admitted == b.limit {
			a.flushNow() // the cluster should know at once
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
			a.refuseInHAProxy(b, now) // it got through, so HAProxy has forgotten
		}
	}
	return Verdict{Limit: b.rate, Cause: why, Second: b.start}
}

// decidesAlone reports whether nobody else can have admitted requests of the bucket's
// window, and nobody needs to remember them but this agent. It may restart within
// a minute, or forget the user, and what a burst has left must be kept for longer
// than they are remembered: such keys are leased from the pool by agents that are
// alone as well.
func (a *Agent) decidesAlone(b *bucket) bool {
	return a.fleet.instances <= 1 && b.start > a.fleet.shared && !b.pooled()
}

// cutOff reports whether the pool cannot be asked for the bucket's window, or
// could not for a part of its second. In a longer window it can be asked again as
// soon as it is back: what was admitted meanwhile is reported to it.
func (a *Agent) cutOff(b *bucket) bool { return a.lost || b.start <= a.apartThrough && !b.longWindow() }

// partWithoutPool is what this agent may admit of a key by itself while the pool is lost: the
// limit, or of a window longer than a second what was left of it when the pool was
// last heard of, if it was since the user was last forgotten; or its even part of
// that if the key was hot when the pool was lost, or has been refused here since. What
// HAProxy admits by itself counts against it.
func (a *Agent) partWithoutPool(b *bucket) int {
	all := b.rate.Max
	if b.longWindow() {
		all = max(0, all-b.total)
	}
	n := a.sharers(b)
	// A cool key was far from its limit on all agents together: dividing it would refuse users for
	// the loss of Redis. The bound that this gives up is in DESIGN.md.
	if n < 2 || b.hotUntil < a.lostAt {
		return max(0, all-a.admittedByHAProxy(b))
	}
	// From here on others are taken to use the key too, so the parts must add up to the limit.
	part := all / n
	if a.fleet.rank%n < all%n {
		part++ // the odd ones go to the first
	}
	return max(0, part-a.admittedByHAProxy(b))
}

// admittedWithoutPool is what this agent has admitted that counts against its part.
func (a *Agent) admittedWithoutPool(b *bucket) int {
	if b.longWindow() {
		return b.owed
	}
	return b.admitted
}

// sharers is the number of agents that serve the key: as polygen counted them,
// or else all there are.
func (a *Agent) sharers(b *bucket) int {
	if b.sharers > 0 {
		return b.sharers
	}
	return a.fleet.instances
}

// requestTokens asks for tokens without delay.
func (a *Agent) requestTokens(b *bucket) {
	a.out.Urgent = true
	if !b.listedToAsk {
		b.listedToAsk = true
		a.tokenRequests = append(a.tokenRequests, b)
	}
}

// reportAtFlush notes that the bucket has something to report with the next flush.
func (a *Agent) reportAtFlush(b *bucket) {
	if !b.listedToReport {
		b.listedToReport = true
		a.toReport = append(a.toReport, b)
	}
}

// flushNow has the reports sent without waiting for the next flush.
func (a *Agent) flushNow() {
	a.out.Urgent = true
	a.flushUrgent = true
}

// throttleNow takes the word for it that there is no more: HAProxy refuses the key by
// itself until the window ends, or a probe finds tokens again.
func (a *Agent) throttleNow(b *bucket, now int64) {
	if !a.decidesAlone(b) {
		a.markSpent(b, now)
	}
	// Of a dry run HAProxy must hear nothing: its table has no word for requests to be let through.
	if b.rate.Mode == limits.Enforce {
		a.refuseInHAProxy(b, now)
	}
}

// refuseInHAProxy has HAProxy refuse requests of the key.
func (a *Agent) refuseInHAProxy(b *bucket, now int64) {
	b.refusing, b.refusingAt = true, now
	a.out.TableEntries = append(a.out.TableEntries, TableEntry{Key: b.key, WindowStart: b.start, Limit: b.rate.Max})
}

// liftRefusal lets requests of the key through to the agent again.
func (a *Agent) liftRefusal(b *bucket) {
	b.refusing = false
	a.out.TableEntries = append(a.out.TableEntries, TableEntry{Key: b.key, WindowStart: b.start, Limit: b.rate.Max, Lift: true})
}

// findOrAddUser returns what is known of a user, or nil when there are too many.
func (a *Agent) findOrAddUser(name string) *user {
	u := a.users[name]
	if u == nil && len(a.users) < a.maxUsers {
		u = &user{name: name}
		a.users[name] = u
	}
	return u
}

// findOrAddBucket returns the user's bucket for a limit, in the current window.
func (a *Agent) findOrAddBucket(u *user, r *limits.Rate, now int64) *bucket {
	b := u.findBucket(r.Class, r.Window)
	if b == nil {
		a.created++
		b = &bucket{key: Key{Class: r.Class, User: u.name, Window: r.Window}, owner: u}
		b.rate.Window = r.Window
		b.start = windowStart(now, r.Window)
		// Asks for the next window are spread, so that not all keys ask at once.
		b.early = int64(a.created%askSteps) * int64(agenda.Tick)
		u.buckets = append(u.buckets, b)
	}
	// Each request brings the limit in force, so a reload of the limit file needs no walk through all users.
	if b.rate != *r {
		a.setLimit(b, r)
	}
	a.advanceWindow(b, now)
	return b
}

// setLimit takes a bucket's limit, which may have changed.
func (a *Agent) setLimit(b *bucket, r *limits.Rate) {
	// A burst has an Account, and tokens of one pool must not be given back to the other.
	if (b.rate.Burst > 0) != (r.Burst > 0) && b.rate.Max > 0 {
		a.closeWindow(b) // another pool has it from now on
		b.clearWindow()
	}
	if r.Max > b.rate.Max {
		b.spent = false // there is more
	}
	b.rate = *r
	b.limit = r.Max + r.Burst
}

// TakeOutput returns what has become due and forgets it. The slices are the
// caller's.
func (a *Agent) TakeOutput() Output {
	out := a.out
	out.Sooner = a.idle.Shortened(a.workDue())
	a.out = Output{}
	return out
}

// KnownUsers is the number of users known.
func (a *Agent) KnownUsers() int { return len(a.users) }

// Overflowed counts the requests that were admitted uncounted because too many
// users were known.
func (a *Agent) Overflowed() uint64 { return a.overflow }
