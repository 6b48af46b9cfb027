package peers

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// writeOwed asks HAProxy for all its entries, teaches it all live ones, and then sends each
// change and answer, until a write fails or ctx is done.
func (s *session) writeOwed(ctx context.Context) error {
	s.c.mu.Lock()
	s.c.live.rewind()
	s.c.mu.Unlock()

	// HAProxy gives up a session in which it hears nothing for 5 s.
	heartbeat := time.NewTicker(heartbeatInterval)
	defer heartbeat.Stop()
	// HAProxy pushes changes only. What it had before this session it tells when it is asked.
	out := appendControl(nil, controlResync)
	for {
		out = s.appendEntries(s.appendOwed(out))
		// Nothing is waited for as long as there is something to send: entries beyond maxWrite go with the
		// next write.
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
		// A HAProxy that is stopped reads nothing. The session ends, and with it the belief that HAProxy knows
		// of a block.
		_ = s.conn.SetWriteDeadline(time.Now().Add(idleTimeout))
		if _, err := s.conn.Write(out); err != nil {
			return fmt.Errorf("write: %w", err)
		}
		s.wrote.Store(time.Now().UnixNano())
		out = out[:0]
	}
}

func (s *session) appendOwed(out []byte) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	// In no order: each is of another table, and says all that HAProxy needs to know of it.
	for table, update := range s.owed.acks {
		out = appendAck(out, table, update)
	}
	clear(s.owed.acks)
	for ; s.owed.confirms > 0; s.owed.confirms-- {
		out = appendControl(out, controlConfirm)
	}
	if s.owed.resync {
		s.owed.resync = false
		// "Finished" follows when the last of them was sent, so that HAProxy does not believe before that it
		// has all.
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
	// Teach waits for this lock. So it is given up after each write, however much there is to send.
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
	// An update does not say which table it is of: it is the one that was announced or switched to last.
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
	// Counted for each table and session, as HAProxy acknowledges them.
	s.updates[e.table]++
	return appendTimed(out, s.updates[e.table], e.until.Sub(now), e.key, e.values)
}
