package spop

import (
	"errors"
	"io"
	"net"
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
			// HAProxy gets an answer without variables, which means allowed: a fault of ours fails no request.
			s.recovered(p)
			req.Actions.Reset()
		}
		s.metrics.handler.Observe(time.Since(start).Seconds())
	}()
	// An ACK begins with its type, flags and ids.
	// One for all messages, because they share the room of one ACK.
	r := &Request{actions: &req.Actions, room: c.out - 5 - 2*maxVarint, server: s}
	for _, m := range *req.Messages {
		r.name, r.args = m.Name, m.KV.Data()
		s.opts.Handler(r)
	}
}

// finishReading ends reading: what has been received is still answered.
func (c *conn) finishReading() {
	// First the flag, then the deadline: a read that fails by the deadline finds out by the flag that it is
	// the end.
	c.draining.Store(true)
	_ = c.SetReadDeadline(time.Now())
}

// Close is called by the library when everything is answered.
func (c *conn) Close() error {
	// HAProxy may have sent something that nobody has read. To close then makes the kernel reset the
	// connection, and throw away answers that HAProxy has not read yet.
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
