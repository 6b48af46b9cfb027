package testkit

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
	WatchNaps(ctx, func(_ time.Time, late time.Duration) { s.note(late) })
}

// WatchNaps tells of each of many naps when it began and how late it ended, until ctx ends.
func WatchNaps(ctx context.Context, note func(began time.Time, late time.Duration)) {
	const nap = 10 * time.Millisecond
	for ctx.Err() == nil {
		began := time.Now()
		time.Sleep(nap)
		note(began, time.Since(began)-nap)
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
