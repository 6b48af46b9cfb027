package riverqos

import (
	"maps"
	"slices"
	"sync"
	"time"
)

// maxUnwritten bounds the ends that a process remembers. Those beyond count as running
// until River has written them.
const maxUnwritten = 10_000

const (
	// writtenAfter is after what time River should have written an end, which it does every 50 to 250 ms.
	writtenAfter = 300 * time.Millisecond
	// overdueAfter is after what time an end is marked that nothing waits for: River is in trouble then.
	overdueAfter = time.Second
)

// attempt is an attempt at a job.
type attempt struct {
	id          int64
	attemptedAt time.Time // when River began it, by the row
}

// unwrittenEnds are attempts that have ended in this process, but whose rows may say neither
// that nor that they have passed: nothing was known to wait for them, somebody's transaction
// has locked them, or nobody answered. Whoever does not know of them counts them as running: a
// sweep of another process puts the job behind the gate again that came in the place of one of
// them, and the end of that job lets no other through. So this process keeps looking at their
// users.
type unwrittenEnds struct {
	mu     sync.Mutex
	flows  map[attempt]unwrittenEnd
	byFlow map[flow]map[attempt]bool
}

type unwrittenEnd struct {
	flow
	since time.Time
}

// attemptsIn returns the attempts at jobs of some flows, and the ids of those whose end River
// should have written by now.
func (u *unwrittenEnds) attemptsIn(flows []sizedFlow, now time.Time) (attempts []attempt, overdue []int64) {
	overdue = []int64{} // nil would be NULL
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, sized := range flows {
		for attempt := range u.byFlow[sized.flow] {
			attempts = append(attempts, attempt)
			if now.Sub(u.flows[attempt].since) > overdueAfter {
				overdue = append(overdue, attempt.id)
			}
		}
	}
	return attempts, overdue
}

// allAttempts returns all attempts, and the flows of their jobs.
func (u *unwrittenEnds) allAttempts() (attempts []attempt, flows []flow) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Collect(maps.Keys(u.flows)), slices.Collect(maps.Keys(u.byFlow))
}

// endedBefore returns the attempts that ended before a time, and the flow that the job of each has left.
func (u *unwrittenEnds) endedBefore(limit time.Time) (attempts []attempt, flows []flow) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for attempt, end := range u.flows {
		if end.since.Before(limit) {
			attempts, flows = append(attempts, attempt), append(flows, end.flow)
		}
	}
	return attempts, flows
}

// addAttempt remembers an attempt, unless there are too many.
func (u *unwrittenEnds) addAttempt(ended attempt, left flow) (added bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.flows == nil {
		u.flows, u.byFlow = map[attempt]unwrittenEnd{}, map[flow]map[attempt]bool{}
	}
	// A transaction that holds many rows for long must not fill the memory.
	if len(u.flows) >= maxUnwritten {
		return false
	}
	u.flows[ended] = unwrittenEnd{left, time.Now()}
	if u.byFlow[left] == nil {
		u.byFlow[left] = map[attempt]bool{}
	}
	u.byFlow[left][ended] = true
	return true
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
		end, ok := u.flows[ended]
		if keep[ended.id] || !ok {
			continue
		}
		delete(u.flows, ended)
		// Flows without attempts would be looked at for nothing.
		if delete(u.byFlow[end.flow], ended); len(u.byFlow[end.flow]) == 0 {
			delete(u.byFlow, end.flow)
		}
	}
}
