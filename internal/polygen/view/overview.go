package view

import (
	"math"
	"slices"
	"time"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/pkg/bandwidth"
	"github.com/sluice-qos/sluice/pkg/limits"
)

// lately is how long a throttle is told of after it has ended. A throttle of a limit per
// second ends with its second, and most begin late in it: a reader who looks once a second
// would miss them.
const lately = int64(time.Second)

// Overview is what live answers are made of.
type Overview struct {
	Totals  api.Totals
	Tops    map[api.Sort][]api.Summary // as asked for
	Limited []api.Summary              // those throttled or blocked with the highest rates
}

// Look is a look at every user, in parts between which the view may be changed: polygen
// cannot stand still while 100 000 users are looked at. A user who comes meanwhile may be
// missed, and so may one while another one goes.
type Look struct {
	view       *View
	now, since int64
	n          map[api.Sort]int
	next       int // index in the slots of the view's users
	nextCost   int // index in the slots of the view's costs
	totals     api.Totals
	best       [4]top[user] // of sorts
	limited    top[user]
	costs      []unitTop
}

// unitTop are the users who were charged most of a unit, in the longest window that each has a limit of.
type unitTop struct {
	unit string
	top[spending]
}

// sorts are the orders by a measure.
var sorts = [...]api.Sort{api.ByRate, api.ByConcurrent, api.ByDown, api.ByUp}

// BeginLook begins a look that finds, for each order in n, so many users with most. A user
// counts as throttled if they were throttled within the last second.
func (v *View) BeginLook(at time.Time, n map[api.Sort]int) *Look {
	l := &Look{view: v, now: at.UnixNano(), since: at.UnixNano() - lately, n: n, limited: top[user]{n: api.MaxLimited}}
	for i, by := range sorts {
		l.best[i].n = n[by]
	}
	// By the units that there are: what is asked for may be anything.
	for _, unit := range v.set.CostUnits() {
		if most := n[api.ByCost(unit.Name)]; most > 0 {
			l.costs = append(l.costs, unitTop{unit.Name, top[spending]{n: most}})
		}
	}
	return l
}

// BeginLookNow begins a look in which a user counts as throttled if they are now, for lists alone.
func (v *View) BeginLookNow(at time.Time, n map[api.Sort]int) *Look {
	l := v.BeginLook(at, n)
	l.since, l.limited.n = l.now, 0
	return l
}

// LookAtMore looks at so many users more, and reports whether there are others.
func (l *Look) LookAtMore(users int) (more bool) {
	slots := l.view.users.slots
	end := min(l.next+users, len(slots))
	for _, e := range slots[min(l.next, end):end] {
		l.countUser(e)
	}
	l.next = end
	if end < len(slots) {
		return true
	}
	return l.lookAtCosts(users)
}

// lookAtCosts looks at what so many users more were charged, and reports whether there are others.
func (l *Look) lookAtCosts(users int) (more bool) {
	slots := l.view.costs.slots
	if len(l.costs) == 0 {
		return false
	}
	end := min(l.nextCost+users, len(slots))
	for _, e := range slots[min(l.nextCost, end):end] {
		of := l.view.limitsInForce(e)
		for i := range l.costs {
			c, ok := longest(of, l.costs[i].unit)
			if !ok {
				continue
			}
			// Who was charged nothing is in no list of those who were charged most.
			if n := e.value.chargedIn(l.now/int64(time.Second), c).Charged; n > 0 {
				l.costs[i].consider(float64(n), e) // exact: see limits.MaxCost
			}
		}
	}
	l.nextCost = end
	return end < len(slots)
}

// countUser counts one user, and keeps those with most.
func (l *Look) countUser(e *entry[user]) {
	u, t := &e.value, &l.totals
	// The others are remembered for an hour, and use nothing now.
	if l.now-u.seen < reportSpan {
		t.Users++
	}
	rate := u.requestRate(l.now)
	active, moved := u.progressAndBytes(l.now)
	down, up := moved[bandwidth.Down], moved[bandwidth.Up]
	t.Rate += rate
	t.InProgress += active
	t.Down += down
	t.Up += up
	for i, measure := range [...]float64{rate, float64(active), float64(down), float64(up)} {
		l.best[i].consider(measure, e)
	}
	var spent *spending
	// Most clusters have no limits of costs, and nobody to look up.
	if l.view.costs.length() > 0 {
		spent = l.view.costs.lookUp(e.key)
	}
	// state looks up limits and allocates; most users are sorted out without.
	if spent == nil && !u.maybeLimited(l.since) {
		return
	}
	of, _ := l.view.inForce(e.key, u)
	switch state, _ := u.stateSince(l.now, l.since, of, spent); state {
	case api.Throttled:
		t.Throttled++
	case api.Spent:
		t.Spent++
	case api.Blocked:
		t.Blocked++
	default:
		return
	}
	// Of too many those with the highest rates: a client that sends most in vain is whom a reader looks for.
	l.limited.consider(rate, e)
}

// Overview is what the look found.
func (l *Look) Overview() Overview {
	users := l.view.users
	// As they are at the end of the look, not added up in it: users may have come and gone meanwhile.
	l.totals.Seen, l.totals.Dropped, l.totals.Capacity = users.length(), l.view.droppedUsers, users.max
	list := func(entries []*entry[user]) []api.Summary {
		all := make([]api.Summary, 0, len(entries))
		for _, e := range entries {
			// A user may have been forgotten since their part of the look, and may even be
			// there again as another entry.
			if users.entries[e.key] == e {
				all = append(all, l.view.summary(l.now, l.since, e.key, &e.value))
			}
		}
		return all
	}
	out := Overview{Totals: l.totals, Tops: make(map[api.Sort][]api.Summary, len(l.n)), Limited: list(l.limited.sorted())}
	for i, by := range sorts {
		if l.n[by] > 0 {
			out.Tops[by] = list(l.best[i].sorted())
		}
	}
	for i := range l.costs {
		out.Tops[api.ByCost(l.costs[i].unit)] = l.mostCharged(&l.costs[i])
	}
	// The list is in this order already, so no look is needed.
	if most := l.n[api.ByRecent]; most > 0 {
		var recent []*entry[user]
		for e := range users.newestFirst() {
			if len(recent) == most {
				break
			}
			recent = append(recent, e)
		}
		out.Tops[api.ByRecent] = list(recent)
	}
	return out
}

// mostCharged are the users who were charged most of a unit.
func (l *Look) mostCharged(of *unitTop) []api.Summary {
	all := []api.Summary{}
	for _, e := range of.sorted() {
		c, ok := longest(l.view.limitsInForce(e), of.unit)
		// Forgotten since their part of the look, or not limited any more.
		if l.view.costs.entries[e.key] != e || !ok {
			continue
		}
		s := l.view.summary(l.now, l.since, e.key, l.view.users.lookUp(e.key))
		row := e.value.costOf(l.now, c)
		s.Cost = &row
		all = append(all, s)
	}
	return all
}

// maybeLimited is true for all users who are throttled or blocked, and false for most of
// the others.
func (u *user) maybeLimited(since int64) bool {
	if u.blockedSince != 0 {
		return true
	}
	for i := range u.windows {
		if u.windows[i].throttledUntil() > since {
			return true
		}
	}
	return false
}

// inForce are the limits of a user, and whether the file names them.
func (v *View) inForce(key string, u *user) (l *limits.Limits, named bool) {
	// Noted with the last report, so most users of a list need no look-up.
	if u.of == v.set {
		return u.limits, u.known
	}
	// The user was not heard of since the limits changed.
	return v.set.User(key), v.set.NamesUser(key)
}

// nearestLimit is the one of a user's limits that the user is refused for, by these reasons, or else the one of which
// the user uses the largest part; nil without limits. Of a limit per second the last full second counts, unless the present one
// has reached the limit already; of a longer window the present one counts.
func nearestLimit(all []api.Limit, why []api.Why) *api.Near {
	part := func(limit api.Limit) float64 {
		// A user who is blocked stays so until less is in progress, and may be nearer to another limit meanwhile.
		if slices.ContainsFunc(why, func(y api.Why) bool { return y.Limit == limit.Name && y.Mode == limits.Enforce.String() }) {
			return math.Inf(1)
		}
		return float64(limit.Used) / float64(limit.Max)
	}
	var most float64
	var nearest *api.Near
	for _, limit := range all {
		// The total of the present second has tokens that agents hold and no request has
		// used. Once it is the whole limit, the next request beyond is refused all the same.
		if limit.Last != nil && limit.Window == 1 && limit.Used < limit.Max {
			limit.Used = *limit.Last
		}
		if p := part(limit); nearest == nil || p > most {
			most = p
			nearest = &api.Near{Limit: limit.Name, Max: limit.Max, Used: limit.Used, Window: limit.Window, Mode: limit.Mode}
		}
	}
	return nearest
}
