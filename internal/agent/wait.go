package agent

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-qos/sluice/pkg/concurrency"
	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

// waiting are the requests that wait for one of the cores; a channel is closed
// when its request is decided.
type waiting[W comparable] map[W]chan struct{}

func (m waiting[W]) add(w W) <-chan struct{} {
	// Closed and not sent to: whoever decides must not wait for a request that has just left.
	done := make(chan struct{})
	m[w] = done
	return done
}

func (m waiting[W]) decided(w W) {
	// Who has waited long enough has left, and took the verdict of Timeout.
	if done, ok := m[w]; ok {
		delete(m, w)
		close(done)
	}
}

// remove takes out a request that is not decided yet, and reports whether it was there.
func (m waiting[W]) remove(w W) bool {
	_, open := m[w]
	delete(m, w)
	return open
}

// beginWaits prepares to wait for what is not decided, and reports whether anything is
// not; l.mu is held.
func (l *limiter) beginWaits(n *needs) (any bool) {
	// Before the lock is free, for the answer may come at once.
	if n.slotWaits != nil {
		n.slotDone, any = l.forSlots.add(n.slotWaits), true
	}
	for i := range n.tokens {
		if t := &n.tokens[i]; t.waits != nil {
			t.done, any = l.forTokens.add(t.waits), true
		}
	}
	if n.costs != nil {
		for i := range n.costs.of {
			if c := &n.costs.of[i]; c.waits != nil {
				c.done, any = l.forCosts.add(c.waits), true
			}
		}
	}
	return any
}

// awaitAll waits until all is decided, or something is refused, or Redis was
// silent for so long.
func (l *limiter) awaitAll(n *needs, longest time.Duration) {
	began := time.Now()
	defer func() { l.metrics.waits.Observe(time.Since(began).Seconds()) }()
	timer := time.NewTimer(longest)
	defer timer.Stop()
	// A channel that is nil is never ready: so are those of what is decided.
	slot, token := n.slotDone, n.tokens[own].done
	var charge <-chan struct{}
	if n.costs != nil {
		charge = n.costs.of[own].done
	}
	for slot != nil || token != nil || charge != nil {
		allowed := true
		select {
		case <-slot:
			slot, allowed = nil, n.slotWaits.Verdict.Allowed
		case <-token:
			token, allowed = nil, n.tokens[own].waits.Verdict.Allowed
		case <-charge:
			charge, allowed = nil, n.costs.of[own].waits.Verdict.Allowed
		case <-timer.C:
			if more := l.waitLonger(n, time.Since(began)); more > 0 {
				timer.Reset(more)
				continue
			}
			l.metrics.timeouts.Inc()
			return
		}
		// What the others will say cannot make it allowed any more.
		if !allowed {
			return
		}
	}
}

// waitLonger is for how much longer a question goes on that has waited for so long.
func (l *limiter) waitLonger(n *needs, waited time.Duration) (more time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range n.tokens {
		// Redis is there, and answers one batch of asks at a time: who gave up now would be refused, although
		// their answer comes next.
		if t := &n.tokens[i]; t.waits != nil {
			if s := l.shardOf(t.key); s.tokens.HeardSince(t.waits) {
				more = max(more, s.reach.most-waited)
			}
		}
	}
	if n.costs != nil {
		for i := range n.costs.of {
			if c := &n.costs.of[i]; c.waits != nil {
				if s := l.shardOf(c.key); s.costs.HeardSince(c.waits) {
					more = max(more, s.reach.most-waited)
				}
			}
		}
	}
	return more
}

// collect takes the verdicts of what was decided meanwhile; l.mu is held.
func (l *limiter) collect(n *needs) {
	// Not among those who wait any more: it was decided, perhaps after the timer had fired and before
	// the lock was held. Such a verdict counts, or what it took would be lost.
	if n.slotWaits != nil && !l.forSlots.remove(n.slotWaits) {
		n.slot, n.slotWaits = n.slotWaits.Verdict, nil
	}
	for i := range n.tokens {
		if t := &n.tokens[i]; t.waits != nil && !l.forTokens.remove(t.waits) {
			t.verdict, t.waits = t.waits.Verdict, nil
		}
	}
	if n.costs != nil {
		for i := range n.costs.of {
			if c := &n.costs.of[i]; c.waits != nil && !l.forCosts.remove(c.waits) {
				c.verdict, c.waits = c.waits.Verdict, nil
			}
		}
	}
}

// slotInLine decides about a slot when one is free or the user's patience is over.
func (l *limiter) slotInLine(q question, of *limits.Limits) concurrency.Verdict {
	v, wait := l.startSlot(q, of, patience{longest: of.Wait, waits: l.metrics.inLine, over: l.over})
	if wait != nil {
		return wait()
	}
	return v
}

// startSlot decides about a slot at once, or returns how to wait for the verdict.
func (l *limiter) startSlot(q question, of *limits.Limits, p patience) (concurrency.Verdict, func() concurrency.Verdict) {
	s := l.shardOf(q.user)
	start := s.slots.Start
	// The second question of a request is held for as long as its user may wait, not for Redis.
	if q.inLine {
		start = s.slots.Hold
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.touch(s)
	v, w := start(l.clock.Now(), q.user, of.Concurrent, q.seen, q.credit.places)
	if w == nil {
		l.carryOut()
		return v, nil
	}
	// Before the lock is free: the answer may come at once.
	done := l.forSlots.add(w)
	l.carryOut()
	return v, func() concurrency.Verdict {
		// Should it have been decided since the timer fired, Timeout returns that verdict: no slot is lost.
		if !awaitOne(l, l.forSlots, w, done, p) {
			l.update(func(now time.Time) { l.coresOf(q.user).slots.Timeout(now, w) })
		}
		return w.Verdict
	}
}

// startToken decides about tokens of a dry run at once, or returns how to wait for the verdict.
func (l *limiter) startToken(user string, rates []limits.Rate, p patience) (ratelimit.Verdict, func() ratelimit.Verdict) {
	l.mu.Lock()
	defer l.mu.Unlock()
	// HAProxy hears nothing of dry runs: there is no credit.
	v, w := l.coresOf(user).tokens.Start(l.clock.Now(), user, rates, ratelimit.NoCredit)
	if w == nil {
		l.carryOut()
		return v, nil
	}
	done := l.forTokens.add(w)
	l.carryOut()
	return v, func() ratelimit.Verdict {
		if !awaitOne(l, l.forTokens, w, done, p) {
			l.update(func(now time.Time) { l.coresOf(user).tokens.Timeout(now, w) })
		}
		return w.Verdict
	}
}

type patience struct {
	longest time.Duration
	waits   prometheus.Observer // of seconds; nil: no request waits, as in a dry run
	over    <-chan struct{}     // closed when nobody may wait any longer; nil: never
}

func awaitOne[W comparable](l *limiter, all waiting[W], w W, done <-chan struct{}, p patience) bool {
	began := time.Now()
	if p.waits != nil {
		defer func() { p.waits.Observe(time.Since(began).Seconds()) }()
	}
	timer := time.NewTimer(p.longest)
	defer timer.Stop()
	select {
	case <-done:
		return true
	// The agent ends: a request in line would hold up the end for as long as its user may wait.
	case <-p.over:
	case <-timer.C:
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	all.remove(w)
	return false
}
