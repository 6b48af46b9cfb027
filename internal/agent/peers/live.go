package peers

import (
	"container/heap"
	"time"
)

type entry struct {
	table  int // index into Options.Teach
	key    string
	values []byte    // encoded
	until  time.Time // when it ends
	sent   bool      // it was sent as it is now, in this session or an earlier one

	prev, next *entry // in order of the last change
	heapIndex  int
}

// unendedEntries holds the entries that have not ended, in the order of their last
// change, with a position up to which the present session has been told. A
// change moves its entry behind the position, so an entry is in the queue at
// most once, and a session that has to be told everything begins at the front.
// It takes the time as an argument and is not safe for concurrent use.
type unendedEntries struct {
	max    int // entries of each table: one that is full takes no room from another
	byKey  map[entryKey]*entry
	size   map[int]int // entries of each table
	ends   endHeap
	root   entry  // of the ring of entries
	unsent *entry // the first one to send; &root when there is none
}

type entryKey struct {
	table int
	key   string
}

func newLive(limit int) *unendedEntries {
	l := &unendedEntries{max: limit, byKey: make(map[entryKey]*entry), size: make(map[int]int)}
	l.root.prev, l.root.next = &l.root, &l.root
	l.unsent = &l.root
	return l
}

func (l *unendedEntries) setEntry(table int, key string, values []byte, until time.Time) bool {
	e, ok := l.byKey[entryKey{table, key}]
	if ok {
		l.unlink(e)
		// Only the last of several changes is sent: values are absolute.
		e.values, e.until, e.sent = values, until, false
		heap.Fix(&l.ends, e.heapIndex)
	} else {
		// New keys are refused, not old ones dropped: to forget one that HAProxy was taught would not take it
		// out of there.
		if l.size[table] >= l.max {
			return false
		}
		e = &entry{table: table, key: key, values: values, until: until}
		l.byKey[entryKey{table, key}] = e
		heap.Push(&l.ends, e)
		l.size[table]++
	}
	// Behind all others, and so behind the position of what was sent, if it was sent before.
	e.prev, e.next = l.root.prev, &l.root
	e.prev.next, e.next.prev = e, e
	if l.unsent == &l.root {
		// Nothing waited to be sent, so the position was at the end.
		l.unsent = e
	}
	return true
}

// maxExpire bounds what one call of expire drops, so that no call of Teach waits while a
// hundred thousand entries end together. Each call adds one entry at most, so the rest is
// gone soon.
const maxExpire = 1000

// expire forgets the entries that have ended, and calls late with the table of each
// that was never sent.
func (l *unendedEntries) expire(now time.Time, late func(table int)) {
	for n := 0; n < maxExpire && len(l.ends) > 0 && !l.ends[0].until.After(now); n++ {
		e := heap.Pop(&l.ends).(*entry)
		l.unlink(e)
		delete(l.byKey, entryKey{e.table, e.key})
		l.size[e.table]--
		// HAProxy would have to be told of something that is over.
		if !e.sent {
			late(e.table)
		}
	}
}

// rewind makes every entry unsent, in the present session.
func (l *unendedEntries) rewind() { l.unsent = l.root.next }

// nextUnsent returns the next entry to send, nil when all have been sent.
func (l *unendedEntries) nextUnsent() *entry {
	e := l.unsent
	if e == &l.root {
		return nil
	}
	// Set although the write may fail: the next session begins with all of them in any case.
	e.sent = true
	l.unsent = e.next
	return e
}

func (l *unendedEntries) unlink(e *entry) {
	// Else the position would stay at an entry that is in no ring.
	if l.unsent == e {
		l.unsent = e.next
	}
	e.prev.next, e.next.prev = e.next, e.prev
}

// endHeap is a heap.Interface: the entry that ends first is on top.
type endHeap []*entry

func (h endHeap) Len() int           { return len(h) }
func (h endHeap) Less(i, j int) bool { return h[i].until.Before(h[j].until) }
func (h endHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].heapIndex, h[j].heapIndex = i, j
}

func (h *endHeap) Push(x any) {
	e := x.(*entry)
	e.heapIndex = len(*h)
	*h = append(*h, e)
}

func (h *endHeap) Pop() any {
	last := len(*h) - 1
	e := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return e
}
