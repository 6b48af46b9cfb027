package riverqos

import (
	"cmp"
	"context"
	"time"

	"github.com/sluice-qos/sluice/pkg/jobs"
)

// The gate is in River's table. Of each user's jobs in a queue only as many wait for workers
// (available or parked) as may run at once. The others have the state scheduled and the mark
// gated. The three queues of a service have a gate each, although the limit is for all of
// them together: jobs that wait for a worker of one queue must not hold up those in another.
//
//   - An insert counts in the statement that inserts, by a trigger (sql/trigger.sql).
//   - A job that ends lets one through in its place.
//   - The sweep lets jobs through where slots are free for another reason, and closes the
//     gate behind jobs that did not come through it.
//
// Running jobs are not counted: the slots hold the limit, and River writes the end of a job
// up to 250 ms late.

const (
	// announceDelay is the time from an insert to its second announcement: River's FetchCooldown.
	announceDelay = 100 * time.Millisecond
	// openDelay is how long jobs that end wait for others whose ends share a statement: a tenth of River's FetchCooldown.
	openDelay = 10 * time.Millisecond
	// ungateInterval is the time between two looks for jobs that are still held back, where
	// fairness is disabled.
	ungateInterval = time.Second
	// maxRowsPerUpdate bounds the rows of a statement that changes many.
	maxRowsPerUpdate = 1000
	// maxEnded bounds the ends of jobs and the inserts that a process remembers. The sweep
	// makes good the others.
	maxEnded = 10_000
)

type flow struct{ User, Queue string }

// opening lets gated jobs of a flow through: at most Most, and only until Want jobs of the flow wait
// for a worker or a slot.
type opening struct {
	flow
	Most, Want int
}

type gate struct {
	*resources
	ended    chan opening // in the place of jobs that have ended
	inserted chan string  // queues that have got jobs
}

func newGate(shared *resources) *gate {
	return &gate{resources: shared, ended: make(chan opening, maxEnded), inserted: make(chan string, maxEnded)}
}

// replaceEnded lets a job through in the place of one that has ended. If the slot was handed on to a parked
// job, the flow needs a job in the line only if it has none there.
func (g *gate) replaceEnded(left flow, limits jobs.Limits, handedOn bool) {
	next := opening{left, 1, sizeOf(limits, left)}
	if handedOn {
		next.Want = 1
	}
	select {
	case g.ended <- next:
	default:
	}
}

// runOpenings lets jobs through in the place of those that have ended, until the context ends. Jobs that end
// at about the same time share a statement.
func (g *gate) runOpenings(ctx context.Context) {
	for {
		openings := map[flow]opening{}
		for _, next := range collect(ctx, g.ended, openDelay) {
			next.Most += openings[next.flow].Most
			next.Want = max(next.Want, openings[next.flow].Want)
			openings[next.flow] = next
		}
		if ctx.Err() != nil {
			return
		}
		all := make([]opening, 0, len(openings))
		for _, next := range openings {
			all = append(all, next)
		}
		if _, err := g.letThrough(ctx, all); err != nil && ctx.Err() == nil {
			g.runner.Report("promote", "the gate could not let a job through", err)
		}
	}
}

// letThrough lets jobs through, and returns how many: with maxPromoted there may be more.
func (g *gate) letThrough(ctx context.Context, openings []opening) (promoted int, err error) {
	promoted, err = g.store.promote(ctx, openings)
	g.metrics.Promoted.Add(float64(promoted))
	return promoted, err
}

// runAnnouncements announces the queues that have got jobs, until the context ends. River announces at most one
// insert into a queue within its FetchCooldown. Workers would find the other jobs at their next poll only.
func (g *gate) runAnnouncements(ctx context.Context) {
	for {
		queues := collect(ctx, g.inserted, announceDelay)
		if ctx.Err() != nil {
			return
		}
		if _, err := g.store.execute(ctx, "announce", queues); err != nil && ctx.Err() == nil {
			g.runner.Report("announce", "workers could not be told of new jobs, they find them at their next poll", err)
		}
	}
}

// collect waits for a value, and after a delay returns all that have come, or nothing if the context has ended.
func collect[T any](ctx context.Context, values <-chan T, delay time.Duration) []T {
	var all []T
	select {
	case <-ctx.Done():
		return nil
	case first := <-values:
		all = append(all, first)
	}
	select {
	case <-ctx.Done():
		return nil
	case <-time.After(delay):
	}
	for range len(values) {
		all = append(all, <-values)
	}
	return all
}

// ungateAll lets all jobs go that were held back, until the context ends.
func (g *gate) ungateAll(ctx context.Context) {
	for {
		freed, err := g.store.ungate(ctx, maxRowsPerUpdate)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			g.runner.Report("ungate", "jobs that the gate held back could not be released", err)
		}
		// There may be more: a backlog is freed in steps, so that no statement locks all of it.
		if freed == maxRowsPerUpdate {
			continue
		}
		// A process that is not disabled yet may still hold jobs back.
		select {
		case <-ctx.Done():
			return
		case <-time.After(cmp.Or(g.cfg.Runner.SweepInterval, ungateInterval)):
		}
	}
}

// sizeOf returns how many of a flow's jobs may wait for workers or slots at a time.
func sizeOf(limits jobs.Limits, flow flow) int { return limits.Of(service(flow.Queue)) }
