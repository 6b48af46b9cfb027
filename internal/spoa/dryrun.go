package spoa

import (
	"time"

	"github.com/sluice-qos/sluice/pkg/bandwidth"
	"github.com/sluice-qos/sluice/pkg/limits"
)

// Limits in a dry run are decided and counted as the others are, by the
// same cores. But no answer waits for them or depends on them, and HAProxy never
// hears of them.

// splitRates moves the rates in a dry run to the other slice, which has room.
func splitRates(rates, room []limits.Rate) (enforced, dry []limits.Rate) {
	dry = room[:0]
	n := 0
	// In place: both slices are of the caller's arrays, so that nothing is allocated.
	for _, r := range rates {
		if r.Mode == limits.Enforce {
			rates[n] = r
			n++
		} else {
			dry = append(dry, r)
		}
	}
	return rates[:n], dry
}

// dryRun counts what limits in a dry run would have done about a request that is
// allowed, and returns what of it is known at once.
func (l *limiter) dryRun(n *needs, of *limits.Limits, rates *rates) (known dryVerdict) {
	if of.Concurrent > 0 && of.ConcurrentMode != limits.Enforce {
		// Without places by credit: HAProxy has been told of no such limit, so it has none.
		v, wait := l.startSlot(question{user: n.user, seen: n.seen}, of, patience{longest: l.waitFor(n.user)})
		// The answer does not wait for it. Who waits is bounded by the core, and each for the time
		// that any request may wait; so are these goroutines.
		if wait != nil {
			go func() {
				if !wait().Allowed {
					l.metrics.dryRefused.WithLabelValues("concurrent").Inc()
				}
			}()
		} else if !v.Allowed {
			l.metrics.dryRefused.WithLabelValues("concurrent").Inc()
			known = dryVerdict{refused: true, limit: slotReason, max: int64(of.Concurrent)}
		}
	}
	for i, t := range n.tokens {
		if len(rates[i]) == 0 {
			continue
		}
		v, wait := l.startToken(t.key, rates[i], patience{longest: l.waitFor(t.key)})
		if wait != nil {
			go func() {
				if v := wait(); !v.Allowed {
					l.metrics.dryRefused.WithLabelValues(rateName(v.Limit, i == whole)).Inc()
				}
			}()
		} else if !v.Allowed {
			name := rateName(v.Limit, i == whole)
			l.metrics.dryRefused.WithLabelValues(name).Inc()
			// The last one that refuses is what the log names.
			known = dryVerdict{refused: true, limit: name, max: int64(v.Limit.Max)}
		}
	}
	// Their limits are charged with those that are enforced, so what they would do is known by now.
	if n.costs != nil {
		if limit, key, would := n.costs.dryRefusal(); would {
			name := costName(limit, key == whole)
			l.metrics.dryRefused.WithLabelValues(name).Inc()
			known = dryVerdict{refused: true, limit: name, unit: limit.Unit, max: limit.Max}
		}
	}
	return known
}

// byteDryRuns knows how much more the users whose bandwidth limit is in a dry run
// move than their shares. The limiter's lock guards it. See newByteDryRuns.
type byteDryRuns struct{ recent[byteDryRun] }

type byteDryRun struct {
	share, left [2]int64 // bytes per second; bytes within the share
	at          time.Time
}

const (
	// dryRunSpan is how much of a share may be moved at once.
	dryRunSpan = time.Second
	// dryRunFor is how long a user is remembered of whom nothing is heard: longer than
	// it takes to repeat the share.
	dryRunFor = time.Minute
	// maxDryRuns bounds the users; of others nothing is counted.
	maxDryRuns = 100_000
)

func newByteDryRuns() byteDryRuns { return byteDryRuns{newRecent[byteDryRun](dryRunFor, maxDryRuns)} }

// takeShare takes a user's share.
func (t *byteDryRuns) takeShare(now time.Time, user string, share [2]int64) {
	run, known := t.get(user)
	// Before there is a share nothing is above it.
	if !known {
		run.at = now
	}
	run.share = share
	t.put(user, run)
}

// countAbove takes how many bytes a user has moved since the last call, and returns how
// many of them are above their share. Without a share none are.
func (t *byteDryRuns) countAbove(now time.Time, user string, more [2]int64) (above [2]int64) {
	run, known := t.get(user)
	// A user without a share is not in the map: whoever moves bytes without a limit in a dry run takes
	// no room.
	if !known {
		return above
	}
	elapsed := min(now.Sub(run.at), dryRunSpan).Seconds()
	run.at = now
	for _, d := range bandwidth.Directions {
		if run.share[d] == 0 {
			continue
		}
		// As the filter would: a share that was not used can be used later, for a second's worth.
		most := int64(dryRunSpan.Seconds() * float64(run.share[d]))
		run.left[d] = min(most, run.left[d]+int64(elapsed*float64(run.share[d])))
		above[d] = max(0, more[d]-run.left[d])
		run.left[d] = max(0, run.left[d]-more[d])
	}
	t.put(user, run)
	return above
}
