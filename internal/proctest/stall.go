package proctest

import (
	"context"
	"sync"
	"time"
)

// Stalls knows for how long this process stood still, and with it the machine: on one
// whose host takes the processors away, nothing runs meanwhile. What is judged by time
// cannot be judged then. The zero value has seen none.
type Stalls struct {
	mu      sync.Mutex
	longest time.Duration
}

// Watch notices stalls until ctx ends.
func (s *Stalls) Watch(ctx context.Context) {
	const nap = 10 * time.Millisecond
	for ctx.Err() == nil {
		began := time.Now()
		time.Sleep(nap)
		s.note(time.Since(began) - nap)
	}
}

func (s *Stalls) note(late time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.longest = max(s.longest, late)
}

// Longest is the longest stall so far.
func (s *Stalls) Longest() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.longest
}
