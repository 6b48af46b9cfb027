package spoa

import (
	"hash/maphash"
	"time"
)

// maxTallied bounds the users whose counters are remembered. haproxy.cfg's table has
// room for fewer.
const maxTallied = 1 << 18

// tallyMemory has the counters of each user of one process of HAProxy as last read, so
// that the next read tells how much they grew. A user costs some 64 bytes, for names are
// not kept, and a place that is free again is used before the memory grows.
type tallyMemory struct {
	layout tallyLayout
	round  uint32    // the number of the read
	anew   time.Time // when slots were last numbered: of tallySlot.present

	seed   maphash.Seed
	index  map[uint64]int // by a hash of the user: of slots, and of counts
	slots  []tallySlot
	counts []uint32 // as many of each slot as the layout has kinds
	free   []int    // slots
}

// tallySlot is what is remembered of a user, beside their counters.
type tallySlot struct {
	round uint32 // of the last read that had the entry
	busy  bool   // some were in progress in that read, or admitted since the one before

	present uint32 // in seconds since tallyMemory.anew, when present was last told; 0: never
}

func newTallyMemory() tallyMemory {
	return tallyMemory{seed: maphash.MakeSeed(), index: make(map[uint64]int)}
}

// beginAnew forgets all users: the counters of another process, or of other classes, say
// nothing about how much these grew.
func (m *tallyMemory) beginAnew(layout tallyLayout) {
	m.layout, m.anew = layout, time.Now()
	clear(m.index)
	m.slots, m.counts, m.free = nil, nil, nil
}

// slotOf is the user's slot, a new one with all counters 0 if they had none. There is
// room for so many.
func (m *tallyMemory) slotOf(user string) (i int, known, room bool) {
	hash := maphash.String(m.seed, user)
	if i, known := m.index[hash]; known {
		return i, true, true
	}
	// Who is beyond the bound is not counted, and the metric says how many are: to forget
	// somebody else would count what those have had once more when they are read again.
	if len(m.index) >= maxTallied {
		return 0, false, false
	}
	i = m.newSlot()
	m.index[hash] = i
	return i, false, true
}

func (m *tallyMemory) newSlot() int {
	// Tables of many users come and go: the arrays grow only beyond what was ever in use.
	if n := len(m.free); n > 0 {
		i := m.free[n-1]
		m.free = m.free[:n-1]
		// Whoever had the slot before has left theirs.
		clear(m.countersOf(i))
		m.slots[i] = tallySlot{}
		return i
	}
	m.slots = append(m.slots, tallySlot{})
	m.counts = append(m.counts, make([]uint32, len(m.layout.kinds))...)
	return len(m.slots) - 1
}

// countersOf are the counters of a slot as last read.
func (m *tallyMemory) countersOf(slot int) []uint32 {
	width := len(m.layout.kinds)
	return m.counts[slot*width : (slot+1)*width]
}

// remembers reports whether the last read had a user.
func (m *tallyMemory) remembers(user string) bool {
	_, known := m.index[maphash.String(m.seed, user)]
	return known
}

// forgetMissing forgets the users whom the last read did not have any more.
func (m *tallyMemory) forgetMissing() {
	for hash, i := range m.index {
		// Only after a complete read: one that was broken off has not seen everybody.
		if m.slots[i].round != m.round {
			delete(m.index, hash)
			m.free = append(m.free, i)
		}
	}
}
