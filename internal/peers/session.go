package peers

import (
	"bufio"
	"context"
	"errors"
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

// learned is a table of HAProxy's.
type learned struct {
	definition
	last uint32 // id of the last update
}

// owed is what HAProxy has still to be answered.
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

// idleReader gives each read its own deadline.
type idleReader struct {
	net.Conn
	timeout time.Duration
}

func (r idleReader) Read(b []byte) (int, error) {
	_ = r.SetReadDeadline(time.Now().Add(r.timeout)) // a closed connection fails in Read
	return r.Conn.Read(b)
}

// silence is how long ago the last write was.
func (s *session) silence() time.Duration { return time.Since(time.Unix(0, s.wrote.Load())) }

func (s *session) handshake(deadline time.Time) error {
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
	cancel(s.writeOwed(ctx))
	_ = s.conn.Close()
	reading.Wait()
	return context.Cause(ctx)
}

// readMessages handles messages until one fails.
func (s *session) readMessages() error {
	for {
		m, err := readMessage(s.in)
		if err == nil {
			err = s.handle(m)
		}
		if err != nil {
			return fmt.Errorf("read: %w", err)
		}
		if s.in.Buffered() == 0 { // one answer to all that came at once
			s.c.wakeWriter()
		}
	}
}

func (s *session) handle(m message) error {
	switch m.class {
	case classControl:
		return s.handleControl(m.kind)
	case classTable:
		return s.handleTable(m)
	case classError:
		return protocolErrorf("HAProxy reports error %d", m.kind)
	}
	return protocolErrorf("message of class %d", m.class)
}

func (s *session) handleControl(kind byte) error {
	switch kind {
	case controlHeartbeat, controlConfirm:
	case controlResync:
		s.addOwed(func(o *owed) { o.resync = true })
	case controlFinished, controlPartial:
		s.addOwed(func(o *owed) { o.confirms++ })
		s.c.tellSession(Session{ID: s.id, State: Synced})
	default:
		return protocolErrorf("control message %d", kind)
	}
	return nil
}

func (s *session) handleTable(m message) error {
	switch m.kind {
	case tableDefinition:
		return s.define(m.body)
	case tableSwitch:
		id, err := parseSwitch(m.body)
		if err != nil {
			return err
		}
		if s.table = s.tables[id]; s.table == nil {
			return protocolErrorf("switch to table %d, which is not defined", id)
		}
		return nil
	case tableUpdate, tableIncremental, tableTimed, tableTimedIncremental:
		return s.handleUpdate(m)
	case tableAck:
		table, update, err := parseAck(m.body)
		s.c.metrics.acked.Inc()
		if err == nil {
			s.handleAck(table, update)
		}
		return err
	}
	return protocolErrorf("table message %d", m.kind)
}

// handleAck measures how long HAProxy took to acknowledge, and calls the functions that wait
// for it. A taught table's id is its index plus 1.
func (s *session) handleAck(table uint64, update uint32) {
	if table == 0 || table > uint64(len(s.c.tables)) {
		return
	}
	s.c.mu.Lock()
	done := s.c.samples.takeAcked(s.id, int(table)-1, update)
	s.c.mu.Unlock()
	for _, f := range done {
		s.c.metrics.ack.Observe(time.Since(f.at).Seconds())
		if f.then != nil {
			f.then()
		}
	}
}

func (s *session) define(body []byte) error {
	d, err := parseDefinition(body)
	if err != nil {
		return err
	}
	// HAProxy repeats the definition whenever it switches to the table.
	if s.table = s.tables[d.id]; s.table == nil {
		if len(s.tables) >= maxTables {
			return protocolErrorf("more than %d tables", maxTables)
		}
		s.table = &learned{}
		s.tables[d.id] = s.table
	}
	s.table.definition = d
	return nil
}

func (s *session) handleUpdate(m message) error {
	if s.table == nil {
		return protocolErrorf("update before any table")
	}
	if !s.table.readable() {
		return nil
	}
	id, u, err := s.table.parseUpdate(m.kind, m.body, s.table.last)
	if err != nil {
		return err
	}
	s.table.last = id
	s.c.metrics.learned.Inc()
	s.addOwed(func(o *owed) { o.acks[s.table.id] = id })
	if s.c.opts.Learn != nil {
		u.Session, u.Table = s.id, s.table.name
		s.c.opts.Learn(u)
	}
	return nil
}

func (s *session) addOwed(add func(*owed)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	add(&s.owed)
}

// writeOwed asks HAProxy for all its entries, teaches it all live ones, and then sends each
// change and answer, until a write fails or ctx is done.
func (s *session) writeOwed(ctx context.Context) error {
	s.c.mu.Lock()
	s.c.live.rewind()
	s.c.mu.Unlock()

	heartbeat := time.NewTicker(heartbeatInterval)
	defer heartbeat.Stop()
	out := appendControl(nil, controlResync)
	for {
		out = s.appendEntries(s.appendOwed(out))
		for len(out) == 0 {
			select {
			case <-ctx.Done():
				return errors.New("session over")
			case <-heartbeat.C:
				out = appendControl(out, controlHeartbeat)
			case <-s.c.wake:
				out = s.appendEntries(s.appendOwed(out))
			}
		}
		_ = s.conn.SetWriteDeadline(time.Now().Add(idleTimeout))
		if _, err := s.conn.Write(out); err != nil {
			return fmt.Errorf("write: %w", err)
		}
		s.wrote.Store(time.Now().UnixNano())
		out = out[:0]
	}
}

// appendOwed appends the answers that HAProxy waits for.
func (s *session) appendOwed(out []byte) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	for table, update := range s.owed.acks {
		out = appendAck(out, table, update)
	}
	clear(s.owed.acks)
	for ; s.owed.confirms > 0; s.owed.confirms-- {
		out = appendControl(out, controlConfirm)
	}
	if s.owed.resync {
		s.owed.resync = false
		s.finishing = true
		s.c.mu.Lock()
		s.c.live.rewind()
		s.c.mu.Unlock()
	}
	return out
}

// appendEntries appends unsent entries until all are, or the write is large
// enough.
func (s *session) appendEntries(out []byte) []byte {
	now := time.Now()
	sent := 0

	s.c.mu.Lock()
	s.c.live.expire(now, s.c.countLate)
	for len(out) < maxWrite {
		e := s.c.live.nextUnsent()
		if e == nil {
			if s.finishing {
				s.finishing = false
				out = appendControl(out, controlFinished)
			}
			break
		}
		out = s.appendEntry(out, e, now)
		sent++
	}
	s.c.mu.Unlock()

	s.c.metrics.taught.Add(float64(sent))
	return out
}

func (s *session) appendEntry(out []byte, e *entry, now time.Time) []byte {
	if s.current != e.table {
		d := s.c.tables[e.table]
		if s.defined[e.table] {
			out = appendSwitch(out, d.id)
		} else {
			out = appendDefinition(out, d)
			s.defined[e.table] = true
		}
		s.current = e.table
	}
	s.updates[e.table]++
	s.c.samples.markSent(e, s.id, s.updates[e.table])
	return appendTimed(out, s.updates[e.table], e.until.Sub(now), e.key, e.values)
}
