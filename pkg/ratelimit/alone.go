package ratelimit

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
		// The odd ones go to the first.
		part++
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
