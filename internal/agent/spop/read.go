package spop

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"time"
)

// Read returns bytes of frames that were parsed to their end, and nothing else.
// io.EOF makes the library answer what it has, and close.
func (c *conn) Read(p []byte) (int, error) {
	if len(c.ready) == 0 {
		if err := c.advance(); err != nil {
			return 0, err
		}
	}
	n := copy(p, c.ready)
	c.ready = c.ready[n:]
	return n, nil
}

// advance waits for a frame, checks it, and makes it ready together with the
// NOTIFYs behind it that have arrived and may be handled. The library asks for
// nothing more after a health check or a DISCONNECT.
func (c *conn) advance() error {
	raw, err := c.receive()
	if err != nil {
		return err
	}
	// Before the library sees a byte of it: a malformed frame panics its read loop, and one connection ends
	// here for it, and no other.
	f, err := c.checkFrame(raw)
	if err != nil {
		return c.reject(err)
	}
	m := c.server.metrics
	switch f.kind {
	case frameHello:
		c.r += len(raw)
		c.greeted = true
		// The smaller one of both sides'. HAProxy closes a connection on which it gets more than it has agreed
		// to, and with it everybody's requests on it.
		size := min(f.maxFrame, c.server.bounds.frame)
		c.out = int(size)
		c.ready = appendHello(nil, f, size)
		if f.healthcheck {
			m.healthcheck.Inc()
			// Health checks come on connections of their own, by which the agent knows which HAProxy process
			// asks.
			if check := c.server.opts.OnCheck; check != nil {
				check(c.Conn)
			}
		} else {
			m.hello.Inc()
		}
	case frameDisconnect:
		c.r += len(raw)
		// Its text is for the log alone. The library only needs to know that nothing more comes.
		c.ready = appendDisconnect(nil)
		c.server.disconnected(c, f)
		m.disconnect.Inc()
	default:
		return c.handOver(raw)
	}
	return nil
}

// handOver makes a NOTIFY ready, together with those behind it that have arrived and may be handled.
func (c *conn) handOver(first []byte) error {
	// Nothing is read meanwhile: HAProxy feels that, and opens another connection or lets its time-out
	// decide. The library would start a goroutine for each, however many are under way.
	room, err := c.waitForRoom()
	if err != nil {
		return err
	}
	// Handed over together, so that their answers are ready together and need one write: a system call
	// costs as much as several verdicts.
	n, size := 1, len(first)
	for ; n < room; n++ {
		next := wholeFrame(c.buf[c.r+size:c.w], c.server.bounds.frame)
		if next == nil {
			break
		}
		// What is not a good NOTIFY waits for the next call.
		if f, err := c.checkFrame(next); err != nil || f.kind != frameNotify {
			break
		}
		size += len(next)
	}
	c.ready = c.buf[c.r : c.r+size]
	c.r += size
	c.mu.Lock()
	c.unanswered += n
	c.mu.Unlock()
	c.server.metrics.notify.Add(float64(n))
	return nil
}

// checkFrame parses a frame with its length, and holds it against what came before.
func (c *conn) checkFrame(raw []byte) (frame, error) {
	f, err := parseFrame(raw[4:])
	// A HELLO comes first and once. The library does not ask for it, and would answer before it knows how
	// large a frame may be.
	if err == nil && (f.kind == frameHello) == c.greeted {
		err = rejectOrder
	}
	return f, err
}

// wholeFrame is the frame at the front of b with its length, or nil as long as a
// part of it is missing or it is longer than limit.
func wholeFrame(b []byte, limit uint32) []byte {
	if len(b) < 4 {
		return nil
	}
	n := binary.BigEndian.Uint32(b)
	// One that is longer than agreed is no frame at all. receive rejects it by its length, before it waits for
	// the rest or makes room for it.
	if n > limit || uint64(len(b)-4) < uint64(n) {
		return nil
	}
	return b[:4+n]
}

// receive waits until a whole frame is in the buffer, and leaves it there. A
// HELLO, and a frame that has begun, must arrive in helloTimeout, however
// slowly it drips.
func (c *conn) receive() ([]byte, error) {
	limit := c.server.bounds.frame
	timed := false
	for {
		// What came together with the frame before is looked at first: it may be whole already.
		got := c.buf[c.r:c.w]
		if raw := wholeFrame(got, limit); raw != nil {
			return raw, nil
		}
		// As much as the length says is made room for, and not more than the limit, whatever is claimed.
		need := 4
		if len(got) >= 4 {
			n := binary.BigEndian.Uint32(got)
			if n > limit {
				return nil, c.reject(rejectOversized)
			}
			need += int(n)
		}
		c.makeRoom(need)
		// Between two frames a connection may be silent for long: HAProxy keeps some for when they are needed.
		// Within one, or before the HELLO, silence is an attempt to hold the connection.
		if c.greeted && len(got) == 0 {
			c.setIdleDeadline()
		} else if !timed {
			timed = true
			c.setDeadline(time.Now().Add(c.server.bounds.helloTimeout))
		}
		// After the deadline was set: drain may have come in between.
		if c.draining.Load() {
			return nil, io.EOF
		}
		n, err := c.Conn.Read(c.buf[c.w:])
		// An error may come together with the last bytes, which may make a frame whole.
		c.w += n
		if n == 0 && err != nil {
			return nil, c.readFailed(err)
		}
	}
}

// makeRoom moves what was received to the front of a buffer that holds need bytes.
func (c *conn) makeRoom(need int) {
	// What is in the way has been passed on, and the library has copied it.
	if c.r > 0 {
		c.w = copy(c.buf, c.buf[c.r:c.w])
		c.r = 0
	}
	if need > len(c.buf) {
		buf := make([]byte, need)
		copy(buf, c.buf[:c.w])
		c.buf = buf
	}
}

// setIdleDeadline lets the connection be silent for idleTimeout. The deadline
// is moved only when it has lost an eighth of that, because moving it is dear.
func (c *conn) setIdleDeadline() {
	idle := c.server.bounds.idleTimeout
	now := time.Now()
	if left := c.deadline.Sub(now); left < idle*7/8 || left > idle {
		c.setDeadline(now.Add(idle))
	}
}

func (c *conn) setDeadline(t time.Time) {
	c.deadline = t
	_ = c.SetReadDeadline(t) // fails on a closed socket, and then so does Read
}

func (c *conn) readFailed(err error) error {
	switch {
	// The deadline that fails here is the one that drain set, to end reading.
	case c.draining.Load():
		return io.EOF
	case errors.Is(err, os.ErrDeadlineExceeded):
		// Nobody's fault: HAProxy opens another one when it needs it.
		if c.greeted && c.r == c.w {
			c.server.log.Debug("SPOE connection idle, closing", "remote", c.RemoteAddr())
			return io.EOF
		}
		return c.reject(rejectTimeout)
	}
	return err
}

// waitForRoom waits until at least one NOTIFY more may be handled, and returns how many.
func (c *conn) waitForRoom() (int, error) {
	for {
		c.mu.Lock()
		// Set under the lock that Write counts under: an answer between the two looks would not be noticed,
		// and the reader would wait forever.
		free := c.server.bounds.inFlight - c.unanswered
		c.waiting = free <= 0
		c.mu.Unlock()
		if free > 0 {
			return free, nil
		}
		select {
		case <-c.more:
		case <-c.closed:
			return 0, net.ErrClosed
		}
	}
}
