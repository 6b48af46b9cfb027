package riverqos

import (
	"context"
	"sync"
	"time"
)

const (
	// maxUnwritten bounds the ends that a process remembers. Those beyond count as running
	// until River has written them.
	maxUnwritten = 1000
	// everyUnwritten is the time between two looks at them.
	everyUnwritten = time.Second / 2
)

// attempt is an attempt at a job.
type attempt struct {
	id int64
	at time.Time // attempted_at
}

// unwritten are attempts that have ended in this process, but whose rows say neither that
// nor that they have passed: somebody's transaction has locked them, or nobody answered.
// Whoever does not know of them counts them as running: a sweep of another process puts
// the job behind the gate again that came in the place of one of them, and the end of
// that job lets no other through. So this process keeps looking at their users.
type unwritten struct {
	mu sync.Mutex
	of map[attempt]flow // with size 0
}

// among are the attempts at jobs of these users in these queues.
func (u *unwritten) among(flows []flow) (all []attempt) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.of) == 0 {
		return nil
	}
	is := map[flow]bool{}
	for _, f := range flows {
		is[f.bare()] = true
	}
	for a, f := range u.of {
		if is[f] {
			all = append(all, a)
		}
	}
	return all
}

// all are the attempts, and whose and where they are.
func (u *unwritten) all() (all []attempt, flows []flow) {
	u.mu.Lock()
	defer u.mu.Unlock()
	is := map[flow]bool{}
	for a, f := range u.of {
		all = append(all, a)
		if !is[f] {
			is[f] = true
			flows = append(flows, f)
		}
	}
	return all, flows
}

func (u *unwritten) add(a attempt, f flow) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.of == nil {
		u.of = map[attempt]flow{}
	}
	if len(u.of) < maxUnwritten {
		u.of[a] = f.bare()
	}
}

// settle forgets the attempts, but not those at the jobs that are left.
func (u *unwritten) settle(all []attempt, left []int64) {
	still := map[int64]bool{}
	for _, id := range left {
		still[id] = true
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, a := range all {
		if !still[a.id] {
			delete(u.of, a)
		}
	}
}

// unwrittenLoop lets jobs through in the place of ended ones, until River has written that
// these have ended.
func (f *Fairness) unwrittenLoop(ctx context.Context) {
	every(ctx, everyUnwritten, func() {
		_, flows := f.unwritten.all()
		asker := f.asker()
		for i := range flows {
			flows[i].size = asker.tier(ctx, flows[i].user).Limits.Of(service(flows[i].queue))
		}
		f.promote(ctx, flows)
	})
}
