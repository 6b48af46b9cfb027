package riverqos

import (
	"hash/maphash"
	"slices"
	"sync"
	"time"

	"github.com/riverqueue/river/rivertype"
)

// remember is for how long an insert may not be seen yet: its transaction is open. One
// that was rolled back is forgotten after it.
const remember = time.Minute

// admits are the jobs that this process let through the gate and that nobody can see
// yet. Without them a transaction that inserts a thousand jobs one by one would let all
// of them through.
type admits struct {
	locks [64]sync.Mutex // of users and queues, held from a count to its admission

	mu   sync.Mutex
	of   map[flow][]admit // with size 0
	swpt time.Time        // when the old ones were last thrown away
}

type admit struct {
	id int64 // 0 while it is being inserted
	at time.Time
}

var seed = maphash.MakeSeed()

func (f flow) bare() flow { return flow{user: f.user, queue: f.queue} }

// lock keeps others from counting the same users' jobs.
func (a *admits) lock(flows []flow) (unlock func()) {
	var which []int
	for _, f := range flows {
		which = append(which, int(maphash.Comparable(seed, f.bare())%uint64(len(a.locks)))) //nolint:gosec // below 64
	}
	slices.Sort(which) // in one order, so that nobody waits in a circle
	which = slices.Compact(which)
	for _, i := range which {
		a.locks[i].Lock()
	}
	return func() {
		for _, i := range which {
			a.locks[i].Unlock()
		}
	}
}

// ids are of the jobs that may be seen by now.
func (a *admits) ids(flows []flow, now time.Time) []int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	old := now.Add(-remember)
	if a.swpt.Before(old) {
		for f, all := range a.of {
			a.keep(f, slices.DeleteFunc(all, func(x admit) bool { return x.at.Before(old) }))
		}
		a.swpt = now
	}
	ids := []int64{}
	for _, f := range flows {
		for _, x := range a.of[f.bare()] {
			if x.id != 0 {
				ids = append(ids, x.id)
			}
		}
	}
	return ids
}

// unseen is how many jobs of each there are beside those that can be seen.
func (a *admits) unseen(flows []flow, seen []int64) []int {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := make([]int, len(flows))
	for i, f := range flows {
		left := slices.DeleteFunc(a.of[f.bare()], func(x admit) bool { return slices.Contains(seen, x.id) })
		a.keep(f.bare(), left)
		n[i] = len(left)
	}
	return n
}

func (a *admits) keep(f flow, all []admit) {
	if len(all) == 0 {
		delete(a.of, f)
		return
	}
	if a.of == nil {
		a.of = map[flow][]admit{}
	}
	a.of[f] = all
}

// begin notes the jobs that are let through, until it is told what was inserted.
func (a *admits) begin(lines []*line, rooms []int, now time.Time) (settle func([]*rivertype.JobInsertParams, []*rivertype.JobInsertResult)) {
	whose := map[*rivertype.JobInsertParams]flow{}
	a.mu.Lock()
	defer a.mu.Unlock()
	for i, l := range lines {
		for _, p := range l.params[:rooms[i]] {
			whose[p] = l.bare()
			a.keep(l.bare(), append(a.of[l.bare()], admit{at: now}))
		}
	}
	return func(params []*rivertype.JobInsertParams, results []*rivertype.JobInsertResult) {
		a.mu.Lock()
		defer a.mu.Unlock()
		for i, p := range params {
			f, ok := whose[p]
			if !ok {
				continue
			}
			all := a.of[f]
			at := slices.IndexFunc(all, func(x admit) bool { return x.id == 0 && x.at.Equal(now) })
			if at < 0 { // it took longer than a minute
				continue
			}
			if i < len(results) && results[i] != nil && results[i].Job != nil && !results[i].UniqueSkippedAsDuplicate {
				all[at].id = results[i].Job.ID
				continue
			}
			a.keep(f, slices.Delete(all, at, at+1)) // not inserted, or nobody knows its id
		}
	}
}
