package riverqos

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/riverqueue/river/rivertype"

	"github.com/sluice-qos/sluice/pkg/jobs"
)

// counting bounds how long an insert waits for the gate. Without an answer it goes
// ahead: the slots hold, and the sweep closes the gate behind it.
const counting = 2 * time.Second

// blind is for how long inserts do not ask when there was no answer: each would wait for
// it in vain, with a transaction open.
const blind = 5 * time.Second

// InsertMany notes whose the jobs are, and holds those back that are too many. It asks
// the database once, outside of the transaction in which the jobs are inserted, which
// River's middleware does not get to see, and by a connection of its own.
func (f *middleware) InsertMany(ctx context.Context, params []*rivertype.JobInsertParams, doInner func(context.Context) ([]*rivertype.JobInsertResult, error)) ([]*rivertype.JobInsertResult, error) {
	if f.cfg.Disabled {
		return doInner(ctx)
	}
	now := time.Now()
	lines := f.lines(params, now)
	settle := func([]*rivertype.JobInsertParams, []*rivertype.JobInsertResult) {}
	var held []flow
	if !f.cfg.Ungated && len(lines) > 0 {
		held, settle = f.close(ctx, lines, now)
	}
	defer f.nudges.inserting(params)()
	results, err := doInner(ctx)
	settle(params, results)
	if len(held) > 0 { // those before them may have ended before anybody could see them
		f.nudges.add(held)
	}
	return results, err
}

// close closes the gate before the jobs that are too many, and returns whose they are.
func (f *Fairness) close(ctx context.Context, lines []*line, now time.Time) (held []flow, settle func([]*rivertype.JobInsertParams, []*rivertype.JobInsertResult)) {
	limited := lines[:0:0]
	var flows []flow
	asker := f.asker()
	for _, l := range lines {
		if l.size = asker.tier(ctx, l.user).Limits.Of(service(l.queue)); l.size < jobs.Unlimited {
			limited, flows = append(limited, l), append(flows, l.flow)
		}
	}
	if lines = limited; len(lines) == 0 {
		return nil, func([]*rivertype.JobInsertParams, []*rivertype.JobInsertResult) {}
	}
	rooms, settle := f.rooms(ctx, lines, flows)
	for i, l := range lines {
		if rooms[i] < len(l.params) {
			held = append(held, l.flow)
		}
		for _, p := range l.params[rooms[i]:] {
			f.hold(p, now)
		}
	}
	return held, settle
}

// line is the new jobs of a user in a queue, the first to run first.
type line struct {
	flow
	params []*rivertype.JobInsertParams
}

// lines marks jobs with their users, and returns those that could run now.
func (f *Fairness) lines(params []*rivertype.JobInsertParams, now time.Time) []*line {
	var lines []*line
	of := map[flow]*line{}
	for _, p := range params {
		user := f.key(p.Kind, p.EncodedArgs, p.Metadata)
		if user == "" {
			continue
		}
		since := now
		if p.ScheduledAt != nil && p.ScheduledAt.After(now) {
			since = *p.ScheduledAt
		}
		marked, ok := mark(p.Metadata, map[string]any{markUser: user, markSince: seconds(since), markWait: nil})
		if !ok {
			continue
		}
		p.Metadata = marked
		if p.State != rivertype.JobStateAvailable || since != now {
			continue // by its own will
		}
		key := flow{user: user, queue: p.Queue}
		l := of[key]
		if l == nil {
			l = &line{flow: key}
			of[key], lines = l, append(lines, l)
		}
		l.params = append(l.params, p)
	}
	for _, l := range lines {
		slices.SortStableFunc(l.params, func(a, b *rivertype.JobInsertParams) int { return cmp.Compare(a.Priority, b.Priority) })
	}
	return lines
}

// hold makes a job one that the gate will let through.
func (f *Fairness) hold(p *rivertype.JobInsertParams, now time.Time) {
	marked, ok := mark(p.Metadata, map[string]any{markWait: gated})
	if !ok { // it could be marked before
		return
	}
	at := now.Add(jitter(f.cfg.GateFor, f.cfg.GateFor/10))
	p.Metadata, p.State, p.ScheduledAt = marked, rivertype.JobStateScheduled, &at
}

// rooms are how many of each line need not be held back. Afterwards settle is told what
// was inserted.
func (f *Fairness) rooms(ctx context.Context, lines []*line, flows []flow) (rooms []int, settle func([]*rivertype.JobInsertParams, []*rivertype.JobInsertResult)) {
	unlock := f.admits.lock(flows)
	defer unlock()
	ids := f.admits.ids(flows, time.Now())
	rooms = make([]int, len(lines))
	crowds, seen, ok := f.count(ctx, flows, ids)
	if !ok {
		for i, l := range lines {
			rooms[i] = len(l.params)
		}
		return rooms, func([]*rivertype.JobInsertParams, []*rivertype.JobInsertResult) {}
	}
	unseen := f.admits.unseen(flows, seen)
	for i, l := range lines {
		if !crowds[i].gated {
			rooms[i] = min(len(l.params), max(0, l.size-crowds[i].n-unseen[i]))
		}
	}
	return rooms, f.admits.begin(lines, rooms, time.Now())
}

// count is not ok if there is no answer, or was none a moment ago.
func (f *Fairness) count(ctx context.Context, flows []flow, ids []int64) (crowds []crowd, seen []int64, ok bool) {
	if time.Since(time.UnixMilli(f.blinded.Load())) < blind {
		return nil, nil, false
	}
	asking, cancel := context.WithTimeout(ctx, f.counting)
	defer cancel()
	crowds, seen, err := f.db.count(asking, flows, ids)
	if err == nil {
		return crowds, seen, true
	}
	if ctx.Err() == nil { // else it is the caller's context that ended
		f.blinded.Store(time.Now().UnixMilli())
		f.failed("count", "the gate could not count a user's jobs", err)
	}
	return nil, nil, false
}
