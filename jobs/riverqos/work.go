package riverqos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/sluice-qos/sluice/pkg/jobs"
)

// ErrLeaseLost is the cause of a job's context that ends because its slot is lost: the
// worker could not renew the lease. The job is tried again, without having spent an
// attempt.
var ErrLeaseLost = errors.New("the lease of the job's slot is lost")

// outage is how long a job waits at least when the Slots do not answer; at most it waits
// twice as long. It never runs without a slot.
const outage = 2 * time.Second

// acquiring bounds how long a worker waits for the Slots, and before that for the Tiers.
const acquiring = 10 * time.Second

// middleware is River's middleware for workers and for inserts.
type middleware struct {
	river.MiddlewareDefaults
	*Fairness
}

var (
	_ rivertype.WorkerMiddleware    = (*middleware)(nil)
	_ rivertype.JobInsertMiddleware = (*middleware)(nil)
)

// Work runs a job in a slot of its user, or returns what makes River keep it for later.
func (f *middleware) Work(ctx context.Context, row *rivertype.JobRow, doInner func(context.Context) error) error {
	if f.cfg.Disabled {
		return doInner(ctx)
	}
	user := f.key(row.Kind, row.EncodedArgs, row.Metadata)
	if user == "" {
		return doInner(ctx)
	}
	tier := f.tierFor(ctx, user)
	claim := jobs.Claim{
		Job:    f.job(user, row.ID, service(row.Queue)),
		Holder: f.process + "." + strconv.FormatUint(f.claims.Add(1), 10),
	}
	e := end{claim: claim, tier: tier, id: row.ID, queue: row.Queue}
	if row.AttemptedAt != nil {
		e.at = *row.AttemptedAt
	}
	asked := time.Now()
	v, err := f.acquire(ctx, claim, tier.Limits)
	switch {
	case err != nil:
		return f.unknown(ctx, row, e, err)
	case !v.Granted:
		return f.refuse(ctx, row, claim, tier, v)
	}
	return f.run(ctx, row, e, asked, doInner)
}

// tierFor is tier with a time-out, which holds if the Tiers heed their context. It is
// needed because River's own time-outs begin with the job itself.
func (f *Fairness) tierFor(ctx context.Context, user string) jobs.Tier {
	ctx, cancel := context.WithTimeout(ctx, acquiring)
	defer cancel()
	return f.tier(ctx, user)
}

// acquire is Slots.Acquire with a time-out, for the same reason.
func (f *Fairness) acquire(ctx context.Context, c jobs.Claim, l jobs.Limits) (jobs.Verdict, error) {
	ctx, cancel := context.WithTimeout(ctx, acquiring)
	defer cancel()
	return f.cfg.Slots.Acquire(ctx, c, l, f.cfg.Lease, f.cfg.Mode == Park)
}

// run does a job that has a slot, and gives the slot back however the job ends, also after
// a panic.
func (f *Fairness) run(ctx context.Context, row *rivertype.JobRow, e end, asked time.Time, doInner func(context.Context) error) error {
	outer := ctx
	ctx, cancel := context.WithCancelCause(ctx)
	f.held.add(&lease{claim: e.claim, limits: e.tier.Limits, until: asked.Add(f.cfg.Lease), cancel: cancel}, f.lose)
	defer func() {
		f.held.remove(e.claim.Holder)
		f.finish(context.WithoutCancel(ctx), e)
		cancel(nil)
	}()

	n := read(row.Metadata)
	if row.Attempt <= 1 { // the waits of later attempts are River's
		f.metrics.Waits.WithLabelValues(e.tier.Name).Observe(max(0, time.Since(n.since(row.ScheduledAt)).Seconds()))
	}
	if n.Wait != "" { // the job came by itself, with the mark of its wait
		if err := river.MetadataSet(ctx, markWait, nil); err != nil {
			return err
		}
	}
	err := f.counted(ctx, e.tier.Name, doInner)
	if err == nil {
		return nil
	}
	lost := errors.Is(context.Cause(ctx), ErrLeaseLost)
	if lost {
		f.yield(outer, row)
	}
	if snooze := new(river.JobSnoozeError); errors.As(err, &snooze) { // the job's own: its wait for a slot is over
		return errors.Join(river.MetadataSet(ctx, markSince, nil), err)
	}
	// A job that lost its slot has not failed, so it is tried again without having spent an
	// attempt.
	if stop := new(river.JobCancelError); lost && !errors.As(err, &stop) {
		return river.JobSnooze(jitter(outage, outage))
	}
	return err
}

// counted does the job itself.
func (f *Fairness) counted(ctx context.Context, tier string, doInner func(context.Context) error) error {
	running := f.metrics.Running.WithLabelValues(tier)
	running.Inc()
	defer running.Dec()
	return doInner(ctx)
}

// refuse keeps a job that got no slot for later.
func (f *Fairness) refuse(ctx context.Context, row *rivertype.JobRow, c jobs.Claim, t jobs.Tier, v jobs.Verdict) error {
	reason := "line" // other jobs of the user are before it
	switch {
	case v.Running >= t.Limits.Total:
		reason = "total"
	case v.InQueue >= t.Limits.Of(c.Queue):
		reason = "queue"
	}
	f.metrics.Refused.WithLabelValues(t.Name, reason).Inc()
	if v.Place == 0 {
		return f.snooze(ctx, row, c, t, f.cfg.Snooze, f.cfg.SnoozeJitter)
	}
	if err := f.park(ctx, row, c); err != nil {
		return err
	}
	return river.JobSnooze(jitter(f.cfg.ParkFor, f.cfg.ParkFor/10))
}

// snooze lets a job come back by itself.
func (f *Fairness) snooze(ctx context.Context, row *rivertype.JobRow, c jobs.Claim, t jobs.Tier, d, more time.Duration) error {
	f.metrics.Snoozes.WithLabelValues(t.Name).Inc()
	if err := river.MetadataSet(ctx, markSince, seconds(read(row.Metadata).since(row.ScheduledAt))); err != nil {
		return err
	}
	return river.JobSnooze(jitter(d, more))
}

// park marks a job as one that the waker may wake. River writes the mark in the same
// statement that makes the job scheduled, some time after this.
func (f *Fairness) park(ctx context.Context, row *rivertype.JobRow, c jobs.Claim) error {
	return errors.Join(
		river.MetadataSet(ctx, markWait, parked),
		river.MetadataSet(ctx, markUser, c.User),
		river.MetadataSet(ctx, markSince, seconds(read(row.Metadata).since(row.ScheduledAt))),
	)
}

// unknown keeps a job for later if it is not known whether it has a slot.
func (f *Fairness) unknown(ctx context.Context, row *rivertype.JobRow, e end, err error) error {
	f.later(e)            // the call may have been heard: then the slot must be given back
	if ctx.Err() != nil { // the worker stops, or the job was cancelled: River knows which
		return fmt.Errorf("acquire a slot: %w", ctx.Err())
	}
	f.failed("acquire", "the slots do not answer, jobs wait", err)
	f.metrics.Refused.WithLabelValues(e.tier.Name, "unreachable").Inc()
	if f.cfg.Mode == Park { // the job may stand in the line, and then it must be possible to wake it
		if err := f.park(ctx, row, e.claim); err != nil {
			return err
		}
	}
	return f.snooze(ctx, row, e.claim, e.tier, outage, outage)
}

func jitter(d, more time.Duration) time.Duration { return d + rand.N(more+1) }
