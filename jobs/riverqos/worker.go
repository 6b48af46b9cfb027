package riverqos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/sluice-qos/sluice/pkg/jobs"
)

// ErrLeaseLost is the cause of a job's context that ends because its slot is lost: the
// worker could not renew the lease. The job is tried again, without having spent an
// attempt.
var ErrLeaseLost = errors.New("the lease of the job's slot is lost")

const (
	// slotsDownSnooze is how long a job waits at least when the Slots do not answer; at most it
	// waits twice as long. It never runs without a slot.
	slotsDownSnooze = 2 * time.Second
	// acquireTimeout bounds how long a worker waits for the Slots, and before that for the
	// Tiers.
	acquireTimeout = 10 * time.Second
)

// worker runs jobs in slots of their users.
type worker struct {
	*resources
	leases   *leases
	releaser *releaser
	process  string        // begins the names of this process's claims
	claims   atomic.Uint64 // so far
}

// workInSlot runs a job in a slot of its user, or returns what makes River keep it for later.
func (w *worker) workInSlot(ctx context.Context, row *rivertype.JobRow, doInner func(context.Context) error) error {
	// No slot is asked for then, so that jobs run also when the Slots do not answer.
	if w.cfg.Disabled {
		return doInner(ctx)
	}
	user := w.userKey(row.Kind, row.EncodedArgs, row.Metadata)
	// Jobs of the system have no limit, and nobody's line to wait in.
	if user == "" {
		return doInner(ctx)
	}
	// The holder differs for each attempt: should River start a job twice, the later attempt
	// takes over the slot, and the earlier one learns at its next renewal that it is lost.
	try := claimedAttempt{
		attempt: attempt{id: row.ID},
		claim: jobs.Claim{
			Job:    w.names.slotsJob(user, row.ID, service(row.Queue)),
			Holder: w.process + "." + strconv.FormatUint(w.claims.Add(1), 10),
		},
		tier:  (&tierBudget{w.tiers, acquireTimeout}).tierOf(ctx, user),
		queue: row.Queue,
	}
	// With the id it names the attempt: River keeps the row when it tries the job again.
	if row.AttemptedAt != nil {
		try.attemptedAt = *row.AttemptedAt
	}
	// Read before the call: the lease must not be taken to last longer than it does in the Slots.
	asked := time.Now()
	// Bounded here, because River's own time-outs begin with the job itself.
	verdict, err := within(ctx, acquireTimeout, func(ctx context.Context) (jobs.Verdict, error) {
		return w.cfg.Slots.Acquire(ctx, try.claim, try.tier.Limits, w.cfg.Lease, w.cfg.Mode == Park)
	})
	switch {
	// Not granted for all that is known. A job that runs uncounted would break the limit.
	case err != nil:
		return w.slotsDown(ctx, row, try, err)
	case !verdict.Granted:
		return w.refuse(ctx, row, try, verdict)
	}
	return w.runInSlot(ctx, row, try, asked, doInner)
}

// runInSlot runs a job that has a slot, and gives the slot back however the job ends, also after
// a panic. The lease began when the slot was asked for.
func (w *worker) runInSlot(ctx context.Context, row *rivertype.JobRow, try claimedAttempt, asked time.Time, doInner func(context.Context) error) error {
	jobContext, cancel := context.WithCancelCause(ctx)
	// Before the job begins: it must not run for a moment without somebody who renews its lease.
	w.leases.addLease(&lease{claim: try.claim, limits: try.tier.Limits, until: asked.Add(w.cfg.Lease), cancel: cancel})
	defer func() {
		// First, or a renewal would report the slot as lost that is just given back.
		w.leases.remove(try.claim.Holder)
		// The job's context may have ended, and the slot has to be given back all the same.
		w.releaser.finish(context.WithoutCancel(jobContext), try)
		cancel(nil)
	}()

	marks := readMarks(row.Metadata)
	// The waits of later attempts are River's: they would hide how long users wait for slots.
	if row.Attempt <= 1 {
		w.metrics.Waits.WithLabelValues(try.tier.Name).Observe(max(0, time.Since(marks.runnableSince(row.ScheduledAt)).Seconds()))
	}
	// The job came by itself, with the mark of its wait. If it kept that and now sleeps by its
	// own will, it would pass for parked, and be woken too soon.
	if marks.Wait != "" {
		if err := river.MetadataSet(jobContext, markWait, nil); err != nil {
			return err
		}
	}
	err := w.runCounted(jobContext, try.tier.Name, doInner)
	if err == nil {
		return nil
	}
	lost := errors.Is(context.Cause(jobContext), ErrLeaseLost)
	// Before River hears of this attempt's end, which it would write over the other attempt's.
	if lost {
		w.waitForOtherAttempt(ctx, row)
	}
	// The job sleeps by its own will. Its wait for a slot is over, and the next one begins anew.
	if snooze := new(river.JobSnoozeError); errors.As(err, &snooze) {
		return errors.Join(river.MetadataSet(jobContext, markSince, nil), err)
	}
	// A job that lost its slot has not failed, so it is tried again without having spent an
	// attempt. One that has cancelled itself is not needed any more, with or without a slot.
	if stop := new(river.JobCancelError); lost && !errors.As(err, &stop) {
		return river.JobSnooze(jitter(slotsDownSnooze, slotsDownSnooze))
	}
	return err
}

// runCounted does the job itself, and counts it as running.
func (w *worker) runCounted(ctx context.Context, tier string, doInner func(context.Context) error) error {
	running := w.metrics.Running.WithLabelValues(tier)
	running.Inc()
	// A panic is River's to handle, and the job does not run any more after one.
	defer running.Dec()
	return doInner(ctx)
}

// refuse keeps a job that got no slot for later.
func (w *worker) refuse(ctx context.Context, row *rivertype.JobRow, try claimedAttempt, verdict jobs.Verdict) error {
	// A slot that is free, and yet refused, is for other jobs of the user, which came before.
	limits, reason := try.tier.Limits, "line"
	switch {
	case verdict.Running >= limits.Total:
		reason = "total"
	case verdict.InQueue >= limits.Of(try.claim.Queue):
		reason = "queue"
	}
	w.metrics.Refused.WithLabelValues(try.tier.Name, reason).Inc()
	// Parking was not asked for, or the line is full: nobody will wake the job.
	if verdict.Place == 0 {
		return w.snooze(ctx, row, try, w.cfg.Snooze, w.cfg.SnoozeJitter)
	}
	if err := w.parkJob(ctx, row, try); err != nil {
		return err
	}
	// A snooze spends no attempt. It ends by itself should every wake-up be lost.
	return river.JobSnooze(jitter(w.cfg.ParkFor, w.cfg.ParkFor/10))
}

// snooze lets a job come back by itself.
func (w *worker) snooze(ctx context.Context, row *rivertype.JobRow, try claimedAttempt, least, more time.Duration) error {
	w.metrics.Snoozes.WithLabelValues(try.tier.Name).Inc()
	if err := w.markSince(ctx, row); err != nil {
		return err
	}
	return river.JobSnooze(jitter(least, more))
}

// parkJob marks a job as one that the waker may wake. River writes the mark in the same
// statement that makes the job scheduled, some time after this.
func (w *worker) parkJob(ctx context.Context, row *rivertype.JobRow, try claimedAttempt) error {
	return errors.Join(
		river.MetadataSet(ctx, markWait, parked),
		river.MetadataSet(ctx, markUser, try.claim.User),
		w.markSince(ctx, row),
	)
}

// markSince keeps the time from which on a job could have run.
func (w *worker) markSince(ctx context.Context, row *rivertype.JobRow) error {
	return river.MetadataSet(ctx, markSince, seconds(readMarks(row.Metadata).runnableSince(row.ScheduledAt)))
}

// slotsDown keeps a job for later if it is not known whether it has a slot.
func (w *worker) slotsDown(ctx context.Context, row *rivertype.JobRow, try claimedAttempt, err error) error {
	// The call may have been heard: then the slot must be given back, or it is lost for a lease.
	w.releaser.releaseLater(try)
	// The worker stops, or the job was cancelled. River knows which, and writes it.
	if ctx.Err() != nil {
		return fmt.Errorf("acquire a slot: %w", ctx.Err())
	}
	w.failures.report("acquire", "the slots do not answer, jobs wait", err)
	w.metrics.Refused.WithLabelValues(try.tier.Name, "unreachable").Inc()
	// The job may stand in the line. Then a slot may be reserved for it, and without the mark
	// nobody could wake it.
	if w.cfg.Mode == Park {
		if err := w.parkJob(ctx, row, try); err != nil {
			return err
		}
	}
	return w.snooze(ctx, row, try, slotsDownSnooze, slotsDownSnooze)
}

// jitter is least, and up to so much more: jobs that were refused together must not come back together.
func jitter(least, more time.Duration) time.Duration { return least + rand.N(more+1) }
