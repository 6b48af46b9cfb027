package jobs

import (
	"context"
	"errors"
	"fmt"
	"time"
)

const (
	// finishTimeout bounds the calls at the end of a job. Those that fail are made again
	// later.
	finishTimeout = 5 * time.Second
	// releaseInterval is the time between two tries to give slots back.
	releaseInterval = time.Second / 2
	// maxUnreleased bounds the slots that a process tries to give back. Those beyond are free
	// when their leases are over.
	maxUnreleased = 10_000
	// lastReleaseTimeout bounds the try to give slots back when Run ends. A slot that is not
	// given back then is free when its lease is over.
	lastReleaseTimeout = time.Second
)

var errUnreleased = fmt.Errorf("%d slots could not be given back yet", maxUnreleased)

// releaser gives slots back when attempts end, and what became free to the next jobs.
type releaser struct {
	*runnerParts
	waker      *waker
	unreleased chan claimed // whose release failed
}

// finish gives a slot back, and wakes the jobs that got it.
func (r *releaser) finish(ctx context.Context, ended claimed) {
	ctx, cancel := context.WithTimeout(ctx, finishTimeout)
	defer cancel()
	// The limits may have changed while the job ran, and the slot goes to the next job by
	// those of now. Without an answer the old ones are the best that is known.
	if tier, ok := r.Budget().askTier(ctx, ended.claim.User); ok {
		ended.tier = tier
	}
	// The worker does not wait for Slots that do not answer: it has other jobs to run.
	if !r.release(ctx, ended) {
		r.releaseLater(ended)
	}
}

func (r *releaser) release(ctx context.Context, ended claimed) bool {
	reserved, err := r.cfg.Slots.Release(ctx, ended.claim, ended.tier.Limits, r.cfg.Reserve)
	// It fails as often as it is tried, and the slots after it can be given back.
	if errors.Is(err, ErrInvalid) {
		r.failures.report("release", "a slot is left to its lease, because it cannot be given back", err)
		return true
	}
	if err != nil {
		r.failures.report("release", "a slot could not be given back yet", err)
		return false
	}
	r.metrics.Reserved.Add(float64(len(reserved)))
	r.waker.wakeReserved(ctx, reserved)
	// Only now: the jobs that were woken come before those that an adapter lets in.
	if ended.Released != nil {
		ended.Released(ended.tier.Limits, len(reserved) > 0)
	}
	return true
}

func (r *releaser) releaseLater(ended claimed) {
	ended.leaseUntil = time.Now().Add(r.cfg.Lease)
	r.keep(ended)
}

func (r *releaser) keep(ended claimed) {
	select {
	case r.unreleased <- ended:
	default:
		r.failures.report("release", "a slot is left to its lease, because too many are to be given back", errUnreleased)
	}
}

// runReleases gives slots back whose release failed, until their leases are over.
func (r *releaser) runReleases(ctx context.Context) {
	callEvery(ctx, releaseInterval, func() { r.releaseAgain(ctx) })
	// The context has ended, and the slots that are still held would be lost for a lease.
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastReleaseTimeout)
	defer cancel()
	r.releaseAgain(last)
}

func (r *releaser) releaseAgain(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, finishTimeout)
	defer cancel()
	answers := true
	for range len(r.unreleased) {
		ended := <-r.unreleased
		switch {
		// The slot is free by now, and may be another job's.
		case time.Now().After(ended.leaseUntil):
		// The same Slots would not answer for the others either.
		case !answers:
			r.keep(ended)
		case !r.release(ctx, ended):
			answers = false
			r.keep(ended)
		}
	}
}
