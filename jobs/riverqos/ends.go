package riverqos

import (
	"context"
	"sync"
)

// endedAttempt is an attempt that has ended, and the flow that its job has left.
type endedAttempt struct {
	attempt
	left sizedFlow
}

// endsQueue collects jobs that end while a statement about others is under way: when many end
// at a time, a statement for each would cost more than the jobs. Workers wait for the
// statement, so there are no more in it than workers.
type endsQueue struct {
	running chan struct{} // of capacity 1: a statement is under way

	mu   sync.Mutex
	next *endsBatch // nil if nobody waits
}

type endsBatch struct {
	ends []endedAttempt
	done chan struct{} // closed when the statement has ended
}

func newEndsQueue() endsQueue { return endsQueue{running: make(chan struct{}, 1)} }

// share has do called with an end and those that come until the call before has returned, and
// returns after it.
func (q *endsQueue) share(ctx context.Context, ended endedAttempt, do func(context.Context, []endedAttempt)) {
	batch, first := q.join(ended)
	if !first {
		// No longer than the first of the batch is patient.
		<-batch.done
		return
	}
	defer close(batch.done)
	select {
	case q.running <- struct{}{}:
		defer func() { <-q.running }()
	case <-ctx.Done():
		// The call fails, and its ends are remembered.
	}
	q.mu.Lock()
	q.next = nil
	q.mu.Unlock()
	do(ctx, batch.ends)
}

// join puts an end into the next batch, and reports whether it is the first one there.
func (q *endsQueue) join(ended endedAttempt) (batch *endsBatch, first bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if first = q.next == nil; first {
		q.next = &endsBatch{done: make(chan struct{})}
	}
	q.next.ends = append(q.next.ends, ended)
	return q.next, first
}
