package view

import "iter"

// lru holds at most max values; the one that was least recently used gives way.
type lru[V any] struct {
	max     int
	entries map[string]*entry[V]
	newest  *entry[V]
	oldest  *entry[V]
	slots   []*entry[V] // all entries in no order, for looks at a part at a time
}

type entry[V any] struct {
	key          string
	value        V
	newer, older *entry[V]
	slot         int // index in slots
}

func newLRU[V any](most int) *lru[V] {
	return &lru[V]{max: most, entries: make(map[string]*entry[V])}
}

func (l *lru[V]) length() int { return len(l.entries) }

// lookUp returns the value of a key, or nil, and does not count as a use: questions must not
// keep users in place of those who send requests.
func (l *lru[V]) lookUp(key string) *V {
	if e := l.entries[key]; e != nil {
		return &e.value
	}
	return nil
}

// markUsed returns the value of a key, a zero one if there was none, and whether another
// one gave way to it.
func (l *lru[V]) markUsed(key string) (v *V, dropped bool) {
	e := l.entries[key]
	switch {
	case e == l.newest && e != nil:
		// Several reports of one user often come together.
		return &e.value, false
	case e != nil:
		l.unlink(e)
	default:
		if dropped = len(l.entries) >= l.max; dropped {
			l.remove(l.oldest)
		}
		e = &entry[V]{key: key, slot: len(l.slots)}
		l.entries[key] = e
		l.slots = append(l.slots, e)
	}
	e.older = l.newest
	if l.newest != nil {
		l.newest.newer = e
	} else {
		l.oldest = e
	}
	l.newest = e
	return &e.value, dropped
}

func (l *lru[V]) remove(e *entry[V]) {
	l.unlink(e)
	delete(l.entries, e.key)
	// The last entry takes the free slot, so that slots has no gaps. A look that has passed the slot misses it.
	end := len(l.slots) - 1
	last := l.slots[end]
	l.slots[e.slot], last.slot = last, e.slot
	// Else the array would keep the entry after its removal, until somebody takes the place.
	l.slots[end], l.slots = nil, l.slots[:end]
}

func (l *lru[V]) unlink(e *entry[V]) {
	if e.newer != nil {
		e.newer.older = e.older
	} else {
		l.newest = e.older
	}
	if e.older != nil {
		e.older.newer = e.newer
	} else {
		l.oldest = e.newer
	}
	// The newest has none newer, if it is to be that. A look that still holds a removed one must not keep its neighbours.
	e.newer, e.older = nil, nil
}

// removeOldest removes the least recently used entries that are over, and returns at the first one that is not, or
// after so many.
func (l *lru[V]) removeOldest(most int, over func(*V) bool) {
	for ; most > 0 && l.oldest != nil && over(&l.oldest.value); most-- {
		l.remove(l.oldest)
	}
}

// keepOnly removes the entries that are not to be kept.
func (l *lru[V]) keepOnly(kept func(key string) bool) {
	for e := range l.newestFirst() {
		if !kept(e.key) {
			l.remove(e)
		}
	}
}

// newestFirst yields the entries, the most recently used first. The one that was yielded
// may be removed.
func (l *lru[V]) newestFirst() iter.Seq[*entry[V]] {
	return func(yield func(*entry[V]) bool) {
		for e := l.newest; e != nil; {
			// Before yield, which may remove the entry.
			older := e.older
			if !yield(e) {
				return
			}
			e = older
		}
	}
}
