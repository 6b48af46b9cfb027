package jobs

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"
)

var (
	// ErrLeaseLost is the cause of a job's context that ends because its slot is lost: the
	// worker could not renew the lease. The job is tried again, without having spent an
	// attempt.
	ErrLeaseLost = errors.New("the lease of the job's slot is lost")
	// ErrSlotsTaken says that a job has to wait, because its user's slots are taken.
	ErrSlotsTaken = errors.New("the user's slots are taken")
	// ErrSlotsDown says that a job has to wait, because it is not known whether it has a slot.
	ErrSlotsDown = errors.New("the slots do not answer")
)

const (
	// slotsDownDelay is how long a job waits at least when the Slots do not answer; at most it
	// waits twice as long. It never runs without a slot.
	slotsDownDelay = 2 * time.Second
	// acquireTimeout bounds how long a worker waits for the Slots, and before that for the
	// Tiers.
	acquireTimeout = 10 * time.Second
)

// Attempt is a try to run a job.
type Attempt struct {
	User  string // UserKey of the job's user; "" is a job without one, which is governed by nothing
	ID    string // the job's, unique among all jobs of all times in the Slots
	Queue string // its queue: {service}_{class}, or any other name

	// Since is from when on the job could have run, for the metric of waits. The zero time is not
	// known, and not counted. Neither are the waits of later attempts (Retry), which are the job
	// queue's: they would hide how long users wait for slots.
	Since time.Time
	Retry bool
	// Delayed reports whether the job had to wait for a slot before, so that each is counted
	// once. It is called when a slot is refused. nil is no.
	Delayed func(context.Context) bool
	// Released is called when the slot of the attempt was given back, with the user's limits and whether slots were
	// reserved for parked jobs then. That may be later, in Run. nil does nothing.
	Released func(limits Limits, handedOn bool)
}

// Delay is the error of a job that has to wait. The queue keeps the job for so long, and the
// attempt does not count. It wraps ErrSlotsTaken, ErrSlotsDown or ErrLeaseLost, and with the latter
// the job's own error.
type Delay struct {
	For    time.Duration // after which it tries again by itself
	Parked bool          // it is in its user's line, or may be: Queue.Wake calls it before
	Err    error
}

func (d *Delay) Error() string { return fmt.Sprintf("wait up to %v: %v", d.For, d.Err) }

// Unwrap is why the job has to wait.
func (d *Delay) Unwrap() error { return d.Err }

type claimed struct {
	Attempt
	claim      Claim
	tier       Tier
	leaseUntil time.Time // when the lease of a slot that was not given back is over
}

// Work runs a job in a slot of its user, and returns do's error. If there is no slot it does
// not call do and returns a *Delay, as it does if the slot was lost while do failed. When ctx
// ends before the job has begun, Work returns its error. An attempt with an ID or a Queue of more than
// MaxName bytes, or without an ID, fails with ErrInvalid: it could never have a slot.
func (r *Runner) Work(ctx context.Context, attempt Attempt, do func(context.Context) error) error {
	// Jobs of the system have no limit, and nobody's line to wait in.
	if attempt.User == "" || r.cfg.Disabled {
		return do(ctx)
	}
	// The holder differs for each attempt: should the queue start a job twice, the later attempt takes
	// over the slot, and the earlier one learns at its next renewal that it is lost.
	claim := Claim{
		Job:    Job{User: attempt.User, ID: attempt.ID, Queue: serviceOf(attempt.Queue)},
		Holder: r.process + "." + strconv.FormatUint(r.claims.Add(1), 10),
	}
	// The Slots are well, and would refuse it as often as it tries.
	if err := claim.validate(); err != nil {
		return fmt.Errorf("acquire a slot: %w, want names of up to %d bytes", err, MaxName)
	}
	try := claimed{Attempt: attempt, claim: claim, tier: (&TierBudget{r.runnerParts, acquireTimeout}).Tier(ctx, attempt.User)}
	// Read before the call: the lease must not be taken to last longer than it does in the Slots.
	asked := time.Now()
	// Bounded here, because a queue's time-outs begin with the job itself.
	verdict, err := within(ctx, acquireTimeout, func(ctx context.Context) (Verdict, error) {
		return r.cfg.Slots.Acquire(ctx, try.claim, try.tier.Limits, r.cfg.Lease, !r.cfg.Snooze)
	})
	switch {
	// Not granted for all that is known. A job that runs uncounted would break the limit.
	case err != nil:
		return r.slotsDown(ctx, try, err)
	case !verdict.Granted:
		return r.refuse(ctx, try, verdict)
	}
	return r.runInSlot(ctx, try, asked, do)
}

// runInSlot runs a job that has a slot, and gives the slot back however the job ends, also after
// a panic. The lease began when the slot was asked for.
func (r *Runner) runInSlot(ctx context.Context, try claimed, asked time.Time, do func(context.Context) error) error {
	jobContext, cancel := context.WithCancelCause(ctx)
	// Before the job begins: it must not run for a moment without somebody who renews its lease.
	r.leases.addLease(&lease{claim: try.claim, limits: try.tier.Limits, until: asked.Add(r.cfg.Lease), cancel: cancel})
	defer func() {
		// First, or a renewal would report the slot as lost that is just given back.
		r.leases.remove(try.claim.Holder)
		// The job's context may have ended, and the slot has to be given back all the same.
		r.releaser.finish(context.WithoutCancel(jobContext), try)
		cancel(nil)
	}()
	if !try.Since.IsZero() && !try.Retry {
		r.metrics.Waits.WithLabelValues(try.tier.Name, classLabel(try.Queue)).Observe(max(0, time.Since(try.Since).Seconds()))
	}
	err := r.runCounted(jobContext, try, do)
	// A job that lost its slot has not failed, so it is tried again without having spent an attempt.
	if err != nil && errors.Is(context.Cause(jobContext), ErrLeaseLost) {
		return &Delay{For: jitter(slotsDownDelay, slotsDownDelay), Err: fmt.Errorf("%w: %w", ErrLeaseLost, err)}
	}
	return err
}

// runCounted does the job itself, and counts it as running.
func (r *Runner) runCounted(ctx context.Context, try claimed, do func(context.Context) error) error {
	running := r.metrics.Running.WithLabelValues(try.tier.Name, try.Queue)
	running.Inc()
	// A panic is the queue's to handle, and the job does not run any more after one.
	defer running.Dec()
	return do(ctx)
}

func (r *Runner) refuse(ctx context.Context, try claimed, verdict Verdict) error {
	// A slot that is free, and yet refused, is for other jobs of the user, which came before.
	limits, reason := try.tier.Limits, "line"
	switch {
	case verdict.Running >= limits.Total:
		reason = "total"
	case verdict.InQueue >= limits.Of(try.claim.Queue):
		reason = "queue"
	}
	r.metrics.Refused.WithLabelValues(try.tier.Name, reason).Inc()
	// A job that is woken, and refused once more because it came too late, waits for the same slot.
	if try.Delayed == nil || !try.Delayed(ctx) {
		r.CountDelayed(try.tier.Name, try.Queue, 1)
	}
	// Parking was not asked for, or the line is full: nobody will wake the job.
	if verdict.Place == 0 {
		r.metrics.Snoozes.WithLabelValues(try.tier.Name).Inc()
		return &Delay{For: jitter(r.env.Snooze, r.env.Jitter), Err: ErrSlotsTaken}
	}
	// It comes by itself should every wake-up be lost.
	return &Delay{For: jitter(r.cfg.ParkFor, r.cfg.ParkFor/10), Parked: true, Err: ErrSlotsTaken}
}

// slotsDown delays a job if it is not known whether it has a slot.
func (r *Runner) slotsDown(ctx context.Context, try claimed, err error) error {
	// The call may have been heard: then the slot must be given back, or it is lost for a lease. One that is
	// invalid has done nothing.
	if !errors.Is(err, ErrInvalid) {
		r.releaser.releaseLater(try)
	}
	// The worker stops, or the job was cancelled. The queue knows which.
	if ctx.Err() != nil {
		return fmt.Errorf("acquire a slot: %w", ctx.Err())
	}
	r.failures.report("acquire", "the slots do not answer, jobs wait", err)
	r.metrics.Refused.WithLabelValues(try.tier.Name, "unreachable").Inc()
	r.metrics.Snoozes.WithLabelValues(try.tier.Name).Inc()
	// The job may stand in the line. Then a slot may be reserved for it, and it can be woken.
	return &Delay{For: jitter(slotsDownDelay, slotsDownDelay), Parked: !r.cfg.Snooze, Err: ErrSlotsDown}
}

// jitter is least, and up to so much more: jobs that were refused together must not come back together.
func jitter(least, more time.Duration) time.Duration { return least + rand.N(more+1) }
