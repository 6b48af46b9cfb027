package riverqos

import (
	"context"
	"errors"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/sluice-qos/sluice/pkg/jobs"
)

// ErrLeaseLost is the cause of a job's context that ends because its slot is lost: the
// worker could not renew the lease. The job is tried again, without having spent an
// attempt.
var ErrLeaseLost = jobs.ErrLeaseLost

type worker struct {
	*resources
	gate *gate
}

// workInSlot runs a job in a slot of its user, or returns what makes River keep it for later.
func (w *worker) workInSlot(ctx context.Context, row *rivertype.JobRow, doInner func(context.Context) error) error {
	// Its metadata is left alone, too.
	if w.runner.Disabled() {
		return doInner(ctx)
	}
	user, marks := w.userKey(row.Kind, row.EncodedArgs, row.Metadata), readMarks(row.Metadata)
	err := w.runner.Work(ctx, w.attempt(user, row, marks), func(ctx context.Context) error {
		// The job came by itself, with the mark of its wait. If it kept that and now sleeps by its
		// own will, it would pass for parked, and be woken too soon.
		if user != "" && marks.Wait != "" {
			if err := river.MetadataSet(ctx, markWait, nil); err != nil {
				return err
			}
		}
		return doInner(ctx)
	})
	return w.answerRiver(ctx, user, row, marks, err)
}

func (w *worker) attempt(user string, row *rivertype.JobRow, marks jobMarks) jobs.Attempt {
	try := jobs.Attempt{
		User: user, ID: w.names.slotsID(row.ID), Queue: row.Queue,
		Since: marks.runnableSince(row.ScheduledAt), Retry: row.Attempt > 1,
		Delayed: func(context.Context) bool { return marks.Delayed },
	}
	if !w.cfg.Ungated {
		try.Released = func(limits jobs.Limits, handedOn bool) { w.gate.replaceEnded(flow{user, row.Queue}, limits, handedOn) }
	}
	return try
}

// answerRiver turns the error of a job, or its delay, into what River understands.
func (w *worker) answerRiver(ctx context.Context, user string, row *rivertype.JobRow, marks jobMarks, err error) error {
	// Nothing of a job without a user is Sluice's to change.
	if err == nil || user == "" {
		return err
	}
	delay := new(jobs.Delay)
	delayed := errors.As(err, &delay)
	lost := errors.Is(err, ErrLeaseLost) && delayed
	// Before River hears of this attempt's end, which it would write over the other attempt's.
	if lost {
		w.waitForOtherAttempt(ctx, row)
	}
	// The job sleeps by its own will. Its wait for a slot is over, and the next one begins anew.
	if snooze := new(river.JobSnoozeError); errors.As(err, &snooze) {
		return errors.Join(river.MetadataSet(ctx, markSince, nil), snooze)
	}
	// One that has cancelled itself is not needed any more, with or without a slot.
	if cancel := new(river.JobCancelError); !delayed || errors.As(err, &cancel) {
		return err
	}
	// A job that lost its slot did not wait for one.
	if !lost {
		if err := w.markDelayed(ctx, user, row, marks, delay); err != nil {
			return err
		}
	}
	// A snooze spends no attempt.
	return river.JobSnooze(delay.For)
}

// markDelayed keeps the time from which on a job could have run, and marks one that is parked as
// one that may be woken. River writes the marks in the same statement that makes the job
// scheduled, some time after this.
func (w *worker) markDelayed(ctx context.Context, user string, row *rivertype.JobRow, marks jobMarks, delay *jobs.Delay) error {
	set := map[string]any{markSince: seconds(marks.runnableSince(row.ScheduledAt))}
	if errors.Is(delay, jobs.ErrSlotsTaken) {
		set[markDelayed] = true
	}
	if delay.Parked {
		set[markWait], set[markUser] = parked, user
	}
	for mark, value := range set {
		if err := river.MetadataSet(ctx, mark, value); err != nil {
			return err
		}
	}
	return nil
}
