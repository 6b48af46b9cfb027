package ratelimit

import (
	"math"
	"time"

	"github.com/sluice-qos/sluice/pkg/cause"
	"github.com/sluice-qos/sluice/pkg/limits"
)

// Credit is what HAProxy said, with a question, about the requests that it may admit
// by itself: of the user's limits that the question is about, in the second of it.
type Credit uint8

const (
	// NoCredit: the user cannot have credit at all, because of what their limits are. All
	// agents must agree on it, for nothing is reserved in the pool for such users.
	NoCredit Credit = iota

	// Withheld: they could have credit, but HAProxy's newest process has none in force, and
	// gets none but by Lend.
	Withheld

	// Spent: HAProxy has credit in this second, and its tickets did not suffice.
	Spent

	// Uncertain: HAProxy has credit in this second, or may have, and asks for another
	// reason than that its tickets did not suffice. So there may be tickets left.
	Uncertain

	// Pending: HAProxy has no credit in force, but may begin to have some at any time,
	// without Lend: what denies it to the user may be forgotten.
	Pending

	// Lapsed: HAProxy has credit of another generation, which was over before this second and is
	// not renewed.
	Lapsed
)

// portionPhase says who may use this instance's portion of a limit: HAProxy by itself,
// or the agent. Agent.observeCredit, Lend and Recalled are all that change it, and advanceWindow when a
// recall is over.
type portionPhase uint8

const (
	portionNone     portionPhase = iota // there is none: the user cannot have credit
	portionWithheld                     // HAProxy has no credit until Lend
	portionLent                         // HAProxy has it from a second on, or may have
	portionRecalled                     // HAProxy has none through a second, whatever asks here
)

// portion is this instance's part of a limit of which the pool has reserved every
// instance's. In each second it is HAProxy's or the agent's, never both's: the agent
// takes what HAProxy does not have as tokens, once for each second, and gives back to
// the pool those that it does not need.
type portion struct {
	phase   portionPhase
	from    int64 // portionLent: the first second in which HAProxy may have it
	through int64 // portionRecalled: the last second in which HAProxy has none for certain
	again   int64 // the last second in which it was given although HAProxy may have had it: what is spent then is not known
	denied  int64 // the last second in which HAProxy said that it has none
	until   int64 // the last second of credit that HAProxy has lost, or may have had, before it was withheld
	lentAt  int64 // when an answer last brought it, ns

	each    int // tickets: this instance's portion in the bucket's second
	reserve int // all instances' portions

	// The last second whose portion the agent has taken, given back, or found out to be
	// lost. It is taken at most once: settled only grows, but for a clock set back.
	settled int64
	counted int // tickets that HAProxy had drawn in the settled second

	before int // what the agent could still admit of the second before the bucket's
}

// agentHas reports whether the agent, and not HAProxy, has the portion of a second.
func (a *Agent) agentHas(p *portion, sec int64) bool {
	return p.phase != portionNone && !a.haproxyHas(p, sec)
}

// haproxyHas reports whether HAProxy has the portion of a second, or may have.
func (a *Agent) haproxyHas(p *portion, sec int64) bool {
	switch p.phase {
	case portionNone:
		return false
	case portionLent:
		return sec >= p.from || sec <= p.until
	case portionWithheld:
		return sec <= p.until || sec > p.denied && a.mayHave(sec)
	}
	return sec <= p.until || sec > p.through && a.mayHave(sec)
}

// mayHave reports whether HAProxy may have credit in a second for whoever it has not said
// otherwise of.
func (a *Agent) mayHave(sec int64) bool {
	return a.byDefault.from > 0 && sec >= a.byDefault.from && sec <= a.byDefault.through
}

// spell is some seconds. The zero spell is none.
type spell struct{ from, through int64 }

// forgetAt is when the portion may be forgotten, ns: not while it is recalled, for it is
// given back in each second then, nor in a second in which it was taken, for it would be
// taken again.
func (p *portion) forgetAt() int64 {
	last := p.settled
	if p.phase == portionRecalled {
		last = max(last, p.through)
	}
	return (last + 1) * second
}

// recalled reports whether HAProxy has been told to spend nothing in a second.
func (p *portion) recalled(sec int64) bool { return p.phase == portionRecalled && sec <= p.through }

// lendAfter and lendBefore are the parts at a second's beginning and end in which no
// credit is given. HAProxy begins with the second after the answer by its own clock,
// and may take it for another second than the agent does.
const (
	lendAfter  = int64(50 * time.Millisecond)
	lendBefore = second - int64(150*time.Millisecond)
)

// withdrawAgain is how long an agent waits for a Recalled before it asks again.
const withdrawAgain = int64(100 * time.Millisecond)

// NextGeneration says that HAProxy is told to renew no credit that was given until now.
func (a *Agent) NextGeneration(at time.Time) { a.generationAt = at.UnixNano() }

// lapsed reports whether HAProxy's credit is over. If some has been given since the generation
// began, the question may be older than that. Shortly before a second's end HAProxy may
// speak of the next one.
func (a *Agent) lapsed(b *bucket, c Credit, now int64) bool {
	return c == Lapsed && b.portion.lentAt < a.generationAt && now-b.start*second < lendBefore
}

// observeCredit takes what HAProxy says with a question.
func (a *Agent) observeCredit(b *bucket, c Credit, now int64) {
	p := &b.portion
	lapsed := a.lapsed(b, c, now)
	switch {
	// Of a long window or a burst nothing is reserved, whatever is said of the user's other limits.
	case c == NoCredit || b.pooled():
		p.phase = portionNone
	case p.phase == portionRecalled: // what HAProxy says of credit is from before that
	case lapsed:
		// The present second is the agent's at once: credit of an ended generation is not renewed.
		p.phase, p.until, p.denied = portionWithheld, min(p.until, b.start-1), b.start
	// It may begin at any moment, so from now on the portion counts as HAProxy's.
	case c == Pending:
		if p.phase != portionLent {
			p.phase, p.from = portionLent, b.start
		}
		p.denied = b.start
	case p.phase == portionLent && (c != Withheld || b.start <= p.from): // it was asked before it began
	case c == Withheld && (p.phase == portionLent || p.phase == portionNone && !a.decidesAlone(b)):
		// HAProxy may have spent some in this second: by a process that was reloaded since,
		// or before a withdrawal whose answer is still to come, or was lost.
		p.phase, p.until, p.denied = portionWithheld, b.start, b.start
	case c == Withheld:
		p.phase, p.denied = portionWithheld, b.start
	default:
		p.phase, p.from = portionLent, b.start
	}
	a.divide(b)
	a.takePortion(b)
}

// divide computes the portions of the bucket's limit.
func (a *Agent) divide(b *bucket) {
	p := &b.portion
	if p.phase == portionNone {
		p.each, p.reserve = 0, 0
		return
	}
	p.each, p.reserve = a.fleet.portions(b.rate.Max, b.start)
}

// takePortion takes the portion of the bucket's second as tokens, unless HAProxy has it,
// or it was taken before.
func (a *Agent) takePortion(b *bucket) {
	p := &b.portion
	// settled is the guard against taking it twice, the invariant on which the sum rests.
	if !a.agentHas(p, b.start) || p.settled >= b.start || !a.mayTake(b.start) {
		return
	}
	p.settled, p.counted = b.start, 0
	b.balance += p.each
}

// mayTake reports whether portions of a second may be taken at all. Those of the first
// seconds may have been taken by the agent before this one, and those of a second in
// which HAProxy was reloaded may be spent by its old process.
func (a *Agent) mayTake(sec int64) bool {
	return sec > a.fleet.joined+1 && sec > a.reloaded
}

// entrusted reports whether the whole limit is HAProxy's in the bucket's second: the
// agent is alone and has given it as credit. Then the agent cannot decide anything
// before it knows what HAProxy has spent.
func (a *Agent) entrusted(b *bucket) bool {
	return a.haproxyHas(&b.portion, b.start) && a.decidesAlone(b)
}

// admittedByHAProxy is how many requests of the bucket's second HAProxy admits by itself, of an
// agent that is not alone. Credit that it has lost is taken for unused.
func (a *Agent) admittedByHAProxy(b *bucket) int {
	p := &b.portion
	switch {
	// All of it: what HAProxy uses of it is not known before a withdrawal.
	case p.phase == portionLent && b.start >= p.from:
		return p.each
	case p.settled == b.start:
		return p.counted
	case p.phase == portionWithheld && b.start > p.until && a.haproxyHas(p, b.start):
		return p.each
	}
	return 0
}

// asksLate reports whether a request is of the second before HAProxy's credit began: it
// was on its way to the agent when the second ended. What was left of that second is for it.
func (a *Agent) asksLate(b *bucket, c Credit, now int64) bool {
	p := &b.portion
	// Only just after the first second of credit: later the question is of the second it arrives in.
	given := b.start == p.from && p.lentAt/second == b.start-1
	return given && a.entrusted(b) && c != Spent && now-b.start*second < lendAfter
}

// askWithdrawal has the shell withdraw the user's credit, because a request waits to
// know what was spent.
func (a *Agent) askWithdrawal(u *user, now int64) {
	if since := now - u.withdrawAt; since >= 0 && since < withdrawAgain {
		return
	}
	// Once for all requests that wait: each would be a command in HAProxy.
	u.withdrawAt = now
	a.out.Withdraw = append(a.out.Withdraw, u.name)
}

// refuseSpent refuses a request for which HAProxy's credit did not suffice, where that
// was the whole limit. HAProxy does not say which of several limits it was. Of two the
// one for all requests is left out, for a request that the other one allows may still
// pass; of more none is known.
func (a *Agent) refuseSpent(w *Waiting, now int64) Verdict {
	var spent *bucket
	candidates := 0
	for _, b := range w.buckets[:w.n] {
		// Should it be the wrong one, refusing a class stops fewer requests than refusing all.
		if a.entrusted(b) && b.key.Class != limits.All {
			spent = b
			candidates++
		}
	}
	if candidates == 0 {
		for _, b := range w.buckets[:w.n] {
			if a.entrusted(b) {
				spent = b
			}
		}
	}
	// To refuse in HAProxy by a limit that may have something left would refuse too many.
	if candidates < 2 && !spent.refusing {
		a.throttleNow(spent, now)
	}
	return a.refuse(spent, cause.CreditSpent, now)
}

// CreditByDefault says that from a second on HAProxy may have credit, without any Lend, for
// users of whom it has not said in that second that it has none.
func (a *Agent) CreditByDefault(from int64) {
	// Adjoining spells are one, so that no second between them is taken for free.
	if s := &a.byDefault; from-1 > s.through {
		s.from = from
	}
	a.byDefault.through = math.MaxInt64
}

// EndCreditByDefault says that it is so through a second: behind that one, HAProxy has nothing
// of its own in force, nor begins to.
func (a *Agent) EndCreditByDefault(through int64) {
	a.byDefault.through = min(a.byDefault.through, through)
}

// Agreed reports whether all agents go by the same number of instances, so that HAProxy
// may be told what each user has by default.
func (a *Agent) Agreed(at time.Time) bool {
	return !a.leaving && a.fleet.informed && a.fleet.settled(at.Unix())
}

// Lendable reports whether HAProxy can have credit for these limits, which are all that
// the user has, from the next second on: the agents agree on how many they are, HAProxy
// has none already, it is not recalled, and nothing of the next second's was given back.
// It is false around the end of a second, see lendAfter.
func (a *Agent) Lendable(at time.Time, name string, rates []limits.Rate) bool {
	now := at.UnixNano()
	sec := now / second
	if in := now - sec*second; a.leaving || in < lendAfter || in >= lendBefore || !a.fleet.settled(sec) {
		return false
	}
	u := a.findOrAddUser(name)
	if u == nil {
		return false
	}
	for i := range rates {
		if b := u.findBucket(rates[i].Class, rates[i].Window); b != nil && !a.lendable(b, now) {
			return false
		}
	}
	for i := range rates {
		// All or none: HAProxy's credit is one entry for all limits of the user.
		if u.findBucket(rates[i].Class, rates[i].Window) != nil {
			continue
		}
		// The request does not count against this one, and so far it was of no interest.
		// That HAProxy has no credit for the others says that it has none for this one.
		b := a.findOrAddBucket(u, &rates[i], now)
		a.observeCredit(b, Withheld, now)
		a.schedule(b, now)
		if !a.lendable(b, now) {
			return false
		}
	}
	return true
}

// lendable reports whether HAProxy can have credit for one limit.
func (a *Agent) lendable(b *bucket, now int64) bool {
	a.advanceWindow(b, now)
	p := &b.portion
	// The next second's portion cannot be HAProxy's, or the agent may have disposed of it already.
	if p.phase == portionNone || p.recalled(b.start+1) || p.settled > b.start || b.start != now/second {
		return false
	}
	if p.phase == portionLent && (a.decidesAlone(b) || !a.mayHave(b.start+1)) {
		return false // by default HAProxy may have it or not; then it does no harm to give it once more
	}
	return a.decidesAlone(b) || p.each > 0 && !b.hot(now) // nobody wants what a lone HAProxy has
}

// Lend says that HAProxy will have its portion of these limits as credit from a second
// on, in that one and each after it. It is to be called when an answer brings credit,
// with no other call since Lendable said that it can.
func (a *Agent) Lend(at time.Time, name string, rates []limits.Rate, from int64) {
	u := a.users[name]
	if u == nil {
		return
	}
	for i := range rates {
		b := u.findBucket(rates[i].Class, rates[i].Window)
		if b == nil || b.portion.phase == portionNone {
			continue
		}
		a.advanceWindow(b, at.UnixNano())
		if p := &b.portion; p.phase == portionLent { // it may have had it already
			from = min(from, p.from)
			if p.denied < b.start {
				// HAProxy may have begun by itself and spent some: then nothing of this second is given back.
				p.again = b.start
			}
		}
		b.portion.phase, b.portion.from, b.portion.lentAt = portionLent, from, at.UnixNano()
	}
}

// Recalled says that HAProxy's credit for a limit is withdrawn, that it had drawn so
// many tickets of it in a second, and that it will get none through another second. It
// may be called again at any time, also for users of whom nothing is known here, and
// when there was no credit: then nothing was spent, and the second is the present one.
//
// What HAProxy has not spent goes to requests that wait here, and to the pool; so does
// its portion of each following second, before that second begins.
//
// Answers that were on their way when it was withdrawn must bring none any more: HAProxy
// sees to that, however late they come.
func (a *Agent) Recalled(at time.Time, name string, rate limits.Rate, sec int64, spent int, through int64) {
	now := at.UnixNano()
	u := a.findOrAddUser(name)
	if u == nil || a.leaving {
		return
	}
	// Answered: the next request that waits asks anew at once.
	u.withdrawAt = 0
	b := a.findOrAddBucket(u, &rate, now)
	if b.pooled() {
		return
	}
	p := &b.portion
	sec = min(sec, b.start+1) // no clock is further ahead
	if p.phase == portionRecalled {
		// Answers to two withdrawals may come in any order; the longer promise holds.
		through = max(through, p.through)
	}
	if p.phase == portionRecalled && sec > b.start { // nothing was lent since: it only lasts longer
		p.through = through
		a.schedule(b, now)
		return
	}
	// What was spent by then cannot be known, so all of it counts: too few is safe, too many is not.
	if sec <= p.again {
		spent = max(spent, p.each)
	}
	if sec > b.start { // HAProxy's clock is ahead: what it spent in this second is not known
		a.spendRest(b)
	}
	p.phase, p.through, p.until = portionRecalled, max(through, sec), min(p.until, sec-1)
	a.endRecall(b)
	a.divide(b)
	switch {
	case p.settled > sec: // that second is over
	case p.settled == sec:
		a.countSpentCredit(b, sec, max(0, spent-p.counted))
		// Told twice of one second: only what is more than the last time counts.
		p.counted = max(p.counted, spent)
	case a.decidesAlone(b):
		a.countSpentCredit(b, sec, spent)
		p.settled, p.counted = sec, spent
	case sec >= b.start:
		p.settled, p.counted = sec, spent
		if rest := p.each - spent; rest < 0 {
			a.countSpentCredit(b, sec, -rest)
		} else if a.mayTake(sec) {
			a.addTokens(b, sec, rest)
		}
	}
	a.takePortion(b)
	a.relieve(b)
	a.serveQueue(u, now)
	a.review(b, now)
	if b.back > 0 {
		a.flushNow()
	}
	a.schedule(b, now)
}

// endRecall ends a recall that is over in the bucket's second.
func (a *Agent) endRecall(b *bucket) {
	if p := &b.portion; p.phase == portionRecalled && b.start > p.through {
		p.phase = portionWithheld
	}
}

// spendRest counts HAProxy's portion of the bucket's second as spent.
func (a *Agent) spendRest(b *bucket) {
	p := &b.portion
	switch {
	case a.entrusted(b):
		b.admitted = max(b.admitted, b.limit)
	case a.haproxyHas(p, b.start) && p.settled < b.start:
		p.settled, p.counted = b.start, p.each
	}
}

// countSpentCredit takes note of requests that HAProxy admitted by itself beyond the portion, or
// alone, at all. advanceWindow does so for the next second.
func (a *Agent) countSpentCredit(b *bucket, sec int64, spent int) {
	switch {
	case sec != b.start || spent <= 0:
	case a.decidesAlone(b):
		b.admitted += spent
	default:
		// Tokens in hand pay for it first; what they do not cover the pool has to hear of.
		own := min(b.balance, spent)
		b.balance -= own
		b.debt += spent - own
		a.reportAtFlush(b)
	}
}

// addTokens adds to the tokens in hand for this second or the next.
func (a *Agent) addTokens(b *bucket, sec int64, tokens int) {
	if sec == b.start {
		b.balance += tokens
	} else if sec == b.following() {
		b.next += tokens
	}
}

// relieve lets requests of a key through to the agent again that has tokens now.
func (a *Agent) relieve(b *bucket) {
	if a.available(b) {
		b.probeGap = int64(firstProbe)
		if b.refusing {
			a.liftRefusal(b)
		}
	}
}

// Reloaded says that HAProxy has begun a new process. What the old one has spent of this
// second nobody can tell, so nothing of it is given back from now on.
func (a *Agent) Reloaded(at time.Time) {
	a.reloaded = (at.UnixNano() + lendAfter) / second // HAProxy's clock may be ahead
}

// nextAsk makes the ask for the following window: for what will be needed beyond the
// portion, or, of a key that is hot or not in use here, to give back what will not be
// needed of it.
func (a *Agent) nextAsk(b *bucket, now int64) Ask {
	// Asked ahead, so that what is given back is there for others when the second begins.
	p, sec := &b.portion, b.following()
	ask := b.emptyAsk(sec)
	ask.Instances = a.sharers(b)
	own, want := 0, 0
	if p.phase != portionNone {
		own, ask.Reserve = a.fleet.portions(b.rate.Max, sec)
	}
	if a.active(b, now) {
		want = b.target(now, a.fleet.instances)
	}
	if !a.agentHas(p, sec) || p.settled >= sec || !a.mayTake(sec) {
		own = 0
	}
	ask.Ahead = max(0, want-own)
	if spare := own - want; spare > 0 && !a.holdsPortion(b, now) {
		ask.Back = spare
		b.next += want
		// Settled now: advanceWindow must not take again what has been given back.
		p.settled, p.counted = sec, 0
	}
	return ask
}

// keepPortion is what the agent keeps of its portion for requests that may come.
func (a *Agent) keepPortion(b *bucket, now int64) int {
	if a.agentHas(&b.portion, b.start) && a.holdsPortion(b, now) {
		return b.portion.each
	}
	return 0
}

// holdsPortion reports whether the portion is to stay here unused. HAProxy would hold it
// as well if it had it, and every key would be told about in every second otherwise.
func (a *Agent) holdsPortion(b *bucket, now int64) bool {
	return b.cool(now) && (b.portion.phase != portionRecalled || a.active(b, now))
}

// nextMatters reports whether there is something to ask or to say about the next window
// ahead of it.
func (a *Agent) nextMatters(b *bucket, now int64) bool {
	return a.active(b, now) || b.portion.recalled(b.following())
}

// rollPortion begins a second. The portion of a key that is about to be forgotten is left
// alone: it would be remembered for it.
func (a *Agent) rollPortion(b *bucket, now int64) {
	p := &b.portion
	a.endRecall(b)
	a.divide(b)
	if p.settled == b.start && a.decidesAlone(b) {
		b.admitted += p.counted
	}
	// A bucket that takes its portion is kept for another second: one that is idle must not go on so.
	if p.phase == portionRecalled || now-b.arrivals.last < int64(forgetSpan) {
		a.takePortion(b)
	}
}

// longSetBack is how far, in seconds, a clock is set back at most for the portions of
// the seconds that come again to be remembered.
const longSetBack = 60

// setBack follows a clock that was set back.
func (p *portion) setBack(sec int64) {
	if p.settled > sec+longSetBack {
		p.settled = sec
	}
	// Seconds come again. What was promised of later ones would hold for as long as the clock was set back.
	p.from, p.through, p.until = min(p.from, sec), min(p.through, sec+settleSpan), min(p.until, sec)
	p.again, p.denied = min(p.again, sec), min(p.denied, sec)
}

// setBackTo follows a clock that was set back, should it have been.
func (a *Agent) setBackTo(sec int64) {
	f := &a.fleet
	f.shared, f.joined = min(f.shared, sec+1), min(f.joined, sec+1)
	a.apartThrough, a.reloaded = min(a.apartThrough, sec), min(a.reloaded, sec)
	a.byDefault.from = min(a.byDefault.from, sec+settleSpan+1) // it may be a little ahead
	for i := range f.former {
		f.former[i].through = min(f.former[i].through, sec+settleSpan)
	}
}
