package riverqos

import (
	"slices"
	"sync"
	"time"

	"github.com/riverqueue/river/rivertype"
)

const (
	// rememberFor is for how long an insert may not be visible yet: its transaction is open. One
	// that was rolled back is forgotten after it.
	rememberFor = time.Minute
	// rememberWithoutID is the same for jobs whose ids River does not tell, those of InsertManyFast and
	// InsertManyFastTx. Nobody can know whether they are visible, so that until then the database may
	// count them as well, and jobs may wait for the next look at the gate although there is room.
	rememberWithoutID = 5 * time.Second
	// unknownID is the id of such a job.
	unknownID = -1
)

// pendingInserts are the jobs that this process let through the gate and that nobody can
// see yet. Without them a transaction that inserts a thousand jobs one by one would let all
// of them through.
type pendingInserts struct {
	mu      sync.Mutex
	byFlow  map[flow][]pendingInsert
	cleaned time.Time // when the old ones were last thrown away
}

type pendingInsert struct {
	id int64 // 0 while it is being inserted; or unknownID
	at time.Time
}

// settleFunc tells what became of an insert.
type settleFunc func([]*rivertype.JobInsertParams, []*rivertype.JobInsertResult)

// nothingPending is for an insert that the gate did not count.
func nothingPending([]*rivertype.JobInsertParams, []*rivertype.JobInsertResult) {}

// insertedIDs returns the ids of the flows' jobs that may be visible by now.
func (p *pendingInserts) insertedIDs(flows []flow, now time.Time) []int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clean(now)
	// An array without elements: nil would be NULL, with which nothing is visible.
	ids := []int64{}
	for _, flow := range flows {
		for _, insert := range p.byFlow[flow] {
			// Those that are being inserted now nobody can see yet.
			if insert.id != 0 && insert.id != unknownID {
				ids = append(ids, insert.id)
			}
		}
	}
	return ids
}

// clean forgets old inserts: those of flows that are not counted again would stay for ever. The
// lock must be held.
func (p *pendingInserts) clean(now time.Time) {
	old := now.Add(-rememberFor)
	if !p.cleaned.Before(old) {
		return
	}
	for flow, pending := range p.byFlow {
		p.setPending(flow, slices.DeleteFunc(pending, func(insert pendingInsert) bool { return insert.at.Before(old) }))
	}
	p.cleaned = now
}

// invisible is how many jobs of each flow there are beside those that are visible.
func (p *pendingInserts) invisible(flows []flow, visible []int64, now time.Time) []int {
	p.mu.Lock()
	defer p.mu.Unlock()
	counts := make([]int, len(flows))
	for i, flow := range flows {
		// What the database counts itself must not be counted here, too.
		left := slices.DeleteFunc(p.byFlow[flow], func(insert pendingInsert) bool {
			lapsed := insert.id == unknownID && now.Sub(insert.at) > rememberWithoutID
			return lapsed || slices.Contains(visible, insert.id)
		})
		p.setPending(flow, left)
		counts[i] = len(left)
	}
	return counts
}

func (p *pendingInserts) setPending(key flow, pending []pendingInsert) {
	if len(pending) == 0 {
		delete(p.byFlow, key)
		return
	}
	if p.byFlow == nil {
		p.byFlow = map[flow][]pendingInsert{}
	}
	p.byFlow[key] = pending
}

// beginInsert notes the first jobs of each flow, as many as there is room for, until it is told
// what was inserted.
func (p *pendingInserts) beginInsert(flows []*newJobs, rooms []int, now time.Time) settleFunc {
	let := map[*rivertype.JobInsertParams]flow{}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clean(now)
	for i, jobs := range flows {
		for _, param := range jobs.params[:rooms[i]] {
			let[param] = jobs.flow
			// Before it is inserted: the next insert may count before this one has an id.
			p.setPending(jobs.flow, append(p.byFlow[jobs.flow], pendingInsert{at: now}))
		}
	}
	return func(params []*rivertype.JobInsertParams, results []*rivertype.JobInsertResult) {
		p.mu.Lock()
		defer p.mu.Unlock()
		for i, param := range params {
			if flow, ok := let[param]; ok {
				id, inserted := insertedID(results, i)
				p.settle(flow, now, id, inserted)
			}
		}
	}
}

// settle gives one of the jobs that a flow began to insert at a time its id, or forgets it if it was
// not inserted.
func (p *pendingInserts) settle(key flow, began time.Time, id int64, inserted bool) {
	pending := p.byFlow[key]
	i := slices.IndexFunc(pending, func(insert pendingInsert) bool { return insert.id == 0 && insert.at.Equal(began) })
	switch {
	// It took longer than rememberFor, after which it was taken for rolled back.
	case i < 0:
	case inserted:
		pending[i].id = id
	default:
		p.setPending(key, slices.Delete(pending, i, i+1))
	}
}

// insertedID is the id of a job, or unknownID, and whether it was inserted. An insert that failed
// has no results.
func insertedID(results []*rivertype.JobInsertResult, i int) (id int64, inserted bool) {
	switch {
	case i >= len(results):
		return 0, false
	// River's InsertManyFast and InsertManyFastTx return as many results as there are jobs, all nil.
	case results[i] == nil || results[i].Job == nil:
		return unknownID, true
	default:
		return results[i].Job.ID, !results[i].UniqueSkippedAsDuplicate
	}
}
