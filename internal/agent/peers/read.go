package peers

import (
	"fmt"
)

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
		// HAProxy pushes thousands of updates in a row after a reconnect, and an acknowledgement stands for
		// all before it.
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
	// That they have come has moved the deadline already.
	case controlHeartbeat, controlConfirm:
	// HAProxy has started anew, or has lost what it had: it gets everything again, from the writer.
	case controlResync:
		s.addOwed(func(o *owed) { o.resync = true })
	// Partial says that HAProxy itself may not have everything. There is nobody else who has more of its own
	// requests.
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
		// What follows would be read by the definition of another table. A session that begins anew puts that
		// right.
		if s.table = s.tables[id]; s.table == nil {
			return protocolErrorf("switch to table %d, which is not defined", id)
		}
		return nil
	case tableUpdate, tableIncremental, tableTimed, tableTimedIncremental:
		return s.handleUpdate(m)
	case tableAck:
		s.c.metrics.acked.Inc()
		_, _, err := parseAck(m.body)
		return err
	}
	return protocolErrorf("table message %d", m.kind)
}

func (s *session) define(body []byte) error {
	d, err := parseDefinition(body)
	if err != nil {
		return err
	}
	// HAProxy repeats the definition whenever it switches to the table.
	if s.table = s.tables[d.id]; s.table == nil {
		// HAProxy defines the few tables of its peers section. Somebody else on its socket must not fill the
		// memory.
		if len(s.tables) >= maxTables {
			return protocolErrorf("more than %d tables", maxTables)
		}
		s.table = &learned{}
		s.tables[d.id] = s.table
	}
	// The id of the last update stays, for incremental ones go on from it.
	s.table.definition = d
	return nil
}

func (s *session) handleUpdate(m message) error {
	if s.table == nil {
		return protocolErrorf("update before any table")
	}
	// A table of an operator's own. It needs no answer, and the others are read all the same.
	if s.table.keyType != keyString && s.table.keyType != keyBinary {
		return nil
	}
	id, u, err := s.table.parseUpdate(m.kind, m.body, s.table.last)
	if err != nil {
		return err
	}
	s.table.last = id
	s.c.metrics.learned.Inc()
	// Not sent from here: a writer that waits for HAProxy to read, while HAProxy waits for this side to read,
	// would hold up both.
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
