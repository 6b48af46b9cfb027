package view

import (
	"cmp"
	"slices"
	"time"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/pkg/bandwidth"
	"github.com/sluice-qos/sluice/pkg/limits"
)

// nearBudget is the part of a day's or month's limit, in per cent, from which a user counts as near it.
const nearBudget = 80

// TierUnit is a unit that users of a tier have a limit of.
type TierUnit struct{ Tier, Unit string }

// Look is a look at every user, in parts between which the view may be changed: decisions cannot wait until 100 000 users are
// looked at. A user counts as throttled if a throttle was in force within the last second.
type Look struct {
	view *View
	now  int64
	next int // index in the slots of the view

	Totals  api.Totals
	Unknown int // users whom the limit file does not name
	// Near is how many users have used nearBudget per cent or more of a day's or month's limit that is enforced. Each tier and unit with
	// a charged user is there.
	Near map[TierUnit]int

	best    map[api.Sort]*top
	limited top
}

// Look begins a look.
func (v *View) Look(at time.Time) *Look {
	l := &Look{view: v, now: at.UnixNano(), Near: map[TierUnit]int{}, limited: top{most: api.MaxLimited}, best: map[api.Sort]*top{}}
	for _, by := range []api.Sort{api.ByRate, api.ByRefused, api.ByConcurrent, api.ByDown, api.ByUp} {
		l.best[by] = &top{most: api.MaxTop}
	}
	for _, unit := range v.set.CostUnits() {
		l.best[api.ByCost(unit.Name)] = &top{most: api.MaxTop}
	}
	return l
}

// More looks at so many users more, and reports whether there are others.
func (l *Look) More(users int) (more bool) {
	slots := l.view.slots
	end := min(l.next+users, len(slots))
	for _, r := range slots[min(l.next, end):end] {
		l.count(r)
	}
	if l.next = end; end < len(slots) {
		return true
	}
	l.Totals.Seen, l.Totals.Dropped, l.Totals.Capacity = len(slots), l.view.dropped, l.view.max
	return false
}

func (l *Look) count(r *record) {
	l.view.adoptLimits(r)
	t := &l.Totals
	if l.now-r.seen < reportSpan {
		t.Users++
	}
	if r.unknown && r.reports > 0 {
		l.Unknown++
	}
	rate := r.requestRate(l.now)
	active, moved := r.progressAndBytes(l.now)
	t.Rate += rate
	refused := r.refusedRate(l.now)
	t.Refused += refused
	t.InProgress += active
	t.Down += moved[bandwidth.Down]
	t.Up += moved[bandwidth.Up]
	l.best[api.ByRate].consider(rate, r)
	l.best[api.ByRefused].consider(refused, r)
	l.best[api.ByConcurrent].consider(float64(active), r)
	l.best[api.ByDown].consider(float64(moved[bandwidth.Down]), r)
	l.best[api.ByUp].consider(float64(moved[bandwidth.Up]), r)
	if isLimited := l.countCharges(r) || r.maybeLimited(l.now-lately) || refused > 0; !isLimited {
		return // most users: state allocates
	}
	switch state, _ := r.state(l.now, l.now-lately); state {
	case api.Throttled:
		t.Throttled++
	case api.Spent:
		t.Spent++
	case api.Blocked:
		t.Blocked++
	case api.Denied:
		rate = refused // nothing else may start
	default:
		return
	}
	l.limited.consider(rate, r)
}

// countCharges counts what a user was charged, and reports whether there is anything.
func (l *Look) countCharges(r *record) (any bool) {
	if !r.hasCosts() {
		return false
	}
	longest := map[string]limits.Cost{} // of each unit; costs are sorted by window
	near := map[string]int{}            // 1 for a unit whose day or month is nearly used up
	for c := range r.limits.Costs() {
		longest[c.Unit] = c
		if c.Window >= limits.Day && c.Mode == limits.Enforce {
			near[c.Unit] += 0
			if 100*r.charged(l.now/int64(time.Second), c).Charged >= nearBudget*c.Max && c.Max > 0 { // see limits.MaxCost
				near[c.Unit] = 1
			}
		}
	}
	for unit, n := range near {
		l.Near[TierUnit{r.limits.Tier, unit}] += n
	}
	for unit, c := range longest {
		if n := r.charged(l.now/int64(time.Second), c).Charged; n > 0 && l.best[api.ByCost(unit)] != nil {
			l.best[api.ByCost(unit)].consider(float64(n), r)
		}
	}
	return true
}

// maybeLimited is true for all users who are throttled or blocked, and false for most others.
func (r *record) maybeLimited(since int64) bool {
	return r.blockedSince != 0 || slices.ContainsFunc(r.windows, func(w window) bool { return w.throttledUntil > since })
}

// Top returns the n users with most who are still known.
func (l *Look) Top(by api.Sort, n int) []api.Summary {
	if by == api.ByRecent {
		return l.view.recent(l.now, n)
	}
	unit, isCost := by.CostUnit()
	all := []api.Summary{}
	if l.best[by] == nil {
		return all // by a unit that does not exist
	}
	for _, r := range l.known(l.best[by], n) {
		s := l.view.summary(l.now, l.now-lately, r)
		if isCost {
			for c := range r.limits.Costs() {
				if c.Unit == unit {
					row := r.costOf(l.now, c)
					s.Cost = &row
				}
			}
			if s.Cost == nil {
				continue // not limited any more
			}
		}
		all = append(all, s)
	}
	return all
}

// Limited returns the throttled, blocked and spent users with the highest rates.
func (l *Look) Limited() []api.Summary {
	all := []api.Summary{}
	for _, r := range l.known(&l.limited, api.MaxLimited) {
		all = append(all, l.view.summary(l.now, l.now-lately, r))
	}
	return all
}

// known are the first n records that were not forgotten since the look.
func (l *Look) known(t *top, n int) []*record {
	var all []*record
	for _, m := range t.sorted() {
		if len(all) < n && l.view.records[m.record.key] == m.record {
			all = append(all, m.record)
		}
	}
	return all
}

func (v *View) recent(now int64, n int) []api.Summary {
	all := []api.Summary{}
	for r := v.newest; r != nil && len(all) < n; r = r.older {
		all = append(all, v.summary(now, now-lately, r))
	}
	return all
}

// UnknownUsers returns n of the users whom the limit file does not name, without From and totals.
func (v *View) UnknownUsers(by api.Sort, n int) []api.Unknown {
	var found []*record
	for r := v.newest; r != nil && (by == api.ByActive || len(found) < n); r = r.older {
		if v.adoptLimits(r); r.unknown && r.reports > 0 {
			found = append(found, r)
		}
	}
	if by == api.ByActive {
		slices.SortStableFunc(found, func(a, b *record) int { return cmp.Or(cmp.Compare(b.reports, a.reports), cmp.Compare(a.key, b.key)) })
	}
	all := []api.Unknown{}
	for _, r := range found[:min(n, len(found))] {
		all = append(all, api.Unknown{Name: api.NameOfKey(r.key), Tier: r.limits.Tier, First: answerTime(r.first), Seen: answerTime(r.seen), Reports: r.reports})
	}
	return all
}

// top keeps the records with the largest measures; of equal ones those whose keys come first.
type top struct {
	most  int
	best  []measured // sorted and cut to most when it is twice as long
	least measured   // the last one of the last cut
}

type measured struct {
	measure float64
	record  *record
}

func (a measured) compare(b measured) int {
	if a.measure != b.measure {
		return cmp.Compare(b.measure, a.measure)
	}
	return cmp.Compare(a.record.key, b.record.key)
}

func (t *top) consider(measure float64, r *record) {
	m := measured{measure, r}
	// Most of 100 000 users are below the least of the best, which is one comparison.
	if t.least.record != nil && t.least.compare(m) <= 0 {
		return
	}
	if t.best = append(t.best, m); len(t.best) == 2*t.most {
		t.least = t.sorted()[t.most-1]
	}
}

// sorted returns what is kept, the largest first.
func (t *top) sorted() []measured {
	slices.SortFunc(t.best, measured.compare)
	t.best = t.best[:min(t.most, len(t.best))]
	return t.best
}
