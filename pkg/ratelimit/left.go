package ratelimit

import (
	"time"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// Left is how many more requests of a user the given limits admit in their present
// windows, as far as this agent knows, and the limit that admits least; of several
// the one that stays in force longest. Without limits it reports false.
//
// It is exact where the agent counts by itself. Where it leases, it is what the agent
// holds and what the pool had when it last answered: others may have taken of that
// since. It is never negative and never above the limit and its burst. It changes
// nothing, so it may be asked at any time.
func (a *Agent) Left(at time.Time, name string, rates []limits.Rate) (left int, of limits.Rate, ok bool) {
	now := at.UnixNano()
	u := a.users[name]
	for i := range rates {
		r := &rates[i]
		// A user who is not known here has used nothing, as far as this agent knows.
		n := r.Max + r.Burst
		if u != nil {
			if b := u.findBucket(r.Class, r.Window); b != nil && b.current(now) {
				n = min(n, a.remaining(b))
			}
		}
		if !ok || n < left || n == left && r.Window > of.Window {
			left, of, ok = n, *r, true
		}
	}
	return left, of, ok
}

// current reports whether a time is in the bucket's window. As in advanceWindow, a clock that
// runs back a little stays in it.
func (b *bucket) current(now int64) bool {
	return now >= (b.start-1)*second && now < b.end()
}

func (a *Agent) remaining(b *bucket) int {
	switch {
	case a.cutOff(b):
		own := 0
		if !b.spent {
			// A spent key has no part: Redis said so when it was last heard.
			own = max(0, a.partWithoutPool(b)-a.admittedWithoutPool(b))
		}
		switch {
		case b.longWindow():
			// What was leased is not counted against the part.
			return b.balance + own
		// As in available: who has begun to count by itself does not use its lease on top.
		case b.unleased > 0:
			return own
		}
		return max(b.balance, own)
	case a.decidesAlone(b):
		return max(0, b.limit-b.admitted)
	// Nothing is left but what is in hand, whatever the total was when it was last told.
	case b.spent:
		return b.balance
	}
	// The pool's total may be from before the tokens that came with the window.
	handed := max(b.total, b.admitted-b.unleased+b.balance+b.back)
	return b.balance + b.back + max(0, b.limit-handed-b.owed)
}
