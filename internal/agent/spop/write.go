package spop

import (
	"errors"
	"os"
	"runtime"
	"time"
)

// Write takes one whole frame. It is sent at once, unless another goroutine is
// sending, which then sends it next, together with what else has come up.
func (c *conn) Write(p []byte) (int, error) {
	c.mu.Lock()
	// The HELLO that the library answers with comes this way, too, and was none of the questions.
	if len(p) > 4 && p[4] == frameAck {
		c.unanswered--
		if c.waiting {
			c.waiting = false
			select {
			case c.more <- struct{}{}:
			default:
			}
		}
	}
	// A peer that asks and does not read would have its answers kept without end.
	if c.err == nil && len(c.unsent)+len(p) > maxUnsent {
		c.err = c.reject(rejectUnread)
	}
	if c.err != nil {
		defer c.mu.Unlock()
		return 0, c.err
	}
	c.unsent = append(c.unsent, p...)
	// Whoever is sending takes this along: no answer waits for longer than one write, and none of the others
	// pays for a system call.
	if c.flushing {
		c.mu.Unlock()
		return len(p), nil
	}
	c.flushing = true
	// With nothing else under way there is nobody to wait for, and the answer leaves at once.
	others := c.unanswered > 0
	c.mu.Unlock()
	if others {
		// Handlers that are ready to run add their answers first. When all of
		// them wait for something, this returns at once.
		runtime.Gosched()
	}
	if err := c.sendUnsent(); err != nil {
		return 0, err
	}
	return len(p), nil
}

// sendUnsent sends until nothing is left to send. The buffer that is being sent is
// out of reach of Write; the two take turns.
func (c *conn) sendUnsent() error {
	c.mu.Lock()
	for c.err == nil && len(c.unsent) > 0 {
		// Two buffers in turn, so that Write adds to the one while the other is sent, and neither is made
		// anew.
		sending := c.unsent
		c.unsent = c.spare[:0]
		c.mu.Unlock()
		// HAProxy reads at once or not at all: one that is stopped must not hold the goroutines of its
		// requests.
		_ = c.SetWriteDeadline(time.Now().Add(c.server.bounds.writeTimeout))
		_, err := c.Conn.Write(sending)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			err = c.reject(rejectWrite)
		}
		c.mu.Lock()
		c.spare = sending
		// After a burst, else each connection would keep the memory of its worst moment.
		if cap(sending) > keptBuffer {
			c.spare = nil
		}
		if c.err == nil {
			c.err = err
		}
	}
	c.flushing = false
	err := c.err
	c.mu.Unlock()
	// Answers that were not sent nobody waits for any more: HAProxy goes on without after its time-out.
	if err != nil {
		c.closeNow()
	}
	return err
}
