package riverqos

import (
	"context"
	"time"

	"github.com/riverqueue/river/rivertype"
)

// yieldInterval is the time between two questions whether another attempt is still under way.
const yieldInterval = time.Second

// waitForOtherAttempt waits while another attempt at a job is under way, until the context
// ends. River writes the end of an attempt to the job, whichever attempt is running: the end
// of this one would have River start a third, which would take the slot of the second, and
// so on.
func (w *worker) waitForOtherAttempt(ctx context.Context, row *rivertype.JobRow) {
	// Polled, for River tells nobody when an attempt ends, and this happens after failures only.
	for w.runsElsewhere(ctx, row) {
		select {
		case <-ctx.Done():
			return
		case <-time.After(yieldInterval):
		}
	}
}

// runsElsewhere reports whether another attempt at a job is under way, or may be because
// nobody answers. River starts a second one when it has rescued the job of a worker that
// it took for dead, or when the database has lost that the first had begun.
func (w *worker) runsElsewhere(ctx context.Context, row *rivertype.JobRow) (is bool) {
	question, cancel := context.WithTimeout(ctx, w.store.answerTimeout)
	defer cancel()
	err := w.store.queryRow(question, "elsewhere", row.ID, row.AttemptedAt).Scan(&is)
	if err != nil && ctx.Err() == nil {
		w.runner.Report("yield", "it could not be found out whether a job that lost its slot runs elsewhere", err)
		// Waiting costs time, and ending too soon may start a third attempt.
		return true
	}
	return is
}
