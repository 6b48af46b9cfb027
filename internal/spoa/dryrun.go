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

// rehearse counts what limits in a dry run would have done about a request that is
// allowed.
func (l *limiter) rehearse(q question, of *limits.Limits, rates []limits.Rate) {
	if of.Concurrent > 0 && of.ConcurrentMode != limits.Enforce {
		v, wait := l.startSlot(question{user: q.user, seen: q.seen}, of)
		if wait != nil {
			go func() {
				if !wait().Allowed {
					l.metrics.dryRefused.WithLabelValues("concurrent").Inc()
				}
			}()
		} else if !v.Allowed {
			l.metrics.dryRefused.WithLabelValues("concurrent").Inc()
		}
	}
	if len(rates) == 0 {
		return
	}
	v, wait := l.startToken(q.user, rates)
	if wait != nil {
		go func() {
			if v := wait(); !v.Allowed {
				l.metrics.dryRefused.WithLabelValues(v.Limit.Name()).Inc()
			}
		}()
	} else if !v.Allowed {
		l.metrics.dryRefused.WithLabelValues(v.Limit.Name()).Inc()
	}
}

// byteDryRuns knows how much more the users whose bandwidth limit is in a dry run
// move than their shares. The limiter's lock guards it. The zero one is not usable.
type byteDryRuns map[string]*byteDryRun

type byteDryRun struct {
	share, left, moved [2]int64  // bytes per second; bytes within the share; HAProxy's count
	at, heard          time.Time // of the last count; of the last of anything
	counting           bool      // since moved was first heard of
}

const (
	// dryRunSpan is how much of a share may be moved at once.
	dryRunSpan = time.Second
	// dryRunFor is how long a user is remembered of whom nothing is heard: longer than
	// it takes to repeat his share.
	dryRunFor = time.Minute
	// maxDryRuns bounds the users; of others nothing is counted.
	maxDryRuns = 100_000
)

// give takes a user's share.
func (t byteDryRuns) give(now time.Time, user string, share [2]int64) {
	if run := t.of(now, user); run != nil {
		run.share = share
	}
}

// move takes HAProxy's count of a user's bytes, and returns how many of those since
// the last one are above his share. A share of 0 is none yet.
func (t byteDryRuns) move(now time.Time, user string, moved [2]int64) (above [2]int64) {
	run := t.of(now, user)
	if run == nil {
		return above
	}
	elapsed := min(now.Sub(run.at), dryRunSpan)
	run.at = now
	for _, d := range bandwidth.Directions {
		more := moved[d] - run.moved[d]
		run.moved[d] = moved[d]
		if !run.counting || run.share[d] == 0 || more <= 0 {
			continue // nothing to compare with, or HAProxy has begun to count anew
		}
		most := int64(dryRunSpan.Seconds() * float64(run.share[d]))
		run.left[d] = min(most, run.left[d]+int64(elapsed.Seconds()*float64(run.share[d])))
		above[d] = max(0, more-run.left[d])
		run.left[d] = max(0, run.left[d]-more)
	}
	run.counting = true
	return above
}

func (t byteDryRuns) of(now time.Time, user string) *byteDryRun {
	run := t[user]
	if run == nil && len(t) < maxDryRuns {
		run = &byteDryRun{at: now}
		t[user] = run
	}
	if run != nil {
		run.heard = now
	}
	return run
}

// forget drops those of whom nothing was heard for a while.
func (t byteDryRuns) forget(now time.Time) {
	for user, run := range t {
		if now.Sub(run.heard) >= dryRunFor {
			delete(t, user)
		}
	}
}
