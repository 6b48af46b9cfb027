package daemon

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// window is the number of samples that are compared. At one sample every
// 250 ms it spans 4 s, in which clocks drift apart by less than a millisecond
// even at 100 ppm; in a cluster of 2000 instances 32 s, and 3 ms.
const window = 16

// start is when this process read the machine's clock, once.
var start = time.Now()

// unsetTime is the machine's time at t, as if its clock had not been set since the
// start of the process.
func unsetTime(t time.Time) time.Time { return start.Add(t.Sub(start)).Round(0) }

// Clock tells the cluster's time: the clock of the shared Redis, as seen from here. Each answer of Redis carries its
// time. Half of the round trip is the most that such a sample can be wrong, so the estimate follows the sample with the
// shortest round trip of the last few. Between samples it follows the machine's monotonic clock, so that a machine whose
// clock is set does not find itself in another second.
//
// The zero Clock tells the machine's own time. It is safe for concurrent use.
type Clock struct {
	offset atomic.Int64 // cluster time − machine time, ns

	mu      sync.Mutex
	samples [window]sample
	n       int
}

type sample struct {
	offset    time.Duration
	roundTrip time.Duration
}

// Sleep waits for a while, and reports whether that has passed before ctx ended.
func Sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// Now is the cluster's time.
func (c *Clock) Now() time.Time { return unsetTime(time.Now()).Add(time.Duration(c.offset.Load())) }

// Offset is what is added to the machine's time.
func (c *Clock) Offset() time.Duration { return time.Duration(c.offset.Load()) }

// Sample takes an answer of Redis: its own time, and the machine's time when
// the question was sent and the answer received.
func (c *Clock) Sample(sent, received, remote time.Time) {
	roundTrip := received.Sub(sent)
	middle := unsetTime(received).Add(-roundTrip / 2)
	s := sample{offset: remote.Round(0).Sub(middle), roundTrip: roundTrip}

	c.mu.Lock()
	defer c.mu.Unlock()
	c.samples[c.n%window] = s
	c.n++
	best := s
	for _, other := range c.samples[:min(c.n, window)] {
		if other.roundTrip < best.roundTrip {
			best = other
		}
	}
	// A clock that was set is told by a sample that no error bound explains.
	if d := best.offset - s.offset; d > s.roundTrip+best.roundTrip || -d > s.roundTrip+best.roundTrip {
		c.samples, c.n = [window]sample{s}, 1
		best = s
	}
	c.offset.Store(int64(best.offset))
}
