package peers

import "time"

// sampleFor is how long an acknowledgement is waited for before another entry is
// followed instead.
const sampleFor = 5 * time.Second

// A sample is the one entry that is followed from Teach to HAProxy's acknowledgement,
// to measure how long that takes. The zero sample follows none.
type sample struct {
	entry *entry
	at    time.Time // when it was taught

	session uint64 // in which it was sent; 0: not yet
	table   int
	update  uint32 // its id
}

// follow takes an entry that was taught now, unless another one is followed.
func (s *sample) follow(e *entry, now time.Time) {
	if s.entry == nil || now.Sub(s.at) >= sampleFor {
		*s = sample{entry: e, at: now}
	}
}

// sent notes that an entry is sent as this update of its table.
func (s *sample) sent(e *entry, session uint64, update uint32) {
	if s.entry == e && s.session == 0 {
		s.session, s.table, s.update = session, e.table, update
	}
}

// acked takes HAProxy's acknowledgement of updates of a table, up to one. It returns
// how long that of the followed entry took, if it is among them.
func (s *sample) acked(session uint64, table int, update uint32, now time.Time) (took time.Duration, ok bool) {
	if s.session != session || s.entry == nil || s.table != table || int32(update-s.update) < 0 { // the ids wrap
		return 0, false
	}
	took = now.Sub(s.at)
	*s = sample{}
	return took, true
}
