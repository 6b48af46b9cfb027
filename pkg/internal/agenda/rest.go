package agenda

import (
	"math"
	"time"
)

// Never is later than any time in nanoseconds.
const Never = math.MaxInt64

// A Rest is what a core has said of the time until which its shell need not call it. The zero
// Rest is that it has said nothing.
type IdleTime struct{ until int64 }

// Announce says for how long from a time on nothing is due, given when the first thing is, and at
// most a given time.
func (r *IdleTime) Announce(now, due int64, most time.Duration) time.Duration {
	r.until = min(due, now+int64(most))
	return max(0, time.Duration(r.until-now))
}

// Shortened reports, once, that something is due sooner than was said.
func (r *IdleTime) Shortened(due int64) bool {
	if r.until == 0 || due >= r.until {
		return false
	}
	r.until = 0
	return true
}
