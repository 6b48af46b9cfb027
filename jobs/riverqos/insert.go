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

// insert marks jobs with their users, and asks the gate for those that could run now. The answer is
// the trigger's, in the statement that inserts them.
func (g *gate) insert(ctx context.Context, params []*rivertype.JobInsertParams, doInner func(context.Context) ([]*rivertype.JobInsertResult, error)) ([]*rivertype.JobInsertResult, error) {
	if g.runner.Disabled() {
		return doInner(ctx)
	}
	// One time for the whole insert: a job that is due now must not pass for one of later.
	now := time.Now()
	flows := g.markUsers(params, now)
	tiers := map[*rivertype.JobInsertParams]string{} // of the jobs that may be held back
	if !g.cfg.Ungated {
		g.askGate(ctx, flows, now, tiers)
	}
	results, err := doInner(ctx)
	if err != nil {
		return results, err
	}
	for i, param := range params {
		if tier, limited := tiers[param]; limited && heldBack(param, results[i]) {
			g.runner.CountDelayed(tier, param.Queue, 1)
		}
		select {
		case g.inserted <- param.Queue:
		default:
		}
	}
	return results, nil
}

// heldBack reports whether the gate holds a new job back. River does not return what InsertManyFast inserts, so
// only those count there that were held back before the insert.
func heldBack(param *rivertype.JobInsertParams, inserted *rivertype.JobInsertResult) bool {
	if inserted == nil || inserted.Job == nil {
		return readMarks(param.Metadata).Wait == gated
	}
	return !inserted.UniqueSkippedAsDuplicate && readMarks(inserted.Job.Metadata).Wait == gated
}

// markUsers marks jobs with their users, and returns those that could run now, by flow.
func (g *gate) markUsers(params []*rivertype.JobInsertParams, now time.Time) map[flow][]*rivertype.JobInsertParams {
	flows := map[flow][]*rivertype.JobInsertParams{}
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
		marked, ok := addMarks(param.Metadata, map[string]any{markUser: user, markSince: seconds(since), markWait: nil, markDelayed: nil, markGate: nil})
		// Metadata that is no object cannot say whose job it is. The slots hold it all the same.
		if !ok {
			continue
		}
		param.Metadata = marked
		// A job that is scheduled for later does not stand before others. The sweep looks at it when it is due.
		if param.State == rivertype.JobStateAvailable && since.Equal(now) {
			key := flow{user, param.Queue}
			flows[key] = append(flows[key], param)
		}
	}
	return flows
}

// askGate has the trigger look at as many jobs of each flow as may run at a time, and holds the others back. It
// notes the tiers of the users with limits.
func (g *gate) askGate(ctx context.Context, flows map[flow][]*rivertype.JobInsertParams, now time.Time, tiers map[*rivertype.JobInsertParams]string) {
	budget := g.runner.Budget()
	for key, params := range flows {
		tier := budget.Tier(ctx, key.User)
		size := sizeOf(tier.Limits, key)
		if size >= jobs.Unlimited {
			continue
		}
		// River works jobs by priority, and those of the same in the order of their inserts.
		slices.SortStableFunc(params, func(a, b *rivertype.JobInsertParams) int { return cmp.Compare(a.Priority, b.Priority) })
		for i, param := range params {
			tiers[param] = tier.Name
			// Not all at the same instant, should nobody run the sweep.
			until := now.Add(g.cfg.GateFor + rand.N(g.cfg.GateFor/10+1))
			marks := map[string]any{markGate: []any{size, seconds(until)}}
			if i >= size {
				marks = map[string]any{markWait: gated, markDelayed: true}
				param.State, param.ScheduledAt = rivertype.JobStateScheduled, &until
			}
			param.Metadata, _ = addMarks(param.Metadata, marks) // it was marked before
		}
	}
}
