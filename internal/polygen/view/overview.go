package view

import (
	"time"

	"github.com/sluice-qos/sluice/pkg/bandwidth"
	"github.com/sluice-qos/sluice/pkg/limits"
)

// MaxLimited is the most users of a live answer who are throttled or blocked.
const MaxLimited = 100

// lately is how long a throttle is told of after it has ended. One of a second ends
// with it, and most begin late in it: who looks once a second would miss them.
const lately = int64(time.Second)

// Overview is what live answers are made of.
type Overview struct {
	Totals  Totals
	Tops    map[Sort][]Summary // as asked for
	Limited []Summary          // those throttled or blocked with the highest rates
}

// Overview looks at every user once. Of each order in n it returns so many users with
// most. A user is throttled here if he was within the last second.
func (v *View) Overview(at time.Time, n map[Sort]int) Overview {
	now := at.UnixNano()
	since := now - lately
	out := Overview{
		Totals:  Totals{Seen: v.users.len(), Dropped: v.droppedUsers, Capacity: v.users.max},
		Tops:    make(map[Sort][]Summary, len(n)),
		Limited: []Summary{},
	}
	t := &out.Totals
	best := [...]*top[user]{{n: n[ByRate]}, {n: n[ByConcurrent]}, {n: n[ByDown]}, {n: n[ByUp]}}
	limited := top[user]{n: MaxLimited}
	var recent []*entry[user]
	for e := range v.users.all() {
		u := &e.value
		if now-u.seen < reportSpan {
			t.Users++
		}
		rate := u.rate(now)
		active, down, up := u.flow(now)
		t.Rate += rate
		t.InProgress += active
		t.Down += down
		t.Up += up
		for i, measure := range [...]float64{rate, float64(active), float64(down), float64(up)} {
			best[i].offer(measure, e)
		}
		if len(recent) < n[ByRecent] {
			recent = append(recent, e)
		}
		if !u.maybeLimited(since) {
			continue
		}
		l, _ := v.inForce(e)
		switch state, _ := u.state(now, since, l); state {
		case Throttled:
			t.Throttled++
		case Blocked:
			t.Blocked++
		default:
			continue
		}
		limited.offer(rate, e)
	}
	list := func(entries []*entry[user]) []Summary {
		users := make([]Summary, len(entries))
		for i, e := range entries {
			users[i] = v.summary(now, since, e)
		}
		return users
	}
	for i, by := range [...]Sort{ByRate, ByConcurrent, ByDown, ByUp} {
		if n[by] > 0 {
			out.Tops[by] = list(best[i].sorted())
		}
	}
	if n[ByRecent] > 0 {
		out.Tops[ByRecent] = list(recent)
	}
	out.Limited = list(limited.sorted())
	return out
}

// flow is his requests in progress, and bytes per second down and up.
func (u *user) flow(now int64) (active int, down, up int64) {
	for i := range u.places {
		p := &u.places[i]
		active += p.inProgress(now)
		if fresh(now, p.demandAt) {
			down += p.moved[bandwidth.Down]
			up += p.moved[bandwidth.Up]
		}
	}
	return active, down, up
}

// maybeLimited is false for most of those who are neither throttled nor blocked.
func (u *user) maybeLimited(since int64) bool {
	if u.blockedSince != 0 {
		return true
	}
	for i := range u.windows {
		if u.windows[i].until() > since {
			return true
		}
	}
	return false
}

// inForce are the limits of a user, and whether the file names him.
func (v *View) inForce(e *entry[user]) (l *limits.Limits, named bool) {
	if u := &e.value; u.of == v.set {
		return u.limits, u.known
	}
	return v.set.User(e.key), v.set.Known(e.key)
}

// near is the limit of which he uses the largest part, or nil if he has none. Of
// seconds it is the last full one that counts, unless the present one is spent
// already; of longer windows the present one.
func (u *user) near(now int64, l *limits.Limits) *Near {
	var nearest *Near
	for _, limit := range u.limitsOf(now, l) {
		if limit.Last != nil && limit.Window == 1 && limit.Used < limit.Max {
			limit.Used = *limit.Last // of the present one agents hold tokens that nobody has used
		}
		if nearest == nil || float64(limit.Used)/float64(limit.Max) > float64(nearest.Used)/float64(nearest.Max) {
			nearest = &Near{Limit: limit.Name, Max: limit.Max, Used: limit.Used, Window: limit.Window, Mode: limit.Mode}
		}
	}
	return nearest
}
