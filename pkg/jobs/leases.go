package jobs

import (
	"context"
	"slices"
	"sync"
	"time"
)

// renewBatch bounds the claims of one call of Renew.
const renewBatch = 500

// lease is the lease of the slot of a job that runs in this process. The lock of leases
// guards the fields that change.
type lease struct {
	claim  Claim
	limits Limits
	until  time.Time // until when the lease surely lasts
	timer  *time.Timer
	cancel context.CancelCauseFunc
}

// leases keep the slots of the jobs that run in this process, and end the jobs whose slots
// are lost.
type leases struct {
	*runnerParts
	releaser *releaser

	mu       sync.Mutex
	byHolder map[string]*lease
}

// addLease keeps a lease until remove. The job ends when the lease may have ended. That needs no
// loop, so that also in a program that does not call Run no job goes on without a slot.
func (l *leases) addLease(held *lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.byHolder[held.claim.Holder] = held
	held.timer = time.AfterFunc(time.Until(held.until), func() {
		if l.removeEnded(held) {
			l.endJob(held)
		}
	})
}

// removeEnded removes a lease that is over, and reports whether it did.
func (l *leases) removeEnded(held *lease) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	// The job has ended, just before the timer did: its slot was given back, not lost.
	if l.byHolder[held.claim.Holder] != held {
		return false
	}
	// It was renewed. A renewal does not touch the timer, because there are many of them and
	// few ends.
	if left := time.Until(held.until); left > 0 {
		held.timer.Reset(left)
		return false
	}
	delete(l.byHolder, held.claim.Holder)
	return true
}

func (l *leases) remove(holder string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	held := l.byHolder[holder]
	if held == nil {
		return false
	}
	held.timer.Stop()
	delete(l.byHolder, holder)
	return true
}

func (l *leases) claims() []Claim {
	l.mu.Lock()
	defer l.mu.Unlock()
	claims := make([]Claim, 0, len(l.byHolder))
	for _, held := range l.byHolder {
		claims = append(claims, held.claim)
	}
	return claims
}

// prolong notes that the leases of claims were renewed, and returns those that are lost. A job may have ended while the
// renewal was under way.
func (l *leases) prolong(claims, lost []Claim, until time.Time) (ended []*lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, claim := range claims {
		held := l.byHolder[claim.Holder]
		if held == nil {
			continue
		}
		if slices.Contains(lost, claim) {
			ended = append(ended, held)
		} else {
			held.until = until
		}
	}
	return ended
}

// runRenewals keeps the leases of running jobs until the context ends, which must be after the last
// job. A renewal that fails is tried again soon, so that no job ends if the Slots stand
// still for less than about half of a lease.
func (l *leases) runRenewals(ctx context.Context) {
	// A call may hang for Lease/4 (see renewClaims). With the interval that is 7/12 of the
	// lease, so that there is time for a second call that hangs, and one that succeeds.
	interval, soon := l.cfg.Lease/3, l.cfg.Lease/20
	timer := time.NewTimer(interval)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		began, next := time.Now(), soon
		if l.renewAll(ctx) {
			next = max(soon, interval-time.Since(began))
		}
		timer.Reset(next)
	}
}

// renewAll reports whether all leases could be renewed, or are known to be lost.
func (l *leases) renewAll(ctx context.Context) bool {
	all := true
	for claims := range slices.Chunk(l.claims(), renewBatch) {
		// A batch that fails must not keep the others from being renewed.
		all = l.renewClaims(ctx, claims) && all
	}
	return all
}

func (l *leases) renewClaims(ctx context.Context, claims []Claim) bool {
	ctx, cancel := context.WithTimeout(ctx, l.cfg.Lease/4)
	defer cancel()
	// The lease begins when the Slots hear this, which is not earlier.
	asked := time.Now()
	lost, err := l.cfg.Slots.Renew(ctx, claims, l.cfg.Lease)
	if err != nil {
		l.failures.report("renew", "leases could not be renewed", err)
		return false
	}
	// The Slots may have lost their memory: then no other job has these slots either.
	for _, held := range l.prolong(claims, lost, asked.Add(l.cfg.Lease)) {
		if !l.regain(ctx, held) && l.remove(held.claim.Holder) {
			l.endJob(held)
		}
	}
	return true
}

// regain takes a new slot for a job that runs and has lost its own, for instance because
// the Slots have lost their memory. It does not if the job runs elsewhere by now, or there
// is no room.
func (l *leases) regain(ctx context.Context, held *lease) bool {
	usage, err := l.cfg.Slots.User(ctx, held.claim.User)
	// Whether it runs elsewhere is not known, and two attempts at a time are worse than none.
	if err != nil {
		return false
	}
	// To acquire the slot of a job that runs elsewhere would take it from the other attempt.
	for _, slot := range usage.Held {
		if slot.ID == held.claim.ID {
			return slot.Holder == held.claim.Holder
		}
	}
	// Not parked: a job that runs has no use for a place in a line.
	asked := time.Now()
	verdict, err := l.cfg.Slots.Acquire(ctx, held.claim, held.limits, l.cfg.Lease, false)
	if err != nil || !verdict.Granted {
		return false
	}
	l.mu.Lock()
	held.until = asked.Add(l.cfg.Lease)
	gone := l.byHolder[held.claim.Holder] == nil
	l.mu.Unlock()
	// The job ended meanwhile, gave back the slot it had lost, and nobody gives this one back.
	if gone {
		l.releaser.releaseLater(claimed{claim: held.claim, tier: Tier{Limits: held.limits}})
	}
	return true
}

// endJob ends a job's context: its slot is lost, and another job may have it.
func (l *leases) endJob(held *lease) {
	l.metrics.Lost.Inc()
	l.cfg.Logger.Warn("a job lost its slot", "job", held.claim.ID)
	held.cancel(ErrLeaseLost)
}
