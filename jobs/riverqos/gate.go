package riverqos

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync/atomic"
	"time"
)

// The gate is in River's table. Of each user's jobs in a queue, as many as may run at once
// are "in the flow": available, running or parked. The others have the state scheduled and
// the mark gated. A job comes into the flow when another one leaves it. The three queues of
// a service have a flow each, although the limit is for all of them together: jobs that
// wait for a worker of one queue must not hold up those in another. The slots keep the
// limit.
//
// A job leaves the flow when it ends, but River writes that up to 250 ms later. So the
// statement that lets the next job in marks the row of the one that has ended with the
// time of its attempt, and that row is not counted from then on. If it is fetched again, it
// has another time. The same mark is on the rows of jobs whose worker died, which River
// rescues in an hour. A row that is locked cannot be marked, and one that nobody waits for
// need not be: see unwritten.go.

const (
	// recheckDelay is the time after which the gate looks again at what was inserted: River's
	// FetchCooldown.
	recheckDelay = 100 * time.Millisecond
	// unwrittenInterval is the time between two looks at attempts whose end is not written: as
	// long as River waits between two fetches.
	unwrittenInterval = time.Second / 10
	// ungateInterval is the time between two looks for jobs that are still held back, where
	// fairness is disabled.
	ungateInterval = time.Second
	// maxRowsPerUpdate bounds the rows of a statement that changes many.
	maxRowsPerUpdate = 1000
)

// flow is a user's jobs in one of River's queues.
type flow struct{ User, Queue string }

// sizedFlow is a flow and how many of its jobs may be available or running at a time.
type sizedFlow struct {
	flow
	Size int
}

// gate lets as many jobs of each flow be available to workers as may run at once.
type gate struct {
	*resources
	countTimeout   time.Duration // the constant of this name, but in tests
	lastUnanswered atomic.Int64  // when a count last got no answer, in ms since 1970

	counting  chan struct{} // of capacity 1: an insert counts
	pending   pendingInserts
	known     knownFlows
	ends      endsQueue
	unwritten unwrittenEnds
	rechecks  *rechecks
}

func newGate(shared *resources) *gate {
	return &gate{resources: shared, countTimeout: countTimeout, counting: make(chan struct{}, 1), ends: newEndsQueue(), rechecks: newRechecks()}
}

// replaceEnded lets jobs through in the place of one that has ended: at once where jobs are
// known to wait, and elsewhere within unwrittenInterval, in one statement for all.
func (g *gate) replaceEnded(ctx context.Context, ended endedAttempt) {
	if !g.known.holds(ended.left.flow) && g.unwritten.addAttempt(ended.attempt, ended.left.flow) {
		return
	}
	// Those that end while a statement is under way share the next one.
	g.ends.share(ctx, ended, g.replaceAllEnded)
}

// replaceAllEnded lets jobs through in the place of several.
func (g *gate) replaceAllEnded(ctx context.Context, all []endedAttempt) {
	var flows []sizedFlow
	listed := map[flow]bool{}
	attempts := make([]attempt, len(all))
	for i, ended := range all {
		attempts[i] = ended.attempt
		// Once, or a flow of which two jobs have ended would let in twice as many as it has room for.
		if !listed[ended.left.flow] {
			listed[ended.left.flow] = true
			flows = append(flows, ended.left)
		}
	}
	_, unmarked, err := g.letThrough(ctx, flows, attempts...)
	if err != nil {
		g.runner.Report("promote", "the gate could not let a job through", err)
	}
	for _, ended := range all {
		// Also if it failed, for the row may be unmarked. Somebody else would count the attempt as
		// running until River has written its end.
		if err != nil || slices.Contains(unmarked, ended.id) {
			g.unwritten.addAttempt(ended.attempt, ended.left.flow)
		}
	}
}

// letThrough lets jobs through where there is room, in the place of those whose attempts
// have ended now, too. It returns how many: with maxPromoted there may be more. And it
// returns the ids of ended ones whose rows could not be marked.
func (g *gate) letThrough(ctx context.Context, flows []sizedFlow, now ...attempt) (promoted int, unmarked []int64, err error) {
	// The statement would count those that could not be marked before as running, and so let
	// nobody in for them.
	ended, overdue := g.unwritten.attemptsIn(flows, time.Now())
	promoted, waiting, unmarked, err := g.store.promote(ctx, flows, slices.Concat(ended, now), overdue)
	if err != nil {
		return 0, nil, err
	}
	g.known.hold(waiting)
	// What is marked now nobody counts any more, whenever River writes its end.
	g.unwritten.keepOnly(ended, unmarked)
	g.metrics.Promoted.Add(float64(promoted))
	return promoted, unmarked, nil
}

// runRechecks looks at users soon after their jobs were held back, until the context ends,
// and announces the queues that have got jobs.
func (g *gate) runRechecks(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-g.rechecks.work:
		}
		// The inserts may not be committed yet.
		select {
		case <-ctx.Done():
			return
		case <-time.After(recheckDelay):
		}
		flows, queues := g.rechecks.takeAll()
		// The jobs before those that were held back may have ended before these were visible, and
		// then nothing but the sweep would let them in.
		g.recheck(ctx, flows)
		// River announces at most one insert into a queue within its FetchCooldown. Workers would
		// find the jobs of the other ones at their next poll only.
		if _, err := g.store.execute(ctx, "announce", queues); err != nil && ctx.Err() == nil {
			g.runner.Report("announce", "workers could not be told of new jobs, they find them at their next poll", err)
		}
	}
}

// runUnwritten lets jobs through in the place of ended ones, until River has written that
// these have ended, or the context ends.
func (g *gate) runUnwritten(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(unwrittenInterval):
		}
		g.lookAtEnds(ctx)
	}
}

// lookAtEnds lets jobs through in the place of ended ones where some are held back, and forgets the ends that River
// has written.
func (g *gate) lookAtEnds(ctx context.Context) {
	_, flows := g.unwritten.allAttempts()
	if len(flows) == 0 {
		return
	}
	now := time.Now()
	g.known.readHeld(now, g.readHeldFlows)
	due, _ := g.unwritten.endedBefore(now.Add(-writtenAfter))
	holding, running, err := g.store.lookAtEnds(ctx, flows, due)
	if err != nil {
		if ctx.Err() == nil {
			g.runner.Report("promote", "the gate could not look at jobs that have ended", err)
		}
		return
	}
	g.unwritten.keepOnly(due, running)
	// Those that are still there have to be marked, should nobody ever write their ends.
	_, overdue := g.unwritten.endedBefore(now.Add(-overdueAfter))
	// A flow twice would let in twice as many as it has room for.
	looked := map[flow]bool{}
	for _, key := range slices.Concat(holding, overdue) {
		looked[key] = true
	}
	// By the limits of now, which may have changed since the attempts ended.
	g.recheck(ctx, g.sizesOf(ctx, slices.Collect(maps.Keys(looked))))
}

// readHeldFlows reads the flows that hold jobs back, up to so many.
func (g *gate) readHeldFlows(ctx context.Context, limit int) ([]flow, error) {
	flows, err := g.store.heldFlows(ctx, limit)
	if err != nil {
		g.runner.Report("held", "the flows that hold jobs back could not be read, inserts count", err)
	}
	return flows, err
}

// recheck lets jobs through where there is room. If it fails, the sweep does so later.
func (g *gate) recheck(ctx context.Context, flows []sizedFlow) {
	// Nearly always, and a statement for nobody would cost as much as one for many.
	if len(flows) == 0 {
		return
	}
	// A context that has ended is the end of Run, and no failure.
	if _, _, err := g.letThrough(ctx, flows); err != nil && ctx.Err() == nil {
		g.runner.Report("promote", "the gate could not let a job through", err)
	}
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
		case <-time.After(cmp.Or(g.cfg.sweep, ungateInterval)):
		}
	}
}
