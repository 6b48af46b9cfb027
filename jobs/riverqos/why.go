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
	var total, queue bound
	if w.User = f.key(w.Kind, []byte(args), []byte(metadata)); w.User != "" {
		if total, queue, err = f.whose(ctx, &w); err != nil {
			return jobs.Why{}, err
		}
	}
	w.Reason = reason(w, total, queue, now, f.cfg.Disabled, f.job(w.User, id, "").ID)
	return w, nil
}

// whose adds what is known of the job's user, and returns what bounds the user's jobs.
func (f *Fairness) whose(ctx context.Context, w *jobs.Why) (total, queue bound, err error) {
	tier := f.tier(ctx, w.User)
	w.Tier, w.Service, w.Max, w.Queues = tier.Name, service(w.Queue), tier.Limits.Total, tier.Limits.Queues
	usage, err := f.cfg.Slots.User(ctx, w.User)
	if err != nil {
		return bound{}, bound{}, fmt.Errorf("slots of job %d's user: %w", w.ID, err)
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
	if w.State == gated {
		if err := f.cfg.Pool.QueryRow(ctx, f.db.aheadSQL, w.User, w.Queue, w.ID).Scan(&w.Behind); err != nil {
			return bound{}, bound{}, fmt.Errorf("jobs before job %d: %w", w.ID, err)
		}
	}
	total, queue = bounds(tier.Limits, w.Service, usage)
	return total, queue, nil
}

// bound is a limit of a user's jobs, and how much of it is taken.
type bound struct {
	of                  string // "in all", or "in" a service
	most, taken, parked int    // jobs that may have slots, that have or are promised one, and that wait for one
}

func (b bound) full() bool { return b.taken >= b.most }

// bounds are the limits of all of a user's jobs and of those in a service. The latter
// is the former if the service has no limit of its own, or one that cannot be reached.
func bounds(l jobs.Limits, service string, u jobs.Usage) (total, queue bound) {
	total = bound{"in all", l.Total, len(u.Held) + len(u.Reserved), len(u.Parked)}
	if l.Of(service) == l.Total {
		return total, total
	}
	queue = bound{of: "in " + service, most: l.Of(service)}
	for _, s := range slices.Concat(u.Held, u.Reserved) {
		if s.Queue == service {
			queue.taken++
		}
	}
	for _, j := range u.Parked {
		if j.Queue == service {
			queue.parked++
		}
	}
	return total, queue
}

// reason says it in a sentence.
func reason(w jobs.Why, total, queue bound, now time.Time, disabled bool, job string) string {
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
	case w.State == gated && queue.most >= jobs.Unlimited:
		return "Its user has no limit any more: the next sweep lets it through."
	case w.State == gated:
		return fmt.Sprintf("Its user may run %d at a time %s, and %d of their jobs go before it.", queue.most, queue.of, queue.taken+queue.parked+w.Behind)
	case w.State == parked && w.Place > 0 && total.full():
		return taken(total, w.Place)
	case w.State == parked && w.Place > 0 && queue.full():
		return taken(queue, w.Place)
	case w.State == parked && w.Place > 0:
		return fmt.Sprintf("Its user has room for it; it is number %d in their line, to which the next sweep gives slots.", w.Place)
	case w.State == parked:
		return "It was refused a slot and tries again by itself, or when the sweep finds it."
	case w.ScheduledAt.After(now):
		return fmt.Sprintf("River offers it to workers at %s.", w.ScheduledAt.UTC().Format(time.RFC3339))
	default:
		return "It waits for a worker of its queue."
	}
}

func taken(b bound, place int) string {
	return fmt.Sprintf("Its user's slots are taken: %d of %d %s; it is number %d in their line.", b.taken, b.most, b.of, place)
}
