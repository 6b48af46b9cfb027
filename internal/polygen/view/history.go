package view

import (
	"slices"
	"time"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/pkg/bandwidth"
	"github.com/sluice-qos/sluice/pkg/limits"
)

const (
	// maxSamples bounds the samples of each user, of which there is one a second.
	maxSamples = 300
	// historySpan is how long a history is kept after somebody wanted it.
	historySpan = int64(10 * time.Minute)
	// firmSpan is how long a history that a reader wanted keeps its place when users are
	// limited: there may be many of them, and they must not push out what is looked at.
	firmSpan = int64(10 * time.Second)
	// maxSeries bounds the limits of one history; a user has more only if the file
	// limits very many classes.
	maxSeries = 16
)

// Histories remembers what some users used, second by second. It is not safe for
// concurrent use.
type Histories struct {
	users *lru[history]
}

// history has what one user used in the seconds from first to last, or of the last
// maxSamples of them. Its zero value has nothing.
type history struct {
	wanted      int64 // when somebody wanted it last, in ns
	first, last int64 // seconds; 0 before there are any
	gauges      [3]ring
	limits      []series
}

// Indexes of history.gauges.
const (
	inProgress = iota
	down
	up
)

type series struct {
	api.Limit
	ring
}

// ring has a value for each of the last maxSamples seconds, at the second modulo that;
// -1 is none. An empty one has none.
type ring []int64

func (r *ring) setSecond(second, value int64) {
	// With the first sample, 2.4 KB each: a user who is pushed out before it has cost nothing.
	if *r == nil {
		*r = slices.Repeat([]int64{-1}, maxSamples)
	}
	(*r)[second%maxSamples] = value
}

// between is the values of the seconds from begin to end.
func (r ring) between(begin, end int64) []*int64 {
	// JSON wants null where there is none, so the answer has pointers: into one list, not to 300 values each by itself.
	values, list := make([]int64, 0, end-begin+1), make([]*int64, 0, end-begin+1)
	for s := begin; s <= end; s++ {
		value := int64(-1)
		if r != nil {
			value = r[s%maxSamples]
		}
		if value < 0 {
			list = append(list, nil)
			continue
		}
		values = append(values, value)
		list = append(list, &values[len(values)-1])
	}
	return list
}

// NewHistories returns histories of at most so many users.
func NewHistories(users int) *Histories { return &Histories{users: newLRU[history](users)} }

// Remember remembers a user because a reader wants to see them, from now on or as before.
func (h *Histories) Remember(at time.Time, key string) {
	e, _ := h.users.markUsed(key)
	e.wanted = at.UnixNano()
}

// RememberLimited does the same for a user who is throttled or blocked, because such users are
// likely to be looked at soon.
func (h *Histories) RememberLimited(at time.Time, key string) {
	// A thousand users may be throttled in a second. The history that somebody looks at, and wants again each
	// second, must not give way to theirs.
	full := h.users.length() >= h.users.max && h.users.lookUp(key) == nil
	if full && at.UnixNano()-h.users.oldest.value.wanted < firmSpan {
		return
	}
	h.Remember(at, key)
}

// Len is how many users are remembered.
func (h *Histories) Len() int { return h.users.length() }

// Sample takes what the users used in the last full second, once for each, and forgets
// those who were not wanted for ten minutes.
func (h *Histories) Sample(at time.Time, v *View) {
	now := at.UnixNano()
	h.users.removeOldest(h.users.max, func(h *history) bool { return now-h.wanted >= historySpan })
	for e := range h.users.newestFirst() {
		e.value.sample(now, v, e.key)
	}
}

func (h *history) sample(now int64, v *View, key string) {
	// The present second is not full yet.
	second := now/int64(time.Second) - 1
	switch {
	case second <= h.last && h.last-second < 2:
		// It was taken, perhaps just before the clock was set back by a little.
		return
	case second < h.last, second-h.last >= maxSamples:
		// The clock was set back by much, or too much is missing: no value of before is of one of the last seconds.
		*h = history{wanted: h.wanted, first: second}
	default:
		// Missed seconds still hold the values of maxSamples seconds ago.
		for s := h.last + 1; s < second; s++ {
			h.setAll(s, -1)
		}
	}
	h.last = second

	u, spent := v.users.lookUp(key), v.costs.lookUp(key)
	// Zeros, not nothing: the user is quiet, which is an answer.
	if u == nil {
		u = &user{}
	}
	active, moved := u.progressAndBytes(now)
	h.gauges[inProgress].setSecond(second, int64(active))
	h.gauges[down].setSecond(second, moved[bandwidth.Down])
	h.gauges[up].setSecond(second, moved[bandwidth.Up])
	// The list is made anew, for the limits may have changed: a limit that is still there
	// keeps its values, and one that is gone takes its values along.
	was := h.limits
	h.limits = nil
	of := v.set.User(key)
	for _, l := range u.limitsOf(now, of, spent, u.started(now)) {
		if len(h.limits) == maxSeries {
			break
		}
		s := series{Limit: l}
		if i := slices.IndexFunc(was, func(s series) bool { return s.Name == l.Name }); i >= 0 {
			s.ring = was[i].ring
		}
		used := u.usedIn(second, l)
		if l.Unit != "" {
			used = spent.usedIn(second, of, l)
		}
		s.setSecond(second, used)
		h.limits = append(h.limits, s)
	}
}

// setAll sets all values of a second.
func (h *history) setAll(second, value int64) {
	for i := range h.gauges {
		h.gauges[i].setSecond(second, value)
	}
	for i := range h.limits {
		h.limits[i].setSecond(second, value)
	}
}

// usedIn is the use of a limit in the last full second: of a request limit, in the window
// that has this second and may still go on; of any other limit, now.
func (u *user) usedIn(second int64, l api.Limit) int64 {
	switch l.Window {
	case 0:
		return l.Used
	case 1:
		return *l.Last
	}
	if w := u.findWindow(limits.ParseRateName(l.Name)); w != nil {
		return w.countAt(second*int64(time.Second), 0)
	}
	return 0
}

// usedIn is what was charged in the window of a second.
func (s *spending) usedIn(second int64, of *limits.Limits, l api.Limit) int64 {
	for c := range of.Costs() {
		if c.Name() == l.Name {
			return s.chargedIn(second, c).Charged
		}
	}
	return 0
}

// History returns what is remembered of a wire key, without From, and keeps it from now
// on. Of a user who was not kept before it has the last full second.
func (h *Histories) History(at time.Time, key string, v *View) api.History {
	h.Remember(at, key)
	e := h.users.lookUp(key)
	// A chart can begin with one value, and with none it would be an error.
	if e.last == 0 {
		e.sample(at.UnixNano(), v, key)
	}
	// What stands in a ring for a second before that is of a later one.
	begin := max(e.first, e.last-maxSamples+1)
	out := api.History{
		Name: api.NameOfKey(key), Begin: begin, Step: 1, Limits: []api.LimitSeries{},
		InProgress: e.gauges[inProgress].between(begin, e.last), Down: e.gauges[down].between(begin, e.last), Up: e.gauges[up].between(begin, e.last),
	}
	for _, s := range e.limits {
		out.Limits = append(out.Limits, api.LimitSeries{Name: s.Name, Max: s.Max, Window: s.Window, Mode: s.Mode, Used: s.between(begin, e.last)})
	}
	return out
}
