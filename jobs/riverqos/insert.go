package riverqos

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/riverqueue/river/rivertype"

	"github.com/sluice-qos/sluice/pkg/jobs"
)

const (
	// countTimeout bounds how long an insert waits for the gate. Without an answer it goes
	// ahead: the slots hold, and the sweep closes the gate behind it.
	countTimeout = 2 * time.Second
	// gateBackoff is for how long inserts do not ask when there was no answer: each would
	// wait for it in vain, with a transaction open.
	gateBackoff = 5 * time.Second
)

// insert notes whose the jobs are, and holds those back that are too many. It asks
// the database once, outside of the transaction in which the jobs are inserted, which
// River's middleware does not get to see, and by a connection of its own; and not at all of
// flows that are known to have room: see known_flows.go.
func (g *gate) insert(ctx context.Context, params []*rivertype.JobInsertParams, doInner func(context.Context) ([]*rivertype.JobInsertResult, error)) ([]*rivertype.JobInsertResult, error) {
	if g.cfg.Disabled {
		return doInner(ctx)
	}
	// One time for the whole insert: a job that is due now must not pass for one of later.
	now := time.Now()
	flows := g.markUsers(params, now)
	var held []sizedFlow
	settle := settleFunc(nothingPending)
	if !g.cfg.Ungated && len(flows) > 0 {
		held, settle = g.holdBackExcess(ctx, flows, now)
	}
	results, err := doInner(ctx)
	inserted := results
	if err != nil {
		inserted = nil
	}
	// Also after an error, with no results: the room that was reserved is free again.
	settle(params, inserted)
	g.countDelayed(flows, params, inserted)
	g.rechecks.add(held, params)
	return results, err
}

// newJobs are the jobs of a flow that are being inserted, the first to run first.
type newJobs struct {
	sizedFlow
	params []*rivertype.JobInsertParams
	tier   string                       // of the user
	held   []*rivertype.JobInsertParams // those that are held back
}

// markUsers marks jobs with their users, and returns those that could run now.
func (g *gate) markUsers(params []*rivertype.JobInsertParams, now time.Time) []*newJobs {
	var flows []*newJobs
	byFlow := map[flow]*newJobs{}
	for _, param := range params {
		user := g.userKey(param.Kind, param.EncodedArgs, param.Metadata)
		// A job without a user is governed by nothing, and never held back.
		if user == "" {
			continue
		}
		since := now
		if param.ScheduledAt != nil && param.ScheduledAt.After(now) {
			since = *param.ScheduledAt
		}
		// Without the marks of waiting, which metadata that was copied from another job may have.
		marked, ok := addMarks(param.Metadata, map[string]any{markUser: user, markSince: seconds(since), markWait: nil, markDelayed: nil})
		// Metadata that is no object cannot say whose job it is. The slots hold it all the same.
		if !ok {
			continue
		}
		param.Metadata = marked
		// It waits by its own will, and does not stand before others. The sweep looks at it when it
		// is due.
		if param.State != rivertype.JobStateAvailable || since != now {
			continue
		}
		key := flow{user, param.Queue}
		jobs := byFlow[key]
		if jobs == nil {
			jobs = &newJobs{sizedFlow: sizedFlow{flow: key}}
			byFlow[key], flows = jobs, append(flows, jobs)
		}
		jobs.params = append(jobs.params, param)
	}
	// River works jobs by priority, and those of the same in the order of their inserts: the
	// first of each flow are those that may run now.
	for _, jobs := range flows {
		slices.SortStableFunc(jobs.params, func(a, b *rivertype.JobInsertParams) int { return cmp.Compare(a.Priority, b.Priority) })
	}
	return flows
}

// holdBackExcess holds back the jobs that are too many, and returns the flows that have such.
func (g *gate) holdBackExcess(ctx context.Context, all []*newJobs, now time.Time) (held []sizedFlow, settle settleFunc) {
	// Who has no limit is not counted, which spares most inserts the question.
	var limited []*newJobs
	budget := g.runner.Budget()
	for _, inserted := range all {
		tier := budget.Tier(ctx, inserted.User)
		inserted.tier = tier.Name
		if inserted.Size = sizeOf(tier, inserted.flow); inserted.Size < jobs.Unlimited {
			limited = append(limited, inserted)
		}
	}
	if len(limited) == 0 {
		return nil, nothingPending
	}
	rooms, settle := g.reserveRoom(ctx, limited)
	for i, inserted := range limited {
		if rooms[i] < len(inserted.params) {
			held = append(held, inserted.sizedFlow)
		}
		// The first by priority go through, and the others wait.
		inserted.held = inserted.params[rooms[i]:]
		for _, param := range inserted.held {
			g.holdBack(param, now)
		}
	}
	return held, settle
}

// holdBack makes a job one that the gate will let through.
func (g *gate) holdBack(param *rivertype.JobInsertParams, now time.Time) {
	marked, ok := addMarks(param.Metadata, map[string]any{markWait: gated, markDelayed: true})
	// It could be marked before. A job that is scheduled without the mark nobody would let in.
	if !ok {
		return
	}
	// Not all at the same instant, should nobody run the sweep.
	at := now.Add(g.cfg.GateFor + rand.N(g.cfg.GateFor/10+1))
	param.Metadata, param.State, param.ScheduledAt = marked, rivertype.JobStateScheduled, &at
}

// reserveRoom returns how many jobs of each flow need not be held back, and counts them as
// pending until settle is told what was inserted.
func (g *gate) reserveRoom(ctx context.Context, all []*newJobs) (rooms []int, settle settleFunc) {
	flows := make([]flow, len(all))
	for i, inserted := range all {
		flows[i] = inserted.flow
	}
	// Without an answer inserts go on without the gate: the slots hold, and a sweep closes it
	// behind them.
	rooms = make([]int, len(all))
	for i, inserted := range all {
		rooms[i] = len(inserted.params)
	}
	if g.unanswered() {
		return rooms, nothingPending
	}
	now := time.Now()
	if g.known.take(all, now) {
		return rooms, g.pending.beginInsert(all, rooms, now)
	}
	counting, cancel := context.WithTimeout(ctx, g.countTimeout)
	defer cancel()
	// One at a time: two inserts that count before either has noted what it let through would
	// both find the same room.
	select {
	case g.counting <- struct{}{}:
		defer func() { <-g.counting }()
	case <-counting.Done():
		g.noteUnanswered(ctx, counting.Err())
		return rooms, nothingPending
	}
	// The insert before this one may have had no answer.
	if g.unanswered() {
		return rooms, nothingPending
	}
	crowds, visible, err := g.store.countCrowds(counting, flows, g.pending.insertedIDs(flows, time.Now()))
	if err != nil {
		g.noteUnanswered(ctx, err)
		return rooms, nothingPending
	}
	// Only of a database that answers: each reading is a goroutine, which would wait in vain.
	g.known.readHeld(time.Now(), g.readHeldFlows)
	invisible := g.pending.invisible(flows, visible, time.Now())
	for i, inserted := range all {
		free := max(0, inserted.Size-crowds[i].jobs-invisible[i])
		// Those that wait already would come later than the new ones.
		if crowds[i].gated {
			free = 0
		}
		rooms[i] = min(rooms[i], free)
		g.known.noteCount(inserted.flow, free-rooms[i], rooms[i] < len(inserted.params), time.Now())
	}
	return rooms, g.pending.beginInsert(all, rooms, time.Now())
}

// unanswered reports whether inserts do not ask, because there was no answer.
func (g *gate) unanswered() bool {
	return time.Since(time.UnixMilli(g.lastUnanswered.Load())) < gateBackoff
}

// noteUnanswered notes that an insert was not counted in time.
func (g *gate) noteUnanswered(ctx context.Context, err error) {
	// If the caller's context has ended, that says nothing about the database.
	if ctx.Err() == nil {
		g.lastUnanswered.Store(time.Now().UnixMilli())
		g.runner.Report("count", "the gate could not count a user's jobs", err)
	}
}
