package peers

import "time"

const (
	// sampleFor is how long a sample waits for its acknowledgement.
	sampleFor = 5 * time.Second
	// maxSamples bounds the entries that are followed at a time: HAProxy acknowledges
	// within milliseconds.
	maxSamples = 64
)

// A sample is an entry that is followed from Teach to HAProxy's acknowledgement.
type sample struct {
	entry *entry
	at    time.Time // when it was taught
	then  func()    // called at the acknowledgement; nil: it is only measured

	session uint64 // in which it was sent; 0: not yet
	table   int
	update  uint32 // its id
}

// samples are the entries that are followed. At most one at a time is followed only to
// measure how long an acknowledgement takes. The zero value follows none.
type samples []sample

// follow takes an entry that was taught now, unless too many are followed.
func (s *samples) follow(e *entry, now time.Time, then func()) {
	if then == nil && len(*s) == 1 && now.Sub((*s)[0].at) < sampleFor {
		return // the usual case
	}
	kept := (*s)[:0]
	for _, f := range *s {
		if now.Sub(f.at) < sampleFor {
			kept = append(kept, f)
		}
	}
	clear((*s)[len(kept):])
	*s = kept
	if then == nil && len(kept) > 0 || len(kept) >= maxSamples {
		return
	}
	*s = append(kept, sample{entry: e, at: now, then: then})
}

// markSent notes that an entry is sent as this update of its table.
func (s samples) markSent(e *entry, session uint64, update uint32) {
	for i := range s {
		// Once it was sent, a later change of the entry is another update, which is not followed.
		if f := &s[i]; f.entry == e && f.session == 0 {
			f.session, f.table, f.update = session, e.table, update
		}
	}
}

// takeAcked takes HAProxy's acknowledgement of a table's updates up to this one. It returns the
// followed entries that are among them, and does not follow these any longer.
func (s *samples) takeAcked(session uint64, table int, update uint32) (done []sample) {
	kept := (*s)[:0]
	for _, f := range *s {
		if f.session == session && f.table == table && session != 0 && int32(update-f.update) >= 0 { // the ids wrap
			done = append(done, f)
		} else {
			kept = append(kept, f)
		}
	}
	clear((*s)[len(kept):])
	*s = kept
	return done
}
