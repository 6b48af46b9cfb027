package ratelimit

// portion is this instance's part of a limit of which the pool has reserved every
// instance's. In each second it is HAProxy's or the agent's, never both's: the agent
// takes what HAProxy does not have as tokens, once for each second, and gives back to
// the pool those that it does not need. What HAProxy has, or may have, are the seconds up to one and those from another one on.
// Agent.observeCredit, Lend and Recalled are all that change them.
type portion struct {
	possible bool  // the user can have credit; if not, there is no portion
	until    int64 // HAProxy may have it up to this second,
	lent     bool  // and also
	from     int64 // from this one on; 0: it had credit already when the agent first heard of it
	through  int64 // the last second in which HAProxy has none for certain, whatever asks here

	each    int // tickets: this instance's portion in the bucket's second
	reserve int // all instances' portions

	// The last second whose portion the agent has taken, given back, or found out to be
	// lost. It is taken at most once: settled only grows, but for a clock set back.
	settled int64
	counted int // tickets that HAProxy had drawn in the settled second

	before int // what the agent could still admit of the second before the bucket's
}

// agentHas reports whether the agent, and not HAProxy, has the portion of a second.
func (p *portion) agentHas(sec int64) bool {
	return p.possible && !p.haproxyHas(sec)
}

// haproxyHas reports whether HAProxy has the portion of a second, or may have.
func (p *portion) haproxyHas(sec int64) bool {
	return p.possible && (sec <= p.until || p.lent && sec >= p.from)
}

// forgetAt is when the portion may be forgotten, ns: not while it is recalled, for it is
// given back in each second then, nor in a second in which it was taken, for it would be
// taken again.
func (p *portion) forgetAt() int64 {
	return (max(p.settled, p.through) + 1) * second
}

// recalled reports whether HAProxy has been told to spend nothing in a second.
func (p *portion) recalled(sec int64) bool { return sec <= p.through }

func (a *Agent) divide(b *bucket) {
	p := &b.portion
	if !p.possible {
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
	if !p.agentHas(b.start) || p.settled >= b.start || !a.mayTake(b.start) {
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
	return b.portion.haproxyHas(b.start) && a.decidesAlone(b)
}

// admittedByHAProxy is how many requests of the bucket's second HAProxy admits by itself, of an
// agent that is not alone. Credit that it has lost is taken for unused.
func (a *Agent) admittedByHAProxy(b *bucket) int {
	p := &b.portion
	switch {
	// All of it: what HAProxy uses of it is not known before a withdrawal.
	case p.lent && b.start >= p.from:
		return p.each
	case p.settled == b.start:
		return p.counted
	}
	return 0
}

// nextAsk makes the ask for the following window: for what will be needed beyond the
// portion, or, of a key that is hot or not in use here, to give back what will not be
// needed of it.
func (a *Agent) nextAsk(b *bucket, now int64) Ask {
	// Asked ahead, so that what is given back is there for others when the second begins.
	p, sec := &b.portion, b.ends
	ask := a.emptyAsk(b, sec)
	ask.Instances = a.sharers(b)
	own, want := 0, 0
	if p.possible {
		own, ask.Reserve = a.fleet.portions(b.rate.Max, sec)
	}
	if a.active(b, now) {
		want = b.target(now, a.fleet.instances)
	}
	if !p.agentHas(sec) || p.settled >= sec || !a.mayTake(sec) {
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
	if b.portion.agentHas(b.start) && a.holdsPortion(b, now) {
		return b.portion.each
	}
	return 0
}

// holdsPortion reports whether the portion is to stay here unused. HAProxy would hold it
// as well if it had it, and every key would be told about in every second otherwise.
func (a *Agent) holdsPortion(b *bucket, now int64) bool {
	return b.cool(now) && (!b.portion.recalled(b.start) || a.active(b, now))
}

// nextMatters reports whether there is something to ask or to say about the next window
// ahead of it.
func (a *Agent) nextMatters(b *bucket, now int64) bool {
	return a.active(b, now) || b.portion.recalled(b.ends)
}

// rollPortion begins a second. The portion of a key that is about to be forgotten is left
// alone: it would be remembered for it.
func (a *Agent) rollPortion(b *bucket, now int64) {
	p := &b.portion
	a.divide(b)
	if p.settled == b.start && a.decidesAlone(b) {
		b.admitted += p.counted
	}
	// A bucket that takes its portion is kept for another second: one that is idle must not go on so.
	if p.recalled(b.start) || now-b.arrivals.last < int64(forgetSpan) {
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
}

// setBackTo follows a clock that was set back, should it have been.
func (a *Agent) setBackTo(sec int64) {
	f := &a.fleet
	f.shared, f.joined = min(f.shared, sec+1), min(f.joined, sec+1)
	a.apartThrough, a.reloaded = min(a.apartThrough, sec), min(a.reloaded, sec)
	for i := range f.former {
		f.former[i].through = min(f.former[i].through, sec+settleSpan)
	}
}
