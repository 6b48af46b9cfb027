package view

import (
	"time"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/pkg/cost"
	"github.com/sluice-qos/sluice/pkg/limits"
)

// What users were charged is kept apart from what else is known of them, and for longer: most of a day's budget may be
// spent by somebody who has been quiet for hours.

const (
	// keepCosts is how long what a user was charged is kept after it was last heard of: as long as
	// the longest window, so that none is forgotten before it ends.
	keepCosts = int64(24 * time.Hour)
	// nearBudget is the part of a day's limit, in per cent, from which a user counts as near it.
	nearBudget = 80
)

// spending is what one wire key was charged.
type spending struct {
	of     *limits.Set // the set that limits are from
	limits *limits.Limits

	known   int64 // when something was last heard or read of it, in ns
	seen    int64 // when it was last reported, in ns; 0: never
	windows []charges
}

// charges are what was charged of one unit in windows of one length.
type charges struct {
	unit   string
	window limits.Window
	heard  int64 // when the last report came, in ns
	totals counts[charged]
}

// charged is what was charged in one window.
type charged struct {
	cost.Total
	spentAt int64 // when the limit was seen to be reached, in ns; 0: it is not
}

// Charged takes what a user was charged of a unit in the window that begins at a second of
// the cluster.
func (v *View) Charged(at time.Time, key, unit string, window limits.Window, begin, total int64) {
	now := at.UnixNano()
	v.reportedUser(now, key)
	s := v.spendingOf(now, key)
	s.seen = now
	for c := range s.limits.Costs() {
		if c.Unit != unit || c.Window != window {
			continue
		}
		w := s.chargesOf(c)
		w.heard = now
		w.take(now, c, begin, cost.Total{Charged: total})
	}
}

// Recalled takes what Redis has of one user's totals. It was read between two times.
func (v *View) Recalled(began, at time.Time, key string, pools cost.Pools) {
	// Whoever is asked about by a name that nobody has must not take the place of a user.
	if len(pools) == 0 {
		return
	}
	now := at.UnixNano()
	s := v.spendingOf(now, key)
	for pool, total := range pools {
		for c := range s.limits.Costs() {
			if c.Unit != pool.Unit || c.Window != pool.Window {
				continue
			}
			// A report that came meanwhile may be of later than what was read.
			if w := s.chargesOf(c); w.heard < began.UnixNano() {
				w.take(now, c, pool.Start, total)
			}
		}
	}
}

// spendingOf returns what a key was charged, with the limits in force.
func (v *View) spendingOf(now int64, key string) *spending {
	s, dropped := v.costs.markUsed(key)
	if dropped {
		v.droppedCosts++
	}
	s.known = now
	if s.of != v.set {
		s.of, s.limits = v.set, v.set.User(key)
	}
	return s
}

// chargesOf returns the charges of a limit, new ones if there are none yet.
func (s *spending) chargesOf(c limits.Cost) *charges {
	if w := s.findCharges(c); w != nil {
		return w
	}
	s.windows = append(s.windows, charges{unit: c.Unit, window: c.Window})
	return &s.windows[len(s.windows)-1]
}

// findCharges returns the charges of a limit, or nil if there are none yet.
func (s *spending) findCharges(c limits.Cost) *charges {
	// Of nobody, and of a user with a few limits a list.
	if s == nil {
		return nil
	}
	for i := range s.windows {
		if w := &s.windows[i]; w.unit == c.Unit && w.window == c.Window {
			return w
		}
	}
	return nil
}

// take takes the total of the window that begins at a second.
func (w *charges) take(now int64, c limits.Cost, begin int64, total cost.Total) {
	length := c.Window.Seconds()
	before, _ := w.totals.at(length, begin)
	// A report does not say how much of the total leaves no debt: see cost.Total.
	total.Due = max(total.Due, before.Due, c.Max)
	if c.Mode == limits.DryRun {
		total.Due = max(total.Due, total.Charged)
	}
	next := charged{Total: total}
	if total.Charged >= c.Max {
		if next.spentAt = before.spentAt; next.spentAt == 0 {
			next.spentAt = now
		}
	}
	w.totals.set(length, c.WindowStart(now/int64(time.Second)), begin, next)
}

// chargedIn is what was charged of a limit in the window of a second.
func (s *spending) chargedIn(second int64, c limits.Cost) charged {
	w := s.findCharges(c)
	if w == nil {
		return charged{}
	}
	begin := c.WindowStart(second)
	if in, ok := w.totals.at(c.Window.Seconds(), begin); ok {
		return in
	}
	// Nothing was charged in it yet: it will begin with the debt of the window before, and refuses because of it.
	before, ok := w.totals.at(c.Window.Seconds(), begin-c.Window.Seconds())
	if !ok {
		return charged{}
	}
	return charged{Total: cost.Total{Charged: before.Debt(c.Max)}, spentAt: begin * int64(time.Second)}
}

// costsOf are the limits of what a user's requests cost, and how much of each is used.
func (s *spending) costsOf(now int64, l *limits.Limits) (all []api.Limit) {
	for c := range l.Costs() {
		all = append(all, s.costOf(now, c))
	}
	return all
}

func (s *spending) costOf(now int64, c limits.Cost) api.Limit {
	second, length := now/int64(time.Second), c.Window.Seconds()
	used, last := s.chargedIn(second, c).Charged, s.chargedIn(second-length, c).Charged
	left, resets := max(0, c.Max-used), time.Unix(c.WindowStart(second)+length, 0).UTC()
	return api.Limit{Name: c.Name(), Unit: c.Unit, Max: c.Max, Window: length, Mode: c.Mode.String(), Used: used, Last: &last, Left: &left, Resets: &resets}
}

// spentSince are the limits of which nothing is left now, or was left in a window that ended after since.
func (s *spending) spentSince(now, since int64, l *limits.Limits) (why []api.Why) {
	if s == nil {
		return nil
	}
	for c := range l.Costs() {
		length := c.Window.Seconds()
		for _, second := range [...]int64{now / int64(time.Second), now/int64(time.Second) - length} {
			in, end := s.chargedIn(second, c), (c.WindowStart(second)+length)*int64(time.Second)
			// By the limit of now: one that was raised leaves something.
			if in.Charged < c.Max || end <= since {
				continue
			}
			until := answerTime(end)
			// A limit that was lowered is reached since some time in this window.
			spentAt := max(in.spentAt, end-length*int64(time.Second))
			why = append(why, api.Why{Limit: c.Name(), Reason: api.Cost, Mode: c.Mode.String(), Since: answerTime(spentAt), Until: &until})
			break
		}
	}
	return why
}

// longest is the limit of a unit with the longest window.
func longest(l *limits.Limits, unit string) (longest limits.Cost, ok bool) {
	for c := range l.Costs() {
		// They are sorted by window.
		if c.Unit == unit {
			longest, ok = c, true
		}
	}
	return longest, ok
}

// limitsInForce are the limits of a user who was charged.
func (v *View) limitsInForce(e *entry[spending]) *limits.Limits {
	// Noted with the last report, as with users: see inForce.
	if s := &e.value; s.of == v.set {
		return s.limits
	}
	return v.set.User(e.key)
}

// TierUnit is a unit that users of a tier have a limit of.
type TierUnit struct{ Tier, Unit string }

// BudgetLook counts the users near their budgets, in parts as Look does.
type BudgetLook struct {
	view *View
	now  int64
	next int

	// Near is how many users have used nearBudget per cent or more of a day's limit that is enforced.
	// Tiers of which nobody has are there if one of their users was charged.
	Near map[TierUnit]int
}

// BeginBudgets begins a look at who is near a day's limit.
func (v *View) BeginBudgets(at time.Time) *BudgetLook {
	return &BudgetLook{view: v, now: at.UnixNano(), Near: map[TierUnit]int{}}
}

// LookAtMore looks at so many users more, and reports whether there are others.
func (l *BudgetLook) LookAtMore(users int) (more bool) {
	slots := l.view.costs.slots
	end := min(l.next+users, len(slots))
	for _, e := range slots[min(l.next, end):end] {
		of := l.view.limitsInForce(e)
		for c := range of.Costs() {
			if c.Window != limits.Day || c.Mode != limits.Enforce {
				continue
			}
			// MaxCost leaves room for a hundred times as much.
			near := 0
			if 100*e.value.chargedIn(l.now/int64(time.Second), c).Charged >= nearBudget*c.Max {
				near = 1
			}
			l.Near[TierUnit{of.Tier, c.Unit}] += near
		}
	}
	l.next = end
	return end < len(slots)
}
