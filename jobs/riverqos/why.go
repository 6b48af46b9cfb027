package riverqos

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sluice-qos/sluice/pkg/jobs"
	"github.com/sluice-qos/sluice/pkg/jobs/workerapi"
)

// ErrNoJob says that River has no job with this id (any more).
var ErrNoJob = errors.New("no such job")

// Why tells what a job is waiting for. The error is ErrNoJob if there is none.
func (f *Fairness) Why(ctx context.Context, id int64) (workerapi.Why, error) {
	database, err := f.store.database(ctx)
	if err != nil {
		return workerapi.Why{}, err
	}
	why := workerapi.Why{ID: id, Database: database}
	var args, metadata string
	var now time.Time
	err = f.store.queryRow(ctx, "why", id).
		Scan(&why.State, &why.Kind, &why.Queue, &why.Attempt, &why.Created, &why.ScheduledAt, &args, &metadata, &now)
	switch {
	// River deletes jobs some time after their end.
	case errors.Is(err, pgx.ErrNoRows):
		return workerapi.Why{}, ErrNoJob
	case err != nil:
		return workerapi.Why{}, fmt.Errorf("read job %d: %w", id, err)
	}
	marks := readMarks([]byte(metadata))
	why.Since = marks.runnableSince(why.ScheduledAt)
	// River knows neither of the two: to it, such a job is scheduled for later.
	if why.State == "scheduled" && (marks.Wait == parked || marks.Wait == gated) {
		why.State = marks.Wait
	}
	var total, queue bound
	// Of the arguments and not of the mark: a job that Sluice has not seen yet has no mark.
	if why.User = f.userKey(why.Kind, []byte(args), []byte(metadata)); why.User != "" {
		if total, queue, err = f.addUser(ctx, &why); err != nil {
			return workerapi.Why{}, err
		}
	}
	why.Reason = reason(why, total, queue, now, f.runner.Disabled(), f.names.slotsID(id))
	return why, nil
}

// addUser adds what is known of the job's user, and returns what bounds the user's jobs.
func (f *Fairness) addUser(ctx context.Context, why *workerapi.Why) (total, queue bound, err error) {
	tier := f.runner.Budget().Tier(ctx, why.User)
	why.Tier, why.Service = tier.Name, service(why.Queue)
	why.Max, why.Queues, why.Each = tier.Limits.Total, tier.Limits.Queues, tier.Limits.EachQueue
	usage, err := f.cfg.Runner.Slots.User(ctx, why.User)
	if err != nil {
		return bound{}, bound{}, fmt.Errorf("slots of job %d's user: %w", why.ID, err)
	}
	for _, slot := range usage.Held {
		why.Running = append(why.Running, slot.ID)
	}
	for _, slot := range usage.Reserved {
		why.Reserved = append(why.Reserved, slot.ID)
	}
	why.Parked = len(usage.Parked)
	for i, job := range usage.Parked {
		// The place of now and not of when it was parked: others before it may be gone.
		if job.ID == f.names.slotsID(why.ID) {
			why.Place = i + 1
		}
	}
	// Only the gate has an order of its own: parked jobs stand in the line of the Slots.
	if why.State == gated {
		if err := f.store.queryRow(ctx, "ahead", why.User, why.Queue, why.ID).Scan(&why.Behind); err != nil {
			return bound{}, bound{}, fmt.Errorf("jobs before job %d: %w", why.ID, err)
		}
	}
	total, queue = bounds(tier.Limits, why.Service, usage)
	return total, queue, nil
}

// bound is a limit of a user's jobs, and how much of it is taken.
type bound struct {
	where  string // "in all", or "in" a service
	limit  int    // jobs that may have slots
	taken  int    // jobs that have a slot, or are promised one
	parked int    // jobs that wait for a slot
}

func (b bound) isFull() bool { return b.taken >= b.limit }

// bounds are the limits of all of a user's jobs and of those in a service. The latter
// is the former if the service has no limit of its own, or one that cannot be reached.
func bounds(limits jobs.Limits, service string, usage jobs.Usage) (total, queue bound) {
	// A reserved slot is taken: nobody else may have it.
	total = bound{"in all", limits.Total, len(usage.Held) + len(usage.Reserved), len(usage.Parked)}
	// To name the service would say that another one's jobs could run.
	if limits.Of(service) == limits.Total {
		return total, total
	}
	queue = bound{where: "in " + service, limit: limits.Of(service)}
	for _, slot := range slices.Concat(usage.Held, usage.Reserved) {
		if slot.Queue == service {
			queue.taken++
		}
	}
	for _, job := range usage.Parked {
		if job.Queue == service {
			queue.parked++
		}
	}
	return total, queue
}

func reason(why workerapi.Why, total, queue bound, now time.Time, disabled bool, job string) string {
	// River's word comes before that of the Slots, who may know less (they have lost their
	// memory) or still have a slot that could not be given back.
	switch {
	case why.State == "running" && why.User != "" && !slices.Contains(why.Running, job):
		return "River says that it runs, but it has no slot: it has just been fetched or has just ended, or its worker is dead."
	case why.State == "running":
		return "It runs."
	case why.State == "completed", why.State == "cancelled", why.State == "discarded":
		return "It has finished: it is " + why.State + "."
	case why.State == "retryable":
		return fmt.Sprintf("Its last attempt failed, and River tries again at %s.", why.ScheduledAt.UTC().Format(time.RFC3339))
	case why.State == "scheduled":
		return fmt.Sprintf("It is scheduled for %s.", why.ScheduledAt.UTC().Format(time.RFC3339))
	case why.State == "pending":
		return "It is pending: River waits to be told that it may run."
	case why.User == "":
		return "It waits for a worker. It has no user, so no limit holds it up."
	case disabled:
		return "It waits for a worker. Fairness is disabled."
	case slices.Contains(why.Reserved, job):
		return "A slot is reserved for it; it waits for a worker."
	// Before the numbers, which would read as nonsense.
	case why.State == gated && queue.limit >= jobs.Unlimited:
		return "Its user has no limit any more: the next sweep lets it through."
	case why.State == gated:
		return fmt.Sprintf("Its user may run %d at a time %s, and %d of their jobs go before it.", queue.limit, queue.where, queue.taken+queue.parked+why.Behind)
	// The total first: while it is full, room in the queue is of no use.
	case why.State == parked && why.Place > 0 && total.isFull():
		return slotsTaken(total, why.Place)
	case why.State == parked && why.Place > 0 && queue.isFull():
		return slotsTaken(queue, why.Place)
	case why.State == parked && why.Place > 0:
		return fmt.Sprintf("Its user has room for it; it is number %d in their line, to which the next sweep gives slots.", why.Place)
	case why.State == parked:
		return "It was refused a slot and tries again by itself, or when the sweep finds it."
	case why.ScheduledAt.After(now):
		return fmt.Sprintf("River offers it to workers at %s.", why.ScheduledAt.UTC().Format(time.RFC3339))
	default:
		return "It waits for a worker of its queue."
	}
}

func slotsTaken(b bound, place int) string {
	return fmt.Sprintf("Its user's slots are taken: %d of %d %s; it is number %d in their line.", b.taken, b.limit, b.where, place)
}
