package riverqos

import (
	"maps"
	"slices"
	"sync"
	"time"
)

// maxUnwritten bounds the ends that a process remembers. Those beyond count as running
// until River has written them.
const maxUnwritten = 1000

// attempt is an attempt at a job.
type attempt struct {
	id          int64
	attemptedAt time.Time // when River began it, by the row
}

// unwrittenEnds are attempts that have ended in this process, but whose rows say neither
// that nor that they have passed: somebody's transaction has locked them, or nobody
// answered. Whoever does not know of them counts them as running: a sweep of another process
// puts the job behind the gate again that came in the place of one of them, and the end of
// that job lets no other through. So this process keeps looking at their users.
type unwrittenEnds struct {
	mu    sync.Mutex
	flows map[attempt]flow
}

// attemptsIn returns the attempts at jobs of some flows.
func (u *unwrittenEnds) attemptsIn(flows []sizedFlow) (attempts []attempt) {
	u.mu.Lock()
	defer u.mu.Unlock()
	// Nearly always: rows are locked by others rarely.
	if len(u.flows) == 0 {
		return nil
	}
	wanted := map[flow]bool{}
	for _, sized := range flows {
		wanted[sized.flow] = true
	}
	for attempt, flow := range u.flows {
		if wanted[flow] {
			attempts = append(attempts, attempt)
		}
	}
	return attempts
}

// allAttempts returns all attempts, and the flows of their jobs.
func (u *unwrittenEnds) allAttempts() (attempts []attempt, flows []flow) {
	u.mu.Lock()
	defer u.mu.Unlock()
	// Many attempts may be of one user, who is to be looked at once.
	listed := map[flow]bool{}
	for attempt, flow := range u.flows {
		attempts, listed[flow] = append(attempts, attempt), true
	}
	return attempts, slices.Collect(maps.Keys(listed))
}

func (u *unwrittenEnds) addAttempt(ended attempt, left flow) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.flows == nil {
		u.flows = map[attempt]flow{}
	}
	// A transaction that holds many rows for long must not fill the memory.
	if len(u.flows) < maxUnwritten {
		u.flows[ended] = left
	}
}

// keepOnly forgets the attempts, but not those at the jobs whose rows are not marked yet.
func (u *unwrittenEnds) keepOnly(attempts []attempt, unmarked []int64) {
	keep := map[int64]bool{}
	for _, id := range unmarked {
		keep[id] = true
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, ended := range attempts {
		if !keep[ended.id] {
			delete(u.flows, ended)
		}
	}
}
