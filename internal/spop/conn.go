package spop

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/negasus/haproxy-spoe-go/request"
)

const (
	// firstBuffer holds some dozens of NOTIFYs. A connection whose frames are
	// larger gets a buffer of one frame's size.
	firstBuffer = 8 << 10

	// maxUnsent bounds the answers that wait for a peer that does not read
	// them: thousands, where HAProxy has 20 questions under way.
	maxUnsent = 256 << 10

	// keptBuffer is the largest write buffer that is kept for the next write.
	keptBuffer = 64 << 10

	// linger is how long a drained connection waits for HAProxy to close its
	// end, so that the kernel does not throw away answers that are on their way.
	linger = 200 * time.Millisecond
)

// A conn is the connection that the library gets instead of the socket. One
// goroutine, the library's read loop, calls Read; any number call Write.
type conn struct {
	net.Conn
	server *Server

	// Of the reading goroutine.
	buf      []byte
	r, w     int       // buf[r:w] has been received and not yet been passed on
	ready    []byte    // checked, and about to be passed on: of buf, or a frame of our own
	greeted  bool      // a HELLO was passed on
	deadline time.Time // the socket's read deadline
	out      int       // largest frame that HAProxy takes; written before the first handler runs

	draining atomic.Bool
	closing  sync.Once
	closed   chan struct{}
	more     chan struct{} // an answer was written while the reader waited

	mu         sync.Mutex
	unanswered int    // NOTIFYs passed on whose ACK was not written yet
	waiting    bool   // the reader waits for unanswered to fall
	unsent     []byte // answers to be sent
	spare      []byte // the buffer that unsent had before, for the next exchange
	flushing   bool   // a goroutine is sending, and will send what is added to unsent
	err        error  // why nothing can be sent any more
}

func newConn(s *Server, nc net.Conn) *conn {
	return &conn{
		Conn:   nc,
		server: s,
		buf:    make([]byte, firstBuffer),
		closed: make(chan struct{}),
		more:   make(chan struct{}, 1),
	}
}

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
	f, err := c.checkFrame(raw)
	if err != nil {
		return c.reject(err)
	}
	m := c.server.metrics
	switch f.kind {
	case frameHello:
		c.r += len(raw)
		c.greeted = true
		size := min(f.maxFrame, c.server.bounds.frame)
		c.out = int(size)
		c.ready = appendHello(nil, f, size)
		if f.healthcheck {
			m.healthcheck.Inc()
			if check := c.server.opts.OnCheck; check != nil {
				check(c.Conn)
			}
		} else {
			m.hello.Inc()
		}
	case frameDisconnect:
		c.r += len(raw)
		c.ready = appendDisconnect(nil)
		c.server.disconnected(c, f)
		m.disconnect.Inc()
	default:
		room, err := c.waitForRoom()
		if err != nil {
			return err
		}
		n, size := 1, len(raw)
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
		m.notify.Add(float64(n))
	}
	return nil
}

// checkFrame parses a frame with its length, and holds it against what came before.
func (c *conn) checkFrame(raw []byte) (frame, error) {
	f, err := parseFrame(raw[4:])
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
		got := c.buf[c.r:c.w]
		if raw := wholeFrame(got, limit); raw != nil {
			return raw, nil
		}
		need := 4
		if len(got) >= 4 {
			n := binary.BigEndian.Uint32(got)
			if n > limit {
				return nil, c.reject(rejectOversized)
			}
			need += int(n)
		}
		c.makeRoom(need)
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
		c.w += n
		if n == 0 && err != nil {
			return nil, c.readFailed(err)
		}
	}
}

// makeRoom moves what was received to the front of a buffer that holds need bytes.
func (c *conn) makeRoom(need int) {
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
	case c.draining.Load():
		return io.EOF
	case errors.Is(err, os.ErrDeadlineExceeded):
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

// reject counts a connection that is closed for its peer's fault, and closes it.
func (c *conn) reject(err error) error {
	var r rejection
	if errors.As(err, &r) {
		c.server.reject(c, r)
	}
	c.closeNow()
	return err
}

// handle answers one NOTIFY. It runs in a goroutine of the library's, which
// then writes the ACK.
func (c *conn) handle(req *request.Request) {
	s := c.server
	start := time.Now()
	defer func() {
		if p := recover(); p != nil {
			s.recovered(p)
			req.Actions.Reset()
		}
		s.metrics.handler.Observe(time.Since(start).Seconds())
	}()
	// An ACK begins with its type, flags and ids.
	r := &Request{actions: &req.Actions, room: c.out - 5 - 2*maxVarint, server: s}
	for _, m := range *req.Messages {
		r.name, r.args = m.Name, m.KV.Data()
		s.opts.Handler(r)
	}
}

// Write takes one whole frame. It is sent at once, unless another goroutine is
// sending, which then sends it next, together with what else has come up.
func (c *conn) Write(p []byte) (int, error) {
	c.mu.Lock()
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
	if c.err == nil && len(c.unsent)+len(p) > maxUnsent {
		c.err = c.reject(rejectUnread)
	}
	if c.err != nil {
		defer c.mu.Unlock()
		return 0, c.err
	}
	c.unsent = append(c.unsent, p...)
	if c.flushing {
		c.mu.Unlock()
		return len(p), nil
	}
	c.flushing = true
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
		sending := c.unsent
		c.unsent = c.spare[:0]
		c.mu.Unlock()
		_ = c.SetWriteDeadline(time.Now().Add(c.server.bounds.writeTimeout))
		_, err := c.Conn.Write(sending)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			err = c.reject(rejectWrite)
		}
		c.mu.Lock()
		c.spare = sending
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
	if err != nil {
		c.closeNow()
	}
	return err
}

// finishReading ends reading: what has been received is still answered.
func (c *conn) finishReading() {
	c.draining.Store(true)
	_ = c.SetReadDeadline(time.Now())
}

// Close is called by the library when everything is answered.
func (c *conn) Close() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok && c.draining.Load() && half.CloseWrite() == nil {
		_ = c.SetReadDeadline(time.Now().Add(linger))
		_, _ = io.Copy(io.Discard, c.Conn)
	}
	c.closeNow()
	return nil
}

// closeNow closes the socket at once, which ends every Read and Write.
func (c *conn) closeNow() {
	c.closing.Do(func() {
		close(c.closed)
		_ = c.Conn.Close()
	})
}
