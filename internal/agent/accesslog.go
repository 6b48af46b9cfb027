package agent

import (
	"math"
	"strconv"

	"github.com/sluice-qos/sluice/internal/agent/spop"
	"github.com/sluice-qos/sluice/pkg/limits"
)

// HAProxy asks with "log" what its access log shall say of requests that are allowed.
// Without it none of this runs.

// quotaLeft is what the access log says of an allowed request: the limit of which it
// leaves least, and how much.
type quotaLeft struct {
	verdict string // instead of "allowed"; "" if that is it
	limit   string // the limit's name; "" if there is none
	max     int64
	unit    string // of a limit of costs; "" is requests
	window  int64  // of requests and costs: its length in seconds
	left    int64  // requests that it still admits, or of a limit of costs units; 0 to max and its burst
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
		return &quotaLeft{verdict: dryRunVerdict, limit: dry.limit, unit: dry.unit, window: dry.window, max: dry.max}
	}
	s := &quotaLeft{}
	least := int64(0) // requests
	// What is nearest to refusing is what leaves the fewest requests such as this one.
	note := func(limit, unit string, window, max, left, requests int64) {
		if s.limit == "" || requests < least {
			s.limit, s.unit, s.window, s.max, s.left, least = limit, unit, window, max, left, requests
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.clock.Now()
	// What is said is what is nearest to refusing. The first of two that leave as much is named.
	for i, t := range n.tokens {
		if left, rate, ok := l.coresOf(t.key).tokens.Left(now, t.key, rates[i]); ok {
			note(rate.Name(), "", lengthOf(rate.Bounds(now.Unix())), int64(rate.Max), int64(left), int64(left))
		}
	}
	if n.costs != nil {
		for _, c := range n.costs.of {
			if len(c.needs) == 0 {
				continue
			}
			if left, need, ok := l.coresOf(c.key).costs.Left(now, c.key, c.needs); ok {
				note(need.Cost.Name(), need.Cost.Unit, lengthOf(need.Cost.Bounds(now.Unix())), need.Cost.Max, left, left/max(1, need.Amount))
			}
		}
	}
	if of.Concurrent > 0 && of.ConcurrentMode == limits.Enforce {
		// A limit in a dry run does not refuse: what it leaves is not what the user has left.
		if free, known := l.coresOf(n.user).slots.FreeSlots(n.user); known {
			note(slotReason, "", 0, int64(of.Concurrent), int64(free), int64(free))
		}
	}
	return s
}

func (s *quotaLeft) answer(r *spop.Request) {
	// Without the variable HAProxy writes "allowed", so that most answers are shorter.
	if s.verdict != "" {
		r.SetString("verdict", s.verdict)
	}
	if s.limit != "" {
		r.SetString("class", s.limit)
		if s.unit != "" {
			r.SetString("unit", s.unit)
		}
		setNumber(r, "limit", s.max)
		setNumber(r, "remaining", s.left)
		setWindow(r, s.window)
	}
}

func lengthOf(begin, end int64) int64 { return end - begin }

// setWindow sets the variable of a window of so many seconds. HAProxy takes a second for granted, which nearly all
// limits are of.
func setWindow(r *spop.Request, seconds int64) {
	if seconds > 1 {
		r.SetUint("window", uint32(seconds))
	}
}

// setNumber sets a variable to a number, as text if it is too large.
func setNumber(r *spop.Request, name string, n int64) {
	if n > math.MaxInt32 {
		r.SetString(name, strconv.FormatInt(n, 10))
		return
	}
	r.SetUint(name, uint32(n))
}

// dryVerdict is what limits in a dry run say of a request, as far as it is known at
// once. The zero dryVerdict is that none would refuse it.
type dryVerdict struct {
	refused bool
	limit   string
	unit    string // as in quotaLeft
	window  int64
	max     int64
}
