package concurrency

import "time"

// setBackSpan is how far a clock runs back that has been set.
const setBackSpan = 100 * time.Millisecond

// clock is a core's time in nanoseconds: the machine's, but that it goes on where that was
// set back, lest everything wait until it is as late again. The zero clock is ready.
type clock struct {
	now     int64 // of the last call
	setBack int64 // by how much the machine's clock was set back in all
}

// coreTime returns the core's time at a time of the machine.
func (c *clock) coreTime(at time.Time) int64 {
	now := at.UnixNano() + c.setBack
	if back := c.now - now; back >= int64(setBackSpan) {
		c.setBack += back
		now = c.now
	}
	c.now = now
	return now
}
