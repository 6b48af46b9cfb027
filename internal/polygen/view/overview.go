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
	next       int // index in the view's slots
	totals     api.Totals
	best       [4]top[user] // of sorts
	limited    top[user]
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
	// state looks up limits and allocates; most users are sorted out without.
	if !u.maybeLimited(l.since) {
		return
	}
	of, _ := l.view.inForce(e)
	switch state, _ := u.stateSince(l.now, l.since, of); state {
	case api.Throttled:
		t.Throttled++
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
				all = append(all, l.view.summary(l.now, l.since, e))
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
func (v *View) inForce(e *entry[user]) (l *limits.Limits, named bool) {
	// Noted with the last report, so most users of a list need no look-up.
	if u := &e.value; u.of == v.set {
		return u.limits, u.known
	}
	// The user was not heard of since the limits changed.
	return v.set.User(e.key), v.set.NamesUser(e.key)
}

// nearestLimit is the limit that the user is refused for, by these reasons, or else the one of which the user uses
// the largest part; nil without limits. Of a limit per second the last full second counts, unless the present one
// has reached the limit already; of a longer window the present one counts.
func (u *user) nearestLimit(now int64, l *limits.Limits, started map[string]float64, why []api.Why) *api.Near {
	part := func(limit api.Limit) float64 {
		// A user who is blocked stays so until less is in progress, and may be nearer to another limit meanwhile.
		if slices.ContainsFunc(why, func(y api.Why) bool { return y.Limit == limit.Name && y.Mode == limits.Enforce.String() }) {
			return math.Inf(1)
		}
		return float64(limit.Used) / float64(limit.Max)
	}
	var most float64
	var nearest *api.Near
	for _, limit := range u.limitsOf(now, l, started) {
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
