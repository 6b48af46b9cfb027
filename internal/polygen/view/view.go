// Package view keeps one record for each user of the cluster: what the user uses, and what polygen decided about the
// user. The API, the page, the live streams, the metrics of users and the histories read it. No limit depends on it.
//
// What must hold:
//
//	a report of an instance counts     for 2 s after the last repetition, or until the instance leaves
//	a count of a window                only if it is of the present window, the last or the next one
//	use of a limit per second          the larger of the pool's count and the reported starts
//	a throttle                         ends with its window, or when a higher limit comes that is not used up
//	charged costs                      what a window was charged beyond its limit is a debt of the next one
//	the state of a user                denied before blocked before spent before throttled; a limit in a dry run changes no state
//	too many users                     the one with the oldest report makes room; the number is counted
//	a user who is quiet                is forgotten after an hour, or as long as the longest window with a count
//	a look at all users                works in parts; users who come or go meanwhile are never listed twice
//
// A View is pure: the time is an argument. It is not safe for concurrent use.
package view

import (
	"slices"
	"strings"
	"time"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/pkg/bandwidth"
	"github.com/sluice-qos/sluice/pkg/cost"
	"github.com/sluice-qos/sluice/pkg/credit"
	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

const (
	// reportSpan is how long a report counts. Instances repeat it every 500 ms while it matters.
	reportSpan = int64(2 * time.Second)
	// maxDecisions bounds the decisions that a record keeps.
	maxDecisions = 20
	// refusedSpan is the time in which refusals are counted as one decision.
	refusedSpan = int64(time.Second)
	// forgetAfter is how long a record is kept after its last use; longer if it has counts of a longer window.
	forgetAfter = int64(time.Hour)
	// maxSwept bounds the records that Forget looks at, because decisions wait meanwhile.
	maxSwept = 2000
	// noName is the key of requests without a user's name.
	noName = "~"
)

// View has the records of all users.
type View struct {
	set            *limits.Set
	max            int
	records        map[string]*record
	newest, oldest *record   // in the order of use
	slots          []*record // in no order, for looks in parts
	kept           []*record // those with a history
	live           []string  // instances
	swept          int       // index in slots: Forget goes on here
	dropped        uint64
}

type record struct {
	key          string
	newer, older *record
	slot         int // index in View.slots

	set     *limits.Set // that limits, known and unknown are from
	limits  *limits.Limits
	known   bool // the limit file names the user
	unknown bool // an operator could add the user to the file

	used        int64 // when the record was last used, in ns
	first, seen int64 // the first and the last report, in ns; 0: none
	reports     uint64

	windows      []window
	places       []place
	blockedSince int64 // in ns; 0: not blocked
	decisions    []decision
	history      *history // nil unless kept
}

// window has the counts of one limit that has a window: of requests of a class, or of a unit of costs.
type window struct {
	class    string // or the unit
	isCost   bool
	window   limits.Window
	calendar *limits.Calendar
	totals   [3]total // in no order

	reported int64 // when the last report came, in ns
	// Of requests: the last throttle.
	throttled      int64 // begin of the throttled window, in s
	throttledUntil int64 // its end, in ns; 0: never
	throttledAt    int64 // in ns
	throttleMax    int   // the limit at that time
}

type total struct {
	begin int64 // in s
	cost.Total
	spentAt int64 // of costs: when the limit was reached, in ns; 0: it is not
}

// place is the last report of each kind of one instance. Times are in ns; 0 is never.
type place struct {
	instance string

	progressAt int64
	active     int // requests in progress
	slots      int // requests that the instance may have in progress without asking

	demandAt int64
	moving   int      // requests in progress by the report of demand
	moved    [2]int64 // bytes per second, by direction
	share    [2]int64 // bytes per second, by direction

	startsAt int64
	running  int // requests in progress by the report of starts
	rates    Rates
	classes  []ClassRates
}

// Rates are requests per second that were admitted, and that were refused.
type Rates struct{ Started, Refused float64 }

// ClassRates are the rates of a class.
type ClassRates struct {
	Class string
	Rates
}

type decision struct {
	at     int64
	kind   api.Kind
	class  string // of a request limit, otherwise ""
	window limits.Window
	mode   limits.Mode
	count  int
}

// New returns a view without users, for at most so many.
func New(set *limits.Set, users int) *View {
	return &View{set: set, max: users, records: make(map[string]*record)}
}

// Limits puts limits into force. Records take them over when they are used next.
func (v *View) Limits(set *limits.Set) { v.set = set }

// lookUp returns the record of a key with the limits in force, or a new one that is not kept. Questions use it: they must
// not keep records in place of users who send requests.
func (v *View) lookUp(key string) *record {
	r := v.records[key]
	if r == nil {
		r = &record{key: key}
	}
	v.adoptLimits(r)
	return r
}

// record returns the record of a key, a new one if there is none, as the newest.
func (v *View) record(now int64, key string) *record {
	r := v.records[key]
	switch {
	case r == nil:
		if len(v.records) >= v.max {
			v.remove(v.oldest)
			v.dropped++
		}
		r = &record{key: key, slot: len(v.slots)}
		v.records[key], v.slots = r, append(v.slots, r)
		v.pushNewest(r)
	case r != v.newest:
		v.unlink(r)
		v.pushNewest(r)
	}
	r.used = now
	v.adoptLimits(r)
	return r
}

// reported returns the record of a user of whom an instance reported something.
func (v *View) reported(now int64, key string) *record {
	r := v.record(now, key)
	if r.seen = now; r.first == 0 {
		r.first = now
	}
	r.reports++
	return r
}

func (v *View) adoptLimits(r *record) {
	if r.set == v.set {
		return
	}
	r.set, r.limits, r.known = v.set, v.set.User(r.key), v.set.NamesUser(r.key)
	// Addresses of the anonymous tier, requests without a name and unreadable credentials have no name to add.
	r.unknown = !r.known && r.key != noName && r.key != limits.UnreadableKey && (!limits.Anonymous(r.key) || v.set.AnonymousTier() == "")
	r.windows = slices.DeleteFunc(r.windows, func(w window) bool {
		_, limited := r.limits.Rate(w.class, w.window)
		return !w.isCost && !limited
	})
}

func (v *View) pushNewest(r *record) {
	r.newer, r.older = nil, v.newest
	if v.newest != nil {
		v.newest.newer = r
	} else {
		v.oldest = r
	}
	v.newest = r
}

func (v *View) unlink(r *record) {
	if r.newer != nil {
		r.newer.older = r.older
	} else {
		v.newest = r.older
	}
	if r.older != nil {
		r.older.newer = r.newer
	} else {
		v.oldest = r.newer
	}
	r.newer, r.older = nil, nil
}

func (v *View) remove(r *record) {
	v.unlink(r)
	delete(v.records, r.key)
	// The last record takes the free slot. A look that has passed the slot misses that record.
	end := len(v.slots) - 1
	last := v.slots[end]
	v.slots[r.slot], last.slot = last, r.slot
	v.slots[end], v.slots = nil, v.slots[:end]
	if r.history != nil {
		v.kept = slices.DeleteFunc(v.kept, func(other *record) bool { return other == r })
	}
}

// Forget drops records that were not used for long. It looks at maxSwept at most; the next call looks at further ones.
func (v *View) Forget(at time.Time) {
	for range min(maxSwept, len(v.slots)) {
		if v.swept >= len(v.slots) {
			v.swept = 0
		}
		keep := forgetAfter
		r := v.slots[v.swept]
		for _, w := range r.windows {
			keep = max(keep, w.window.Seconds()*int64(time.Second))
		}
		if at.UnixNano()-r.used >= keep {
			v.remove(r) // another record takes the slot
		} else {
			v.swept++
		}
	}
}

func (r *record) hasCosts() bool {
	return slices.ContainsFunc(r.windows, func(w window) bool { return w.isCost })
}

// Users is how many users are known, and Dropped how many were forgotten because there were too many.
func (v *View) Users() int      { return len(v.records) }
func (v *View) Dropped() uint64 { return v.dropped }

// Usage takes the total of a pool: the requests of a key's window that begins at a second of the cluster.
func (v *View) Usage(at time.Time, k ratelimit.Key, begin int64, n int) {
	r := v.reported(at.UnixNano(), k.User)
	limit, ok := r.limits.Rate(k.Class, k.Window)
	if !ok {
		return
	}
	// The pool of a second begins with what the HAProxies may admit by themselves. How many requests they did admit
	// is in the reports of starts.
	if instances := len(v.live); instances > 1 && credit.Possible(r.limits, instances) {
		n = max(0, n-instances*credit.Portion(limit.Max, instances))
	}
	w := r.window(limit.Class, k.Window, limit.Calendar, false)
	w.reported = at.UnixNano()
	w.set(w.reported, total{begin: begin, Total: cost.Total{Charged: int64(n)}})
}

// Charged takes what a user was charged of a unit in the window that begins at a second of the cluster.
func (v *View) Charged(at time.Time, key, unit string, of limits.Window, begin, charged int64) {
	now := at.UnixNano()
	r := v.reported(now, key)
	for c := range r.limits.Costs() {
		if c.Unit == unit && c.Window == of {
			w := r.window(unit, of, c.Calendar, true)
			w.reported = now
			w.charge(now, c, begin, cost.Total{Charged: charged})
		}
	}
}

// RecalledRequests takes the total of a window of requests from Redis, read from began on.
func (v *View) RecalledRequests(began, at time.Time, k ratelimit.Key, begin int64, n int) {
	// A question about a name without requests must not take the place of a user.
	limit, ok := v.lookUp(k.User).limits.Rate(k.Class, k.Window)
	if n == 0 || !ok {
		return
	}
	// A report that came meanwhile may be newer.
	if w := v.record(at.UnixNano(), k.User).window(limit.Class, k.Window, limit.Calendar, false); w.reported < began.UnixNano() {
		w.set(at.UnixNano(), total{begin: begin, Total: cost.Total{Charged: int64(n)}})
	}
}

// Recalled takes a user's totals from Redis, read from began on.
func (v *View) Recalled(began, at time.Time, key string, pools cost.Pools) {
	// A question about a name without charges must not take the place of a user.
	if len(pools) == 0 {
		return
	}
	r := v.record(at.UnixNano(), key)
	for pool, sum := range pools {
		for c := range r.limits.Costs() {
			if c.Unit != pool.Unit || c.Window != pool.Window {
				continue
			}
			// A report that came meanwhile may be newer.
			if w := r.window(c.Unit, c.Window, c.Calendar, true); w.reported < began.UnixNano() {
				w.charge(at.UnixNano(), c, pool.Start, sum)
			}
		}
	}
}

// window returns the counts of a limit, new ones if there are none.
func (r *record) window(class string, of limits.Window, by *limits.Calendar, isCost bool) *window {
	if w := r.find(class, of, isCost); w != nil {
		w.calendar = by
		return w
	}
	r.windows = append(r.windows, window{class: class, window: of, calendar: by, isCost: isCost})
	return &r.windows[len(r.windows)-1]
}

// find returns the counts of a limit, or nil.
func (r *record) find(class string, of limits.Window, isCost bool) *window {
	// A list, not a map: a user has few limits.
	for i := range r.windows {
		if w := &r.windows[i]; w.class == class && w.window == of && w.isCost == isCost {
			return w
		}
	}
	return nil
}

// set takes a total. Instances ask ahead for the next window, and may be late for the last one.
func (w *window) set(now int64, t total) {
	begin, end := w.calendar.Bounds(w.window, now/int64(time.Second))
	if t.begin < 0 || t.begin > end {
		return // of a wrong clock
	}
	if of, until := w.calendar.Bounds(w.window, t.begin); of != t.begin || until < begin {
		return // of a wrong clock, or another calendar
	}
	// The one that is furthest away makes room.
	furthest := 0
	for i, old := range w.totals {
		if old.begin == t.begin {
			furthest = i
			break
		}
		if distance(old, t) > distance(w.totals[furthest], t) {
			furthest = i
		}
	}
	w.totals[furthest] = t
}

func distance(a, b total) int64 { return max(a.begin-b.begin, b.begin-a.begin) }

// at returns the total of the window that begins at a second, a zero one if there is none.
func (w *window) at(begin int64) total {
	if w != nil {
		for _, t := range w.totals {
			if t.begin == begin {
				return t
			}
		}
	}
	return total{}
}

// counts are the counts of requests in the present window and in the one before.
func (w *window) counts(now int64) (present, last int64) {
	if w == nil {
		return 0, 0
	}
	second := now / int64(time.Second)
	begin, _ := w.calendar.Bounds(w.window, second)
	return w.at(begin).Charged, w.at(w.calendar.Previous(w.window, second)).Charged
}

func (w *window) charge(now int64, c limits.Cost, begin int64, sum cost.Total) {
	before := w.at(begin)
	// A report does not say how much of the total leaves no debt: see cost.Total.
	sum.Due = max(sum.Due, before.Due, c.Max)
	if c.Mode == limits.DryRun {
		sum.Due = max(sum.Due, sum.Charged)
	}
	next := total{begin: begin, Total: sum}
	if sum.Charged >= c.Max {
		if next.spentAt = before.spentAt; next.spentAt == 0 {
			next.spentAt = now
		}
	}
	w.set(now, next)
}

func (r *record) charged(second int64, c limits.Cost) total {
	w := r.find(c.Unit, c.Window, true)
	begin := c.WindowStart(second)
	if in := w.at(begin); in.begin == begin {
		return in
	}
	// No charge yet: the window will begin with the debt of the one before, and refuses because of it.
	return total{Total: cost.Total{Charged: w.at(c.Previous(second)).Debt(c.Max)}, spentAt: begin * int64(time.Second)}
}

// Progress takes the requests in progress of a user at an instance, the slots that it holds, and the requests that it has
// refused since its last report.
func (v *View) Progress(at time.Time, instance, key string, active, slots, refused int) {
	now := at.UnixNano()
	r := v.reported(now, key)
	p := r.place(now, instance)
	p.progressAt, p.active, p.slots = now, active, slots
	if refused == 0 {
		return
	}
	// One decision for each of the many reports of a second would soon push all others out.
	if n := len(r.decisions); n > 0 && r.decisions[n-1].kind == api.Refused && now-r.decisions[n-1].at < refusedSpan {
		r.decisions[n-1].count += refused
		return
	}
	r.decide(decision{at: now, kind: api.Refused, mode: r.limits.ConcurrentMode, count: refused})
}

// Demand takes what an instance moves of a user.
func (v *View) Demand(at time.Time, d bandwidth.Report) {
	now := at.UnixNano()
	p := v.reported(now, d.User).place(now, d.Instance)
	p.demandAt, p.moving, p.moved, p.share = now, d.Active, d.Moved, d.Share
}

// Started takes the requests of a user that an instance has in progress, and those that it admits and refuses, limited or
// not: all, and by verb and operation class.
func (v *View) Started(at time.Time, instance, key string, active int, all Rates, classes []ClassRates) {
	now := at.UnixNano()
	p := v.reported(now, key).place(now, instance)
	p.startsAt, p.running, p.rates, p.classes = now, active, all, classes
}

func (r *record) place(now int64, instance string) *place {
	// Sorted, because thousand instances may serve one user.
	find := func() (int, bool) {
		return slices.BinarySearchFunc(r.places, instance, func(p place, instance string) int { return strings.Compare(p.instance, instance) })
	}
	at, found := find()
	if !found {
		// The list grows only here, so here it is shortened.
		r.places = slices.DeleteFunc(r.places, func(p place) bool { return !p.fresh(now) })
		at, _ = find()
		r.places = slices.Insert(r.places, at, place{instance: instance})
	}
	return &r.places[at]
}

func isFresh(now, at int64) bool { return at != 0 && now-at < reportSpan }

func (p *place) fresh(now int64) bool {
	return isFresh(now, p.progressAt) || isFresh(now, p.demandAt) || isFresh(now, p.startsAt)
}

// inProgress is the newer one of the two reports that come with each change, otherwise the report of each second. All three
// count the same requests.
func (p *place) inProgress(now int64) int {
	switch {
	case isFresh(now, p.progressAt) && p.progressAt >= p.demandAt:
		return p.active
	case isFresh(now, p.demandAt):
		return p.moving
	case isFresh(now, p.startsAt):
		return p.running
	}
	return 0
}

// Instances takes the instances of the cluster, sorted.
func (v *View) Instances(live []string) {
	if slices.Equal(live, v.live) {
		return
	}
	v.live = slices.Clone(live)
	// Otherwise a report would count for reportSpan next to those of the instances that have taken over.
	for _, r := range v.slots {
		r.places = slices.DeleteFunc(r.places, func(p place) bool {
			_, lives := slices.BinarySearch(live, p.instance)
			return !lives
		})
	}
}

// Throttled takes a decision of polygen.
func (v *View) Throttled(at time.Time, t ratelimit.Throttle) {
	now := at.UnixNano()
	r := v.decided(now, t.Key.User)
	limit, ok := r.limits.Rate(t.Key.Class, t.Key.Window)
	if !ok {
		return // decided by limits that are not in force any more
	}
	w := r.window(limit.Class, t.Key.Window, limit.Calendar, false)
	w.throttled, w.throttledUntil, w.throttledAt, w.throttleMax = t.WindowStart, t.End*int64(time.Second), now, limit.Max
	r.decide(decision{at: now, kind: api.Throttle, class: limit.Class, window: w.window, mode: limit.Mode})
	v.keepHistory(now, r, false)
}

// Blocked takes a decision of polygen, or its repetition. It reports whether it is the first.
func (v *View) Blocked(at time.Time, key string) (first bool) {
	now := at.UnixNano()
	r := v.decided(now, key)
	v.keepHistory(now, r, false)
	if r.blockedSince != 0 {
		return false
	}
	r.blockedSince = now
	r.decide(decision{at: now, kind: api.Block, mode: r.limits.ConcurrentMode})
	return true
}

// Unblocked takes a decision of polygen. An unblock by hand of a user who was not blocked is no decision to show.
func (v *View) Unblocked(at time.Time, key string) {
	if r := v.lookUp(key); r.blockedSince != 0 {
		r.blockedSince = 0
		r.decide(decision{at: at.UnixNano(), kind: api.Unblock, mode: r.limits.ConcurrentMode})
	}
}

func (v *View) decided(now int64, key string) *record {
	r := v.record(now, key)
	r.seen = now
	return r
}

// decide keeps a decision, the newest at the end.
func (r *record) decide(d decision) {
	if len(r.decisions) == maxDecisions {
		copy(r.decisions, r.decisions[1:])
		r.decisions = r.decisions[:maxDecisions-1]
	}
	r.decisions = append(r.decisions, d)
}
