package view

import (
	"cmp"
	"container/heap"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/pkg/bandwidth"
	"github.com/sluice-qos/sluice/pkg/cause"
	"github.com/sluice-qos/sluice/pkg/limits"
)

// Unknown returns n of the users whom the file does not name, without From.
func (v *View) Unknown(by api.Sort, n int) api.UnknownUsers {
	out := api.UnknownUsers{Sort: by, Users: []api.Unknown{}, Seen: v.unknown.length(), Dropped: v.droppedUnknown, Capacity: v.unknown.max}
	add := func(e *entry[stranger]) {
		s := e.value
		out.Users = append(out.Users, api.Unknown{
			Name: api.NameOfKey(e.key), Tier: v.set.User(e.key).Tier, First: answerTime(s.first), Seen: answerTime(s.seen), Reports: s.reports,
		})
	}
	// The list is in this order already: no more of it is walked than is answered.
	if by != api.ByActive {
		for e := range v.unknown.newestFirst() {
			if len(out.Users) == n {
				break
			}
			add(e)
		}
		return out
	}
	best := top[stranger]{n: n}
	for e := range v.unknown.newestFirst() {
		best.consider(float64(e.value.reports), e)
	}
	for _, e := range best.sorted() {
		add(e)
	}
	return out
}

// summary is what is known of a user now, except that a throttle counts if it was in force
// after since. Of a user of whom only is known what they were charged u is nil.
func (v *View) summary(now, since int64, key string, u *user) api.Summary {
	spent := v.costs.lookUp(key)
	if u == nil {
		u = &user{}
	}
	l, named := v.inForce(key, u)
	state, why := u.stateSince(now, since, l, spent)
	started := u.started(now)
	active, moved := u.progressAndBytes(now)
	return api.Summary{
		Name: api.NameOfKey(key), Tier: l.Tier, Known: named, State: state, Rate: u.requestRate(now), InProgress: active,
		Down: moved[bandwidth.Down], Up: moved[bandwidth.Up], Seen: answerTime(u.lastSeen(spent)),
		Near: nearestLimit(u.limitsOf(now, l, spent, started), why), Started: started,
	}
}

// lastSeen is when a user was last heard of, in ns; 0: never, or too long ago.
func (u *user) lastSeen(spent *spending) int64 {
	if spent == nil {
		return u.seen
	}
	return max(u.seen, spent.seen)
}

// User returns what is known of a wire key, without From and without origins. A user of
// whom there was no report uses nothing.
func (v *View) User(at time.Time, key string) api.User {
	return v.userSince(at.UnixNano(), at.UnixNano(), key)
}

// UserLately is User, except that a throttle counts if it was in force within the last
// second.
func (v *View) UserLately(at time.Time, key string) api.User {
	return v.userSince(at.UnixNano(), at.UnixNano()-lately, key)
}

func (v *View) userSince(now, since int64, key string) api.User {
	// Not the limits that were noted with the last report: those of a user of whom there was none are asked for, too.
	l := v.set.User(key)
	out := api.User{
		Name: api.NameOfKey(key), Tier: l.Tier, Known: v.set.NamesUser(key),
		Limits: []api.Limit{}, Instances: []api.Place{}, Decisions: []api.Decision{},
	}
	u, spent := v.users.lookUp(key), v.costs.lookUp(key)
	// The limits are told of every name, with nothing used.
	if u == nil {
		u = &user{}
	}
	if last := u.lastSeen(spent); last != 0 {
		seen := answerTime(last)
		out.Seen = &seen
	}
	out.State, out.Why = u.stateSince(now, since, l, spent)
	active, moved := u.progressAndBytes(now)
	out.InProgress, out.Down, out.Up = active, moved[bandwidth.Down], moved[bandwidth.Up]
	out.Started = u.started(now)
	out.Limits = u.limitsOf(now, l, spent, out.Started)
	for i := range u.places {
		// One that has said nothing for reportSpan has nothing of the user any more, or is dead.
		if p := &u.places[i]; p.anyFresh(now) {
			out.Instances = append(out.Instances, p.answer(now))
		}
	}
	slices.SortFunc(out.Instances, comparePlaces)
	// The last one first. It stands just before the oldest one, whose place the next one takes.
	for i := range u.decisions {
		d := u.decisions[(u.first+len(u.decisions)-1-i)%len(u.decisions)]
		out.Decisions = append(out.Decisions, d.answer())
	}
	return out
}

// stateSince says whether a user is refused now, or was by a throttle or a spent limit of costs that
// ended after since, and why. A limit in a dry run is among the reasons, and does not change the state.
func (u *user) stateSince(now, since int64, l *limits.Limits, spent *spending) (api.State, []api.Why) {
	state, why := api.OK, []api.Why{}
	for i := range u.windows {
		w := &u.windows[i]
		r, ok := l.Rate(w.class, w.window)
		// A limit that is gone refuses nobody, whatever was spent of it.
		if !ok || w.throttledUntil() <= since {
			continue
		}
		// A higher limit that came after the throttle ends it, unless as much is used. Use
		// below the limit of then means nothing: instances give back tokens that their
		// HAProxies do not need, and the throttle holds until its window ends all the same.
		if raised := r.Burst == 0 && r.Max > w.spentMax && w.countAt(w.spent*int64(time.Second), 0) < int64(r.Max); raised {
			continue
		}
		until := answerTime(w.throttledUntil())
		why = append(why, api.Why{Limit: r.Name(), Reason: api.RequestRate, Cause: tableCause(api.Throttle, r.Mode), Mode: r.Mode.String(), Since: answerTime(w.spentAt), Until: &until})
		if r.Mode == limits.Enforce {
			state = api.Throttled
		}
	}
	slices.SortFunc(why, func(a, b api.Why) int { return cmp.Compare(a.Limit, b.Limit) })
	for _, y := range spent.spentSince(now, since, l) {
		why = append(why, y)
		if y.Mode == limits.Enforce.String() {
			// Also of a throttled user: the window of what is spent is mostly the longer one.
			state = api.Spent
		}
	}
	if u.blockedSince != 0 && l.Concurrent > 0 {
		why = append(why, api.Why{Limit: concurrent, Reason: api.ConcurrentRequests, Cause: tableCause(api.Block, l.ConcurrentMode), Mode: l.ConcurrentMode.String(), Since: answerTime(u.blockedSince)})
		if l.ConcurrentMode == limits.Enforce {
			// Also of a throttled user: a throttle ends by itself, a block may not.
			state = api.Blocked
		}
	}
	return state, why
}

// The names of the limits that are neither of request rates nor of costs.
const (
	concurrent    = "concurrent"
	bandwidthDown = "bandwidth.down"
	bandwidthUp   = "bandwidth.up"
)

// limitsOf are the limits of a user and how much of each is used, by the pools and by what was
// started lately (see started).
func (u *user) limitsOf(now int64, l *limits.Limits, spent *spending, started map[string]float64) []api.Limit {
	all := []api.Limit{}
	active, moved := u.progressAndBytes(now)
	for r := range l.Rates() {
		limit := api.Limit{Name: r.Name(), Max: int64(r.Max), Window: r.Window.Seconds(), Burst: r.Burst, Mode: r.Mode.String(), Last: new(int64)}
		if w := u.findWindow(r.Class, r.Window); w != nil {
			limit.Used, *limit.Last = w.countAt(now, 0), w.countAt(now, 1)
		}
		if r.Window == limits.Second {
			// Pools tell only of users near their limits, and of no request by credit: of all others
			// the instances report each second. Those of the pool are among the reported ones, so
			// the larger number counts, not the sum.
			native := int64(math.Round(started[r.Class]))
			limit.Used, *limit.Last = max(limit.Used, native), max(*limit.Last, native)
		}
		all = append(all, limit)
	}
	all = append(all, spent.costsOf(now, l)...)
	if l.Concurrent > 0 {
		all = append(all, api.Limit{Name: concurrent, Max: int64(l.Concurrent), Mode: l.ConcurrentMode.String(), Used: int64(active)})
	}
	if l.Bandwidth.Down > 0 {
		all = append(all, api.Limit{Name: bandwidthDown, Max: l.Bandwidth.Down, Mode: limits.Enforce.String(), Used: moved[bandwidth.Down]})
	}
	if l.Bandwidth.Up > 0 {
		all = append(all, api.Limit{Name: bandwidthUp, Max: l.Bandwidth.Up, Mode: limits.Enforce.String(), Used: moved[bandwidth.Up]})
	}
	return all
}

// RequestRate is the requests per second of a wire key, as Summary has it. It is 0 for an
// unknown user.
func (v *View) RequestRate(at time.Time, key string) float64 {
	u := v.users.lookUp(key)
	if u == nil {
		return 0
	}
	return u.requestRate(at.UnixNano())
}

// HasReport reports whether there was a report of a wire key that is still remembered.
func (v *View) HasReport(key string) bool { return v.users.lookUp(key) != nil }

// requestRate is the larger of two rates: the requests per second that were admitted, limited or
// not, and those of the limit that counts most, in the last full second or over the last
// minute or hour.
func (u *user) requestRate(now int64) float64 {
	// Pools tell nothing of what is not limited or far from its limit. Starts come once a second, after the pools.
	most := u.startRate(now)
	for i := range u.windows {
		w := &u.windows[i]
		length := w.window.Seconds()
		r := float64(w.countAt(now, 1))
		if w.window != limits.Second {
			// A sliding window: the present one, and of the last one the part that reaches
			// back a whole window from now, as if its requests had been spread evenly.
			passed := float64(now)/float64(time.Second) - float64(now/int64(time.Second)/length*length)
			r = (float64(w.countAt(now, 0)) + r*(1-passed/float64(length))) / float64(length)
		}
		most = max(most, r)
	}
	return most
}

// progressAndBytes is the user's requests in progress, and bytes per second by direction.
func (u *user) progressAndBytes(now int64) (active int, moved [2]int64) {
	for i := range u.places {
		p := &u.places[i]
		active += p.inProgress(now)
		// Instances repeat it while anything moves, so what is not fresh has ended.
		if isFresh(now, p.demandAt) {
			for d := range moved {
				moved[d] += p.moved[d]
			}
		}
	}
	return active, moved
}

func (p *place) answer(now int64) api.Place {
	out := api.Place{Instance: strings.ToValidUTF8(p.instance, "\ufffd"), InProgress: p.inProgress(now)}
	if isFresh(now, p.progressAt) {
		out.Slots = p.slots
	}
	if isFresh(now, p.demandAt) {
		out.Down, out.Up = p.moved[bandwidth.Down], p.moved[bandwidth.Up]
		out.DownShare, out.UpShare = p.share[bandwidth.Down], p.share[bandwidth.Up]
	}
	return out
}

func (d decision) answer() api.Decision {
	out := api.Decision{Time: answerTime(d.at), Kind: d.kind, Limit: concurrent, Reason: api.ConcurrentRequests, Cause: tableCause(d.kind, d.mode), Mode: d.mode.String(), Count: d.count}
	if d.kind == api.Throttle {
		out.Limit, out.Reason = limits.RateName(d.class, d.window), api.RequestRate
	}
	return out
}

// tableCause is the cause of the refusals that follow from a decision: by then HAProxy's tables
// have it. What the agents refuse by themselves has causes of its own, which polygen does not hear.
func tableCause(kind api.Kind, mode limits.Mode) cause.Cause {
	switch {
	case mode != limits.Enforce:
		// No table has limits of a dry run: nobody is refused.
		return ""
	case kind == api.Throttle:
		return cause.ThrottleTable
	case kind == api.Block:
		return cause.BlockTable
	}
	return ""
}

// answerTime is a time for people: UTC, to the millisecond.
func answerTime(ns int64) time.Time { return time.Unix(0, ns).UTC().Truncate(time.Millisecond) }

// top keeps the n entries with the largest measures; of equal ones those whose keys
// come first.
type top[V any] struct {
	n    int
	best []measured[V] // a heap, the least at its root
}

type measured[V any] struct {
	measure float64
	entry   *entry[V]
}

func (a measured[V]) lessThan(b measured[V]) bool {
	return a.measure < b.measure || a.measure == b.measure && a.entry.key > b.entry.key
}

func (t *top[V]) consider(measure float64, e *entry[V]) {
	m := measured[V]{measure, e}
	// Most of 100 000 users are below the least of the best, which is one comparison. A sort would need seventeen
	// for each.
	switch {
	case len(t.best) < t.n:
		heap.Push(t, m)
	case t.n > 0 && t.best[0].lessThan(m):
		t.best[0] = m
		heap.Fix(t, 0)
	}
}

// sorted returns what was kept, the largest first.
func (t *top[V]) sorted() []*entry[V] {
	slices.SortFunc(t.best, func(a, b measured[V]) int {
		if a.lessThan(b) {
			return 1
		}
		return -1
	})
	entries := make([]*entry[V], len(t.best))
	for i, m := range t.best {
		entries[i] = m.entry
	}
	return entries
}

// Of heap.Interface.
func (t *top[V]) Len() int           { return len(t.best) }
func (t *top[V]) Less(i, j int) bool { return t.best[i].lessThan(t.best[j]) }
func (t *top[V]) Swap(i, j int)      { t.best[i], t.best[j] = t.best[j], t.best[i] }
func (t *top[V]) Push(x any)         { t.best = append(t.best, x.(measured[V])) }

// Pop removes the last one.
func (t *top[V]) Pop() any {
	last := t.best[len(t.best)-1]
	t.best = t.best[:len(t.best)-1]
	return last
}
