package proctest

import (
	"context"
	"errors"
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

// errStall is why a context of Bound ended early.
var errStall = errors.New("the machine stood still")

// Bound is a context for something that proves nothing once the machine has stood still for
// longer than most: it ends then, and when ctx does. It watches until cancel is called.
func (s *Stalls) Bound(ctx context.Context, most time.Duration) (bounded context.Context, cancel func()) {
	bounded, end := context.WithCancelCause(ctx)
	go WatchNaps(bounded, func(_ time.Time, late time.Duration) {
		if s.note(late); late > most {
			end(errStall)
		}
	})
	return bounded, func() { end(nil) }
}

// Stalled reports whether a context of Bound ended because the machine stood still.
func Stalled(ctx context.Context) bool { return errors.Is(context.Cause(ctx), errStall) }

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
