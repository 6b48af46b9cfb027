package riverqos

import (
	"context"
	"time"

	"github.com/sluice-qos/sluice/pkg/jobs"
)

// finishing bounds the calls at the end of a job. Those that fail are made again later.
const finishing = 5 * time.Second

// end is the end of an attempt at a job.
type end struct {
	claim jobs.Claim
	tier  jobs.Tier
	id    int64
	at    time.Time // when River began it, by the row
	queue string    // name of River's queue
	until time.Time // when the lease of a slot that was not given back is over
}

// finish gives a slot back, wakes the jobs that got it, and lets another through the
// gate.
func (f *Fairness) finish(ctx context.Context, e end) {
	ctx, cancel := context.WithTimeout(ctx, finishing)
	defer cancel()
	if t, ok := f.asker().ask(ctx, e.claim.User); ok { // the limits may have changed while the job ran
		e.tier = t
	}
	if !f.free(ctx, e) {
		f.later(e)
		return
	}
	if !f.cfg.Ungated {
		f.pass(ctx, e)
	}
}

// free reports whether the slot was given back.
func (f *Fairness) free(ctx context.Context, e end) bool {
	handed, err := f.cfg.Slots.Release(ctx, e.claim, e.tier.Limits, f.cfg.Reserve)
	if err != nil {
		f.failed("release", "a slot could not be given back yet", err)
		return false
	}
	f.metrics.Handed.Add(float64(len(handed)))
	f.wake(ctx, handed)
	return true
}

// later has freeLoop give a slot back.
func (f *Fairness) later(e end) {
	e.until = time.Now().Add(f.cfg.Lease)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.unfreed = append(f.unfreed, e)
}

// freeLoop gives slots back whose release failed, until their leases are over.
func (f *Fairness) freeLoop(ctx context.Context) {
	every(ctx, time.Second/2, func() { f.freeAgain(ctx) })
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	f.freeAgain(last) // a slot that is not given back now is free when its lease is over
}

func (f *Fairness) freeAgain(ctx context.Context) {
	f.mu.Lock()
	ends := f.unfreed
	f.unfreed = nil
	f.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, finishing)
	defer cancel()
	for i, e := range ends {
		if time.Now().After(e.until) {
			continue // the slot is free by now
		}
		if !f.free(ctx, e) { // the same Slots would not answer for the others either
			f.mu.Lock()
			f.unfreed = append(ends[i:], f.unfreed...)
			f.mu.Unlock()
			return
		}
		if !f.cfg.Ungated {
			f.pass(ctx, e)
		}
	}
}
