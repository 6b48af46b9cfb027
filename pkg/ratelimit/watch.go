package ratelimit

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/sluice-qos/sluice/pkg/limits"
)

const (
	hintSpan = 3 * time.Second // for this long a key is called hot
	// hintGap is for how long it is not called so again: of keys that are hot in every second that is every
	// other one, so the next hint comes before the last one ends.
	hintGap = 1500 * time.Millisecond
	// newcomerGap is the same if an agent has begun to serve the user, which did not hear the last hint.
	newcomerGap = 500 * time.Millisecond

	watchSpan = 3 * time.Second // an agent that was not heard of for this long shares a key no more
	// manySharers is how many agents for each request of the limit are so many that in a window most of
	// them have no request of the user.
	manySharers = 2

	hotPercent = 80 // of the limit, at which a key is called hot
	strictHot  = 50 // the same in strict mode

	// maxWatched bounds the keys that are watched. A key that is dropped is only called
	// hot or spent later than it might be: no limit depends on it.
	maxWatched = 200_000
)

// A Hint says that a key comes near its limit.
type Hint struct {
	Key       Key
	Until     time.Time
	Instances int // agents that serve the user; 0: not known yet, it may be all
}

// A Throttle says that a key's window is spent.
type Throttle struct {
	Key         Key
	WindowStart int64 // at which the window begins
	End         int64 // at which it is over
	Limit       int
}

// Watch compares the pool's totals with the limits: it is polygen's view of the
// request rates. The zero Watch is not usable; see NewWatch. It is not safe for
// concurrent use.
type Watch struct {
	percent int
	maxKeys int              // keys at a time
	keys    map[Key]*watched // heard of since turned, or since there were last too many
	old     map[Key]*watched // not heard of since then: the first to go
	turned  int64            // ns
	dropped uint64
	hints   []Hint
	spent   []Throttle
}

type watched struct {
	throttled int64 // the last second whose window was called spent
	over      int64 // when that window is, ns
	since     int64 // when it was first heard of, ns
	hinted    int64
	newcomer  bool     // an agent has begun to serve the user since then
	agents    []sharer // by instance
}

// A sharer is an agent that serves a key's user. A key has a few of them, so a list costs less than a map.
type sharer struct {
	instance string
	last     int64 // when it was last heard of, ns
}

// NewWatch returns a watch that knows of nothing. A strict watch calls keys hot
// earlier, at half of the limit.
func NewWatch(strict bool) *Watch {
	w := &Watch{percent: hotPercent, maxKeys: maxWatched, keys: make(map[Key]*watched)}
	if strict {
		w.percent = strictHot
	}
	return w
}

// Observe takes the pool's total for a key and the window that begins at a second,
// as it was after an instance had asked, and the key's limit; that of a zero Rate is
// not limited.
func (w *Watch) Observe(at time.Time, instance string, k Key, sec int64, total int, rate limits.Rate) {
	now, limit := at.UnixNano(), rate.Max+rate.Burst
	// It is not limited, or from another clock.
	if limit <= 0 || sec > now/second+1 {
		return
	}
	// A window that does not begin where windows do, or is long over, is of a clock that is wrong: what it
	// says would throttle users in a second that others count.
	begin, end := rate.Calendar.Bounds(k.Window, sec)
	if sec != begin || end < now/second {
		return
	}
	o := w.watched(k, now)
	begins := o.heard(now, instance)
	o.newcomer = o.newcomer || begins
	if 100*total >= w.percent*limit && now-o.hinted >= int64(newcomerGap) {
		// Where most have no request of the user in a second there are newcomers all the time.
		sharers := o.sharers(now)
		if now-o.hinted >= int64(hintGap) || o.newcomer && sharers <= manySharers*limit {
			o.hinted, o.newcomer = now, false
			// Agents that lose the pool divide the limit by this number. Each agent that serves the user reports within watchSpan.
			if now-o.since < int64(watchSpan) {
				sharers = 0
			}
			w.hints = append(w.hints, Hint{Key: k, Until: at.Add(hintSpan), Instances: sharers})
		}
	}
	// Once for each window: the throttle lasts until it ends.
	if total >= limit && o.throttled < sec {
		o.throttled, o.over = sec, end*second
		w.spent = append(w.spent, Throttle{Key: k, WindowStart: sec, End: end, Limit: limit})
	}
}

// watched is what is known of a key. When there are too many, those not heard of for
// longest are dropped, half of all at a time: to find one would be a walk through all.
func (w *Watch) watched(k Key, now int64) *watched {
	o := w.keys[k]
	if o != nil {
		return o
	}
	if o = w.old[k]; o != nil {
		delete(w.old, k)
	} else {
		o = &watched{since: now}
	}
	// Two generations, so that no list in the order of use has to be kept.
	if len(w.keys) >= w.maxKeys/2 {
		w.dropped += uint64(len(w.old))
		w.keys, w.old = make(map[Key]*watched), w.keys
	}
	w.keys[k] = o
	return o
}

// heard notes that an agent serves the key, and reports whether it has begun to.
func (o *watched) heard(now int64, instance string) (begins bool) {
	find := func() (int, bool) {
		return slices.BinarySearchFunc(o.agents, instance, func(s sharer, instance string) int { return strings.Compare(s.instance, instance) })
	}
	at, found := find()
	if !found {
		// Only here does the list grow, so it is enough to shorten it here.
		o.agents = slices.DeleteFunc(o.agents, func(s sharer) bool { return !s.shares(now) })
		at, _ = find()
		o.agents = slices.Insert(o.agents, at, sharer{instance: instance})
	}
	s := &o.agents[at]
	begins = !found || !s.shares(now)
	s.last = now
	return begins
}

func (s sharer) shares(now int64) bool { return now-s.last < int64(watchSpan) }

func (o *watched) sharers(now int64) int {
	n := 0
	for _, s := range o.agents {
		if s.shares(now) {
			n++
		}
	}
	return n
}

// Decisions returns what has been decided since the last call, sorted by user,
// class and window, and forgets it.
func (w *Watch) Decisions() ([]Hint, []Throttle) {
	hints, spent := w.hints, w.spent
	w.hints, w.spent = nil, nil
	slices.SortFunc(hints, func(a, b Hint) int { return compareKeys(a.Key, b.Key) })
	slices.SortFunc(spent, func(a, b Throttle) int {
		return cmp.Or(compareKeys(a.Key, b.Key), cmp.Compare(a.WindowStart, b.WindowStart))
	})
	return hints, spent
}

// Forget drops what was not heard of for a while: after 3 s at the earliest, and 6 s at the latest if it is
// called once a second.
func (w *Watch) Forget(at time.Time) {
	now := at.UnixNano()
	// Less than 0 is a clock that was set back: it would keep keys for hours.
	if passed := now - w.turned; passed < int64(watchSpan) && passed >= 0 {
		return
	}
	// Two generations that take turns, not a walk through all keys: reports wait meanwhile, of 100 000 keys for longer
	// than a decision may take.
	for k, o := range w.old {
		// A spent hour is called spent once.
		if now < o.over {
			w.keys[k] = o
		}
	}
	w.keys, w.old, w.turned = make(map[Key]*watched), w.keys, now
}

// WatchedKeys is the number of keys watched.
func (w *Watch) WatchedKeys() int { return len(w.keys) + len(w.old) }

// Dropped counts the keys that were dropped because there were too many.
func (w *Watch) Dropped() uint64 { return w.dropped }

func compareKeys(a, b Key) int {
	return cmp.Or(cmp.Compare(a.User, b.User), cmp.Compare(a.Class, b.Class), cmp.Compare(a.Window, b.Window))
}
