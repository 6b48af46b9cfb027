package riverqos

import (
	"context"
	_ "embed"
	"time"

	"github.com/riverqueue/river/rivertype"
)

//go:embed sql/elsewhere.sql
var elsewhereSQL string

// yielding is the time between two questions whether another attempt is still under way.
const yielding = time.Second

// yield waits while another attempt at a job is under way, until the context ends. River
// writes the end of an attempt to the job, whichever attempt is running: the end of this
// one would have River start a third, which would take the slot of the second, and so on.
func (f *Fairness) yield(ctx context.Context, row *rivertype.JobRow) {
	for f.elsewhere(ctx, row) {
		select {
		case <-ctx.Done():
			return
		case <-time.After(yielding):
		}
	}
}

// elsewhere reports whether another attempt at a job is under way, or may be because
// nobody answers. River starts a second one when it has rescued the job of a worker that
// it took for dead, or when the database has lost that the first had begun.
func (f *Fairness) elsewhere(ctx context.Context, row *rivertype.JobRow) (is bool) {
	question, cancel := context.WithTimeout(ctx, finishing)
	defer cancel()
	err := f.cfg.Pool.QueryRow(question, replaceNames(elsewhereSQL, f.cfg.Schema), row.ID, row.AttemptedAt).Scan(&is)
	if err != nil && ctx.Err() == nil {
		f.failed("yield", "nobody knows whether a job that lost its slot runs elsewhere", err)
		return true
	}
	return is
}
