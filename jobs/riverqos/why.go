package riverqos

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sluice-qos/sluice/pkg/jobs"
)

// ErrNoJob says that River has no job with this id (any more).
var ErrNoJob = errors.New("no such job")

// Why tells what a job is waiting for. The error is ErrNoJob if there is none.
func (f *Fairness) Why(ctx context.Context, id int64) (jobs.Why, error) {
	w := jobs.Why{ID: id}
	var args, metadata string
	var now time.Time
	err := f.cfg.Pool.QueryRow(ctx, f.db.whySQL, id).
		Scan(&w.State, &w.Kind, &w.Queue, &w.Attempt, &w.Created, &w.ScheduledAt, &args, &metadata, &now)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return jobs.Why{}, ErrNoJob
	case err != nil:
		return jobs.Why{}, fmt.Errorf("read job %d: %w", id, err)
	}
	n := read([]byte(metadata))
	w.Since = n.since(w.ScheduledAt)
	if w.State == "scheduled" && (n.Wait == parked || n.Wait == gated) {
		w.State = n.Wait
	}
	if w.User = f.key(w.Kind, []byte(args), []byte(metadata)); w.User != "" {
		if err := f.whose(ctx, &w); err != nil {
			return jobs.Why{}, err
		}
	}
	w.Reason = reason(w, now, f.cfg.Disabled, f.job(w.User, id, "").ID)
	return w, nil
}

// whose adds what there is of the job's user.
func (f *Fairness) whose(ctx context.Context, w *jobs.Why) error {
	tier := f.tier(ctx, w.User)
	w.Tier, w.Service, w.Max, w.Queues = tier.Name, service(w.Queue), tier.Limits.Total, tier.Limits.Queues
	usage, err := f.cfg.Slots.User(ctx, w.User)
	if err != nil {
		return fmt.Errorf("slots of job %d's user: %w", w.ID, err)
	}
	for _, s := range usage.Held {
		w.Running = append(w.Running, s.ID)
	}
	for _, s := range usage.Reserved {
		w.Reserved = append(w.Reserved, s.ID)
	}
	w.Parked = len(usage.Parked)
	for i, j := range usage.Parked {
		if j.ID == f.job(w.User, w.ID, "").ID {
			w.Place = i + 1
		}
	}
	if w.State != gated {
		return nil
	}
	if err := f.cfg.Pool.QueryRow(ctx, f.db.aheadSQL, w.User, w.Queue, w.ID).Scan(&w.Behind); err != nil {
		return fmt.Errorf("jobs before job %d: %w", w.ID, err)
	}
	return nil
}

func reason(w jobs.Why, now time.Time, disabled bool, job string) string {
	most := w.Max
	if n, ok := w.Queues[w.Service]; ok {
		most = min(most, n)
	}
	switch {
	case w.State == "running" && w.User != "" && !slices.Contains(w.Running, job):
		return "River says that it runs, but it has no slot: it has just been fetched or has just ended, or its worker is dead."
	case w.State == "running":
		return "It runs."
	case w.State == "completed", w.State == "cancelled", w.State == "discarded":
		return "It has finished: it is " + w.State + "."
	case w.State == "retryable":
		return fmt.Sprintf("Its last attempt failed, and River tries again at %s.", w.ScheduledAt.UTC().Format(time.RFC3339))
	case w.State == "scheduled":
		return fmt.Sprintf("It is scheduled for %s.", w.ScheduledAt.UTC().Format(time.RFC3339))
	case w.State == "pending":
		return "It is pending: River waits to be told that it may run."
	case w.User == "":
		return "It waits for a worker. It has no user, so no limit holds it up."
	case disabled:
		return "It waits for a worker. Fairness is disabled."
	case slices.Contains(w.Reserved, job):
		return "A slot is reserved for it; it waits for a worker."
	case w.State == gated:
		return fmt.Sprintf("Its user may run %d at a time in %s, and %d of his jobs go before it.", most, w.Service, w.Behind+len(w.Running)+len(w.Reserved))
	case w.State == parked && w.Place > 0:
		return fmt.Sprintf("Its user's slots are taken: %d of %d in all; it is number %d in his line.", len(w.Running)+len(w.Reserved), w.Max, w.Place)
	case w.State == parked:
		return "It was refused a slot and tries again by itself, or when the sweep finds it."
	case w.ScheduledAt.After(now):
		return fmt.Sprintf("River offers it to workers at %s.", w.ScheduledAt.UTC().Format(time.RFC3339))
	default:
		return "It waits for a worker of its queue."
	}
}
