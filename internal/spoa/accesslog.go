package spoa

import (
	"github.com/sluice-qos/sluice/internal/spop"
	"github.com/sluice-qos/sluice/pkg/limits"
)

// HAProxy asks with "log" what its access log shall say of requests that are allowed.
// Without it none of this runs.

// quotaLeft is what the access log says of an allowed request: the limit of which it
// leaves least, and how much.
type quotaLeft struct {
	verdict string // instead of "allowed"; "" if that is it
	limit   string // the limit's name; "" if there is none
	max     int
	left    int // requests that it still admits; 0 to max and its burst
}

// The verdicts of requests that are allowed for a reason of their own.
const (
	exemptVerdict = "exempt"
	dryRunVerdict = "dry-run" // a limit in a dry run would have refused it
)

// quotaLeftOf is what is left for a user after a request that has taken these tokens. A
// limit in a dry run that refuses goes before all others.
func (l *limiter) quotaLeftOf(n *needs, of *limits.Limits, rates *rates, dry dryVerdict) *quotaLeft {
	switch {
	// Before all else: nothing was asked of the cores, so nothing is known.
	case of.Tier == limits.ExemptTier:
		return &quotaLeft{verdict: exemptVerdict}
	case dry.refused: // as the log's reader would look for it
		return &quotaLeft{verdict: dryRunVerdict, limit: dry.limit, max: dry.max}
	}
	s := &quotaLeft{}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.clock.Now()
	// What is said is what is nearest to refusing. The first of two that leave as much is named: limits
	// over all endpoints come first, as they are asked first.
	for i, t := range n.tokens {
		if left, rate, ok := l.coresOf(t.key).tokens.Left(now, t.key, rates[i]); ok && (s.limit == "" || left < s.left) {
			s.limit, s.max, s.left = rateName(rate, i == whole), rate.Max, left
		}
	}
	if of.Concurrent > 0 && of.ConcurrentMode == limits.Enforce {
		// A limit in a dry run does not refuse: what it leaves is not what the user has left.
		if free, known := l.coresOf(n.user).slots.FreeSlots(n.user); known && (s.limit == "" || free < s.left) {
			s.limit, s.max, s.left = slotReason, of.Concurrent, free
		}
	}
	return s
}

// answer sets the variables.
func (s *quotaLeft) answer(r *spop.Request) {
	// Without the variable HAProxy writes "allowed", so that most answers are shorter.
	if s.verdict != "" {
		r.SetString("verdict", s.verdict)
	}
	if s.limit != "" {
		r.SetString("class", s.limit)
		r.SetUint("limit", uint32(s.max))
		r.SetUint("remaining", uint32(s.left))
	}
}

// dryVerdict is what limits in a dry run say of a request, as far as it is known at
// once. The zero dryVerdict is that none would refuse it.
type dryVerdict struct {
	refused bool
	limit   string
	max     int
}
