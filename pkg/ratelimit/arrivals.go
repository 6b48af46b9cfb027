package ratelimit

import (
	"math"
	"time"
)

// The two averages of arrivals. A lease follows the smaller: the fast one lets
// go of a load that has stopped, the slow one does not trust a burst.
const (
	fastAverage = float64(50 * time.Millisecond)
	slowAverage = float64(300 * time.Millisecond)
)

// arrivals estimates a rate of events by two exponential averages.
// The zero value has seen none.
type arrivals struct {
	fast, slow float64 // events per nanosecond at the time of the last one
	last       int64   // time of the last event, ns
}

func (a *arrivals) record(now int64) {
	dt := float64(max(0, now-a.last))
	a.fast = a.fast*math.Exp(-dt/fastAverage) + 1/fastAverage
	a.slow = a.slow*math.Exp(-dt/slowAverage) + 1/slowAverage
	a.last = max(a.last, now)
}

// expected is the number of events to expect in the coming span of time.
func (a *arrivals) expected(now int64, span time.Duration) int {
	dt := float64(max(0, now-a.last))
	rate := min(a.fast*math.Exp(-dt/fastAverage), a.slow*math.Exp(-dt/slowAverage))
	return int(rate * float64(span))
}
