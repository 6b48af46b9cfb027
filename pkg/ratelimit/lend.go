package ratelimit

import (
	"time"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// lendAfter and lendBefore are the parts at a second's beginning and end in which no
// credit is given. HAProxy begins with the second after the answer by its own clock,
// and may take it for another second than the agent does.
const (
	lendAfter  = int64(50 * time.Millisecond)
	lendBefore = second - int64(150*time.Millisecond)
)

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
		a.observeCredit(b, Withheld)
		a.schedule(b, now)
		if !a.lendable(b, now) {
			return false
		}
	}
	return true
}

func (a *Agent) lendable(b *bucket, now int64) bool {
	a.advanceWindow(b, now)
	p := &b.portion
	// The next second's portion cannot be HAProxy's, or the agent may have disposed of it already.
	if !p.possible || p.lent || p.recalled(b.start+1) || p.settled > b.start || b.start != now/second {
		return false
	}
	// Alone, nobody else wants what HAProxy has.
	return a.decidesAlone(b) || p.each > 0 && !b.hot(now)
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
		if b == nil || !b.portion.possible {
			continue
		}
		a.advanceWindow(b, at.UnixNano())
		b.portion.lent, b.portion.from = true, from
	}
}
