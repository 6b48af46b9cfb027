package agent

import (
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
	if of.CountsInProgress(n.verb, n.op) && of.ConcurrentMode != limits.Enforce && n.later != costOnly {
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
					l.metrics.dryRefused.WithLabelValues(v.Limit.Name()).Inc()
				}
			}()
		} else if !v.Allowed {
			name := v.Limit.Name()
			l.metrics.dryRefused.WithLabelValues(name).Inc()
			// The last one that refuses is what the log names.
			known = dryVerdict{refused: true, limit: name, window: v.End() - v.Second, max: int64(v.Limit.Max)}
		}
	}
	// Their limits are charged with those that are enforced, so what they would do is known by now.
	if n.costs != nil {
		if limit, would := n.costs.dryRefusal(); would {
			name := limit.Name()
			l.metrics.dryRefused.WithLabelValues(name).Inc()
			known = dryVerdict{refused: true, limit: name, unit: limit.Unit, window: lengthOf(limit.Bounds(l.clock.Now().Unix())), max: limit.Max}
		}
	}
	return known
}
