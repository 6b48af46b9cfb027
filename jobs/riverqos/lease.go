package riverqos

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/sluice-qos/sluice/pkg/jobs"
)

// renewing bounds the claims of one call of Renew.
const renewing = 500

// lease is the lease of the slot of a job that runs in this process. The lock of leases
// guards the fields that change.
type lease struct {
	claim  jobs.Claim
	limits jobs.Limits
	until  time.Time // until when the lease surely lasts
	timer  *time.Timer
	cancel context.CancelCauseFunc
}

// leases are the leases of this process.
type leases struct {
	mu sync.Mutex
	of map[string]*lease // by holder
}

// add calls over when the lease may have ended, unless the lease is removed before. It
// needs no loop, so that also in a program that does not call Run no job goes on without a
// slot.
func (l *leases) add(e *lease, over func(*lease)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.of == nil {
		l.of = map[string]*lease{}
	}
	l.of[e.claim.Holder] = e
	e.timer = time.AfterFunc(time.Until(e.until), func() {
		if l.ends(e) {
			over(e)
		}
	})
}

// ends removes a lease that is over, and reports whether it did.
func (l *leases) ends(e *lease) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.of[e.claim.Holder] != e {
		return false
	}
	if left := time.Until(e.until); left > 0 { // it was renewed
		e.timer.Reset(left)
		return false
	}
	delete(l.of, e.claim.Holder)
	return true
}

// remove reports whether the lease was there.
func (l *leases) remove(holder string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.of[holder]
	if e == nil {
		return false
	}
	e.timer.Stop()
	delete(l.of, holder)
	return true
}

func (l *leases) claims() []jobs.Claim {
	l.mu.Lock()
	defer l.mu.Unlock()
	claims := make([]jobs.Claim, 0, len(l.of))
	for _, e := range l.of {
		claims = append(claims, e.claim)
	}
	return claims
}

// renewed prolongs the leases of claims.
func (l *leases) renewed(claims []jobs.Claim, until time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range claims {
		if e := l.of[c.Holder]; e != nil {
			e.until = until
		}
	}
}

func (l *leases) get(holder string) *lease {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.of[holder]
}

// renewLoop keeps the leases of running jobs until the context ends, which must be after
// the last job. A renewal that fails is tried again soon, so that no job ends if the Slots
// stand still for less than about half of a lease.
func (f *Fairness) renewLoop(ctx context.Context) {
	soon := f.cfg.Lease / 20
	timer := time.NewTimer(f.cfg.Lease / 3)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		began, next := time.Now(), soon
		if f.renewAll(ctx) {
			next = max(soon, f.cfg.Lease/3-time.Since(began))
		}
		timer.Reset(next)
	}
}

// renewAll reports whether all leases could be renewed, or are known to be lost.
func (f *Fairness) renewAll(ctx context.Context) bool {
	all := true
	for claims := range slices.Chunk(f.held.claims(), renewing) {
		all = f.renew(ctx, claims) && all
	}
	return all
}

func (f *Fairness) renew(ctx context.Context, claims []jobs.Claim) bool {
	ctx, cancel := context.WithTimeout(ctx, f.cfg.Lease/4)
	defer cancel()
	asked := time.Now() // the lease begins when the Slots hear this, which is not earlier
	lost, err := f.cfg.Slots.Renew(ctx, claims, f.cfg.Lease)
	if err != nil {
		f.failed("renew", "leases could not be renewed", err)
		return false
	}
	gone := map[string]bool{}
	for _, c := range lost {
		gone[c.Holder] = true
	}
	kept := claims[:0:0]
	for _, c := range claims {
		if !gone[c.Holder] {
			kept = append(kept, c)
		}
	}
	f.held.renewed(kept, asked.Add(f.cfg.Lease))
	for _, c := range lost {
		if e := f.held.get(c.Holder); e != nil && !f.regain(ctx, e) && f.held.remove(c.Holder) {
			f.lose(e)
		}
	}
	return true
}

// regain takes a new slot for a job that runs and has lost its own, for instance because
// the Slots have lost their memory. It does not if the job runs elsewhere by now, or there
// is no room.
func (f *Fairness) regain(ctx context.Context, e *lease) bool {
	usage, err := f.cfg.Slots.User(ctx, e.claim.User)
	if err != nil {
		return false
	}
	for _, s := range usage.Held {
		if s.ID == e.claim.ID {
			return s.Holder == e.claim.Holder
		}
	}
	asked := time.Now()
	v, err := f.cfg.Slots.Acquire(ctx, e.claim, e.limits, f.cfg.Lease, false)
	if err != nil || !v.Granted {
		return false
	}
	f.held.renewed([]jobs.Claim{e.claim}, asked.Add(f.cfg.Lease))
	if f.held.get(e.claim.Holder) == nil { // the job ended meanwhile, and nobody else gives this slot back
		f.later(end{claim: e.claim, tier: jobs.Tier{Limits: e.limits}})
	}
	return true
}

// lose ends a job's context: its slot is lost, and another job may have it.
func (f *Fairness) lose(e *lease) {
	f.metrics.Lost.Inc()
	f.log.Warn("a job lost its slot", "job", e.claim.ID)
	e.cancel(ErrLeaseLost)
}
