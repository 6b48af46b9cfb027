package agent

import "time"

// recent is a bounded map that forgets what was not used for a while. What was not
// used since the last turn is in old, which the next turn drops as a whole: to look
// at each of 100 000 entries would hold up the requests. See newRecent.
type recent[V any] struct {
	span       time.Duration // an entry is remembered for so long at least, and twice that at most
	most       int
	young, old map[string]V
	turned     time.Time
}

func newRecent[V any](span time.Duration, most int) recent[V] {
	return recent[V]{span: span, most: most, young: make(map[string]V)}
}

// get returns an entry, which counts as used.
func (r *recent[V]) get(key string) (v V, ok bool) {
	if v, ok = r.young[key]; ok {
		return v, true
	}
	// Used: it survives the next turn.
	if v, ok = r.old[key]; ok {
		delete(r.old, key)
		r.young[key] = v
	}
	return v, ok
}

// put sets an entry, and reports whether there was room.
func (r *recent[V]) put(key string, v V) bool {
	// Whoever is known stays: to drop them for somebody new would let a flood of names empty the map.
	if _, known := r.get(key); !known && r.len() >= r.most {
		return false
	}
	r.young[key] = v
	return true
}

func (r *recent[V]) drop(key string) {
	delete(r.young, key)
	delete(r.old, key)
}

func (r *recent[V]) len() int { return len(r.young) + len(r.old) }

// forget turns when it is time. It is to be called now and then.
func (r *recent[V]) forget(now time.Time) {
	// A clock that was set back would else keep entries for as long as it was set back by.
	if since := now.Sub(r.turned); since < 0 || since >= r.span {
		r.old, r.young, r.turned = r.young, make(map[string]V), now
	}
}
