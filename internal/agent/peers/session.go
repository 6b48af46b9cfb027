package peers

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// maxWrite is about how many bytes are put into one write. It bounds how long Teach
	// may wait for the lock while entries are collected.
	maxWrite = 32 << 10
	// maxTables bounds the tables that HAProxy may define.
	maxTables = 256
)

// A session is one connection to HAProxy. One goroutine reads and another one writes; the
// one that reads leaves in owed what it wants to have sent.
type session struct {
	c    *Client
	id   uint64
	conn net.Conn
	in   *bufio.Reader

	// These belong to the goroutine that reads.
	tables map[uint64]*learned // by HAProxy's id
	table  *learned            // the table that updates are about; nil before the first definition

	// These belong to the goroutine that writes.
	defined   []bool       // taught tables that were announced
	current   int          // index of the table announced or switched to last, -1 at first
	updates   []uint32     // by taught table: id of the last update
	finishing bool         // a resync was asked for and "finished" is not sent yet
	wrote     atomic.Int64 // Unix nanoseconds of the last write

	mu   sync.Mutex
	owed owed
}

type learned struct {
	definition
	last uint32 // id of the last update
}

type owed struct {
	acks     map[uint64]uint32 // by HAProxy's table id: the last update learned
	confirms int               // how many messages "finished" and "partial" are unanswered
	resync   bool
}

func newSession(c *Client, id uint64, conn net.Conn) *session {
	return &session{
		c:       c,
		id:      id,
		conn:    conn,
		in:      bufio.NewReaderSize(idleReader{conn, idleTimeout}, maxMessage),
		tables:  make(map[uint64]*learned),
		defined: make([]bool, len(c.tables)),
		current: -1,
		updates: make([]uint32, len(c.tables)),
		owed:    owed{acks: make(map[uint64]uint32)},
	}
}

type idleReader struct {
	net.Conn
	timeout time.Duration
}

func (r idleReader) Read(b []byte) (int, error) {
	// HAProxy sends a heartbeat when it has nothing else to say, so silence means that it hangs or is gone.
	_ = r.SetReadDeadline(time.Now().Add(r.timeout)) // a closed connection fails in Read
	return r.Conn.Read(b)
}

func (s *session) silence() time.Duration { return time.Since(time.Unix(0, s.wrote.Load())) }

func (s *session) handshake(deadline time.Time) error {
	// One deadline for the connection and its handshake: who retries should not wait for twice as long.
	_ = s.conn.SetWriteDeadline(deadline)
	if _, err := s.conn.Write(appendHello(nil, s.c.opts.Remote, s.c.opts.Local, os.Getpid())); err != nil {
		return err
	}
	// The idle timeout is set by each read, so this one ends the connection.
	expired := time.AfterFunc(time.Until(deadline), func() { _ = s.conn.Close() })
	err := readStatus(s.in)
	if !expired.Stop() {
		return fmt.Errorf("no answer: %w", os.ErrDeadlineExceeded)
	}
	return err
}

// exchange exchanges messages until one direction fails or ctx is done, and returns
// the failure that came first.
func (s *session) exchange(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	var reading sync.WaitGroup
	reading.Go(func() {
		cancel(s.readMessages())
		_ = s.conn.Close() // a write may be under way
	})
	// Whichever direction fails first tells why: the other one then fails only because the connection is
	// closed.
	cancel(s.writeOwed(ctx))
	_ = s.conn.Close()
	reading.Wait()
	return context.Cause(ctx)
}
