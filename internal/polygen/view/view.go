// Package view remembers what the users of a cluster use, and what was decided
// about them, for people who ask.
//
// It hears what polygen hears: the changes of the pools in Redis that are near their limits, what requests cost, the requests in
// progress of users near their limits, what users with bandwidth limits move, and every
// second which requests of all users were started and are in progress, limited or not. It
// decides nothing and nothing depends on it.
//
// It is bounded: of too many users the ones heard of least recently are forgotten.
// It is pure: the time is an argument.
package view

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/pkg/bandwidth"
	"github.com/sluice-qos/sluice/pkg/credit"
	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

const (
	// reportSpan is how long what an instance said counts; instances repeat it every
	// 500 ms while it matters.
	reportSpan = int64(2 * time.Second)
	// maxDecisions bounds the decisions that are remembered of each user.
	maxDecisions = 20
	// refusedSpan is the time in which refusals are counted together.
	refusedSpan = int64(time.Second)
	// forgetAfter is how long a user is remembered after the last report, and maxForgotten how
	// many users are forgotten at a time.
	forgetAfter  = int64(time.Hour)
	maxForgotten = 1000
	// noName is the key of requests without a user's name.
	noName = "~"
)

// View is what is known of the users. It is not safe for concurrent use.
type View struct {
	set     *limits.Set
	users   *lru[user]
	costs   *lru[spending] // users with limits of what requests cost
	unknown *lru[stranger]

	live []string // the instances

	droppedUsers, droppedCosts, droppedUnknown uint64
}

// user is what is known of one wire key.
type user struct {
	of     *limits.Set // the set that limits and known are from
	limits *limits.Limits
	known  bool

	seen         int64 // when the user was last heard of, in ns
	windows      []window
	places       []place
	blockedSince int64 // in ns; 0: the user is not blocked
	decisions    []decision
	first        int // index of the oldest one, once there are maxDecisions
}

// window has the counts of one request limit.
type window struct {
	class  string
	window limits.Window
	counts counts[int64]

	spent    int64 // begin of the last window in which polygen throttled the user, in s
	spentAt  int64 // when polygen did so, in ns
	spentMax int   // the limit that was reached then
}

// place is what one instance said last of a user. The three reports come apart from each
// other, so each has the time of its last one, in ns; 0 is never.
type place struct {
	instance string

	progressAt int64
	active     int // requests in progress
	slots      int // requests that the instance may have in progress without asking

	demandAt int64
	moving   int      // requests in progress by the report of demand
	moved    [2]int64 // bytes per second, by direction
	share    [2]int64 // bytes per second, by direction

	startsAt   int64
	startsSpan time.Duration // the time that started is about
	started    Started
}

type decision struct {
	at     int64
	kind   api.Kind
	class  string // of a request limit, else ""
	window limits.Window
	mode   limits.Mode
	count  int
}

// stranger is a user whom the file does not name.
type stranger struct {
	first, seen int64
	reports     uint64
}

// New returns a view that knows of nobody, and will know of at most so many users, of what
// the requests of as many cost, and of so many users whom the file does not name.
func New(set *limits.Set, users, unknown int) *View {
	return &View{
		set: set, users: newLRU[user](users), costs: newLRU[spending](users), unknown: newLRU[stranger](unknown),
	}
}

// Limits tells the view which limits are in force.
func (v *View) Limits(set *limits.Set) {
	v.set = set
	// Users take over the new limits when they are next heard of or looked at, because
	// there may be 100 000 of them. Strangers whom the file names now are none any more.
	v.unknown.keepOnly(func(key string) bool { return !set.NamesUser(key) })
}

// reportedUser is a user of whom an instance said something.
func (v *View) reportedUser(now int64, key string) *user {
	u := v.userWithLimits(now, key)
	// With reports, not questions: an operator who mistypes a name should not find it in the list.
	if !u.known {
		v.noteStranger(now, key)
	}
	return u
}

// userWithLimits returns what is known of a key, with the limits in force.
func (v *View) userWithLimits(now int64, key string) *user {
	u, dropped := v.users.markUsed(key)
	if dropped {
		v.droppedUsers++
	}
	u.seen = now
	// Looked up once for each set of limits, not with each report of each instance.
	if u.of != v.set {
		u.of, u.limits, u.known = v.set, v.set.User(key), v.set.NamesUser(key)
		// Counts of a limit that is gone would be kept for ever: nothing reports it again.
		u.windows = slices.DeleteFunc(u.windows, func(w window) bool {
			_, ok := u.limits.Rate(w.class, w.window)
			return !ok
		})
	}
	return u
}

func (v *View) noteStranger(now int64, key string) {
	// The list is of names that an operator could write into the file. An address with the
	// anonymous tier, a request without a name and unreadable credentials are none.
	if limits.Anonymous(key) && v.set.AnonymousTier() != "" || key == noName || key == limits.UnreadableKey {
		return
	}
	s, dropped := v.unknown.markUsed(key)
	if dropped {
		v.droppedUnknown++
	}
	if s.reports == 0 {
		s.first = now
	}
	s.seen = now
	s.reports++
}

// Usage takes the total of a pool: the requests of a key's window that begins at a
// second of the cluster.
func (v *View) Usage(at time.Time, k ratelimit.Key, begin int64, total int) {
	u := v.reportedUser(at.UnixNano(), k.User)
	if w := u.window(k.Class, k.Window); w != nil {
		w.setCount(at.Unix(), begin, int64(max(0, total-v.reserved(u.limits, k))))
	}
}

// reserved is what the pool of a second begins with: the requests that the HAProxies may
// admit by themselves.
func (v *View) reserved(l *limits.Limits, k ratelimit.Key) int {
	// It is no use: how many they did admit, the instances say afterwards (see Started). One that is alone asks no pool.
	r, limited := l.Rate(k.Class, k.Window)
	if n := len(v.live); limited && n > 1 && credit.Possible(l, n) {
		return n * credit.Portion(r.Max, n)
	}
	return 0
}

// findWindow returns the counts of a limit, or nil if there are none yet.
func (u *user) findWindow(class string, of limits.Window) *window {
	// A list, not a map: a user has few limits, and most have counts of one or none.
	for i := range u.windows {
		if w := &u.windows[i]; w.class == class && w.window == of {
			return w
		}
	}
	return nil
}

// window returns the counts of a limit, or nil if there is no such limit.
func (u *user) window(class string, of limits.Window) *window {
	if w := u.findWindow(class, of); w != nil {
		return w
	}
	r, ok := u.limits.Rate(class, of)
	if !ok {
		return nil
	}
	u.windows = append(u.windows, window{class: r.Class, window: of})
	return &u.windows[len(u.windows)-1]
}

// setCount takes a total.
func (w *window) setCount(now, begin, total int64) {
	length := w.window.Seconds()
	w.counts.set(length, now/length*length, begin, total)
}

// countAt is the count of the window that many windows before the present one.
func (w *window) countAt(now int64, before int64) int64 {
	length := w.window.Seconds()
	count, _ := w.counts.at(length, (now/int64(time.Second)/length-before)*length)
	return count
}

// throttledUntil is when the throttle of this limit ends, which is with its window, in ns; 0 if
// there was none.
func (w *window) throttledUntil() int64 {
	if w.spentAt == 0 {
		return 0
	}
	return (w.spent + w.window.Seconds()) * int64(time.Second)
}

// Progress takes how many requests of a user are in progress at an instance, how many
// slots it holds for the user, and how many requests it has refused since its last report.
func (v *View) Progress(at time.Time, instance, key string, active, slots, refused int) {
	now := at.UnixNano()
	u := v.reportedUser(now, key)
	p := u.placeOf(now, instance)
	p.progressAt, p.active, p.slots = now, active, slots
	if refused > 0 {
		u.noteRefused(now, refused)
	}
}

// Demand takes what an instance moves of a user.
func (v *View) Demand(at time.Time, r bandwidth.Report) {
	now := at.UnixNano()
	p := v.reportedUser(now, r.User).placeOf(now, r.Instance)
	p.demandAt, p.moving, p.moved, p.share = now, r.Active, r.Moved, r.Share
}

// placeOf returns what an instance said, and forgets what others said too long ago.
func (u *user) placeOf(now int64, instance string) *place {
	// They are sorted: a user may be served by a thousand.
	find := func() (int, bool) {
		return slices.BinarySearchFunc(u.places, instance, func(p place, instance string) int { return strings.Compare(p.instance, instance) })
	}
	at, found := find()
	if found {
		return &u.places[at]
	}
	// Only here does the list grow, so it is enough to shorten it here.
	u.places = slices.DeleteFunc(u.places, func(p place) bool { return !p.anyFresh(now) })
	at, _ = find()
	u.places = slices.Insert(u.places, at, place{instance: instance})
	return &u.places[at]
}

func isFresh(now, at int64) bool { return at != 0 && now-at < reportSpan }

func (p *place) anyFresh(now int64) bool {
	return isFresh(now, p.progressAt) || isFresh(now, p.demandAt) || isFresh(now, p.startsAt)
}

// inProgress is the number of the newer of the two reports that come when something
// changes, else that of the report of each second, which may be a second old.
func (p *place) inProgress(now int64) int {
	// Never the sum of them: all three are of the same requests.
	switch {
	case isFresh(now, p.progressAt) && p.progressAt >= p.demandAt:
		return p.active
	case isFresh(now, p.demandAt):
		return p.moving
	case isFresh(now, p.startsAt):
		return p.started.Active
	default:
		return 0
	}
}

// Instances tells the view which instances there are, sorted: any other one runs nothing.
func (v *View) Instances(live []string) {
	if slices.Equal(live, v.live) {
		return
	}
	v.live = slices.Clone(live)
	// What an instance said last would count for reportSpan after its end, beside what the
	// instances report that have taken over its users.
	for e := range v.users.newestFirst() {
		u := &e.value
		if len(u.places) > 0 {
			u.places = slices.DeleteFunc(u.places, func(p place) bool {
				_, lives := slices.BinarySearch(live, p.instance)
				return !lives
			})
		}
	}
}

// Throttled takes a decision of polygen's.
func (v *View) Throttled(at time.Time, t ratelimit.Throttle) {
	now := at.UnixNano()
	// Not reportedUser: no instance has said this.
	u := v.userWithLimits(now, t.Key.User)
	w := u.window(t.Key.Class, t.Key.Window)
	// Decided by the limits of a moment ago: the key is not limited any more.
	if w == nil {
		return
	}
	r, _ := u.limits.Rate(w.class, w.window)
	// The limit is remembered, because a higher one that comes later ends the throttle
	// (see stateSince).
	w.spent, w.spentAt, w.spentMax = t.WindowStart, now, r.Max
	u.noteDecision(decision{at: now, kind: api.Throttle, class: w.class, window: w.window, mode: r.Mode})
}

// Blocked takes a decision of polygen's, or its repetition. It reports whether it is
// the first.
func (v *View) Blocked(at time.Time, key string) (first bool) {
	now := at.UnixNano()
	u := v.userWithLimits(now, key)
	// polygen repeats a block every 200 ms, and people want to know since when the user is blocked.
	if u.blockedSince != 0 {
		return false
	}
	u.blockedSince = now
	u.noteDecision(decision{at: now, kind: api.Block, mode: u.limits.ConcurrentMode})
	return true
}

// Unblocked takes a decision of polygen's.
func (v *View) Unblocked(at time.Time, key string) {
	u := v.users.lookUp(key)
	// An unblock by hand is sent of any user. Of one who was not blocked it is no decision to show.
	if u == nil || u.blockedSince == 0 {
		return
	}
	u.blockedSince = 0
	u.noteDecision(decision{at: at.UnixNano(), kind: api.Unblock, mode: u.limits.ConcurrentMode})
}

// noteRefused counts refused requests as one decision for each refusedSpan.
func (u *user) noteRefused(now int64, n int) {
	// One for each report, of which there are many a second, would soon push all other decisions out.
	if last := u.lastDecision(); last != nil && last.kind == api.Refused && now-last.at < refusedSpan {
		last.count += n
		return
	}
	u.noteDecision(decision{at: now, kind: api.Refused, mode: u.limits.ConcurrentMode, count: n})
}

// noteDecision remembers a decision, in place of the oldest one once there are maxDecisions.
func (u *user) noteDecision(d decision) {
	if len(u.decisions) < maxDecisions {
		u.decisions = append(u.decisions, d)
		return
	}
	u.decisions[u.first] = d
	u.first = (u.first + 1) % maxDecisions
}

func (u *user) lastDecision() *decision {
	if len(u.decisions) == 0 {
		return nil
	}
	return &u.decisions[(u.first+len(u.decisions)-1)%len(u.decisions)]
}

// Forget drops users who have not been heard of for an hour, and what was charged to users of whom nothing was
// charged for a day: at most 1000 of all, and 1000 of those whom the file does not name.
func (v *View) Forget(at time.Time) {
	forgotten := at.UnixNano() - forgetAfter
	// A bound, because decide waits for this, and a name list that somebody made up may end all at once. The lists
	// are in the order of the last report, so no more users are looked at than dropped.
	v.users.removeOldest(maxForgotten, func(u *user) bool { return u.seen <= forgotten })
	v.costs.removeOldest(maxForgotten, func(s *spending) bool { return s.known <= at.UnixNano()-keepCosts })
	v.unknown.removeOldest(maxForgotten, func(s *stranger) bool { return s.seen <= forgotten })
}

// Counts is how many users are known, and how many of those whom the file does not name.
func (v *View) Counts() (users, unknown int) { return v.users.length(), v.unknown.length() }

// Dropped is how many of each have been forgotten because there were too many; costs are users of whom it is
// forgotten what they were charged.
func (v *View) Dropped() (users, costs, unknown uint64) {
	return v.droppedUsers, v.droppedCosts, v.droppedUnknown
}

// Newest are the keys of the users whom the file does not name, the one heard of last
// first; at most n.
func (v *View) Newest(n int) []string {
	keys := make([]string, 0, n)
	for e := range v.unknown.newestFirst() {
		if len(keys) == n {
			break
		}
		keys = append(keys, e.key)
	}
	return keys
}

// comparePlaces orders by instance.
func comparePlaces(a, b api.Place) int { return cmp.Compare(a.Instance, b.Instance) }
