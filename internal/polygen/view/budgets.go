package view

import (
	"slices"
	"time"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// budget is what a user was charged in a window of one limit of costs, as its pool said last.
type budget struct {
	unit    string
	window  limits.Window
	begin   int64 // of the window, in s
	charged int64
}

// A Budget is a limit of what requests cost, and how much of it a user was charged.
type Budget struct {
	limits.Cost
	Charged int64     // in the present window; it may be more than the limit
	Ends    time.Time // the present window
}

// Charged takes the total of a pool of costs: what a user was charged of a unit in the window
// that begins at a second of the cluster. Pools say so as they pass each 32nd of their limits.
func (v *View) Charged(at time.Time, key, unit string, window limits.Window, begin, total int64) {
	u := v.reportedUser(at.UnixNano(), key)
	limited := func(c limits.Cost) bool { return c.Unit == unit && c.Window == window }
	// A limit that is gone is not kept for ever: nothing reports it again.
	u.budgets = slices.DeleteFunc(u.budgets, func(b budget) bool {
		return !containsCost(u.limits, func(c limits.Cost) bool { return c.Unit == b.unit && c.Window == b.window })
	})
	if !containsCost(u.limits, limited) {
		return
	}
	for i := range u.budgets {
		b := &u.budgets[i]
		if b.unit != unit || b.window != window {
			continue
		}
		// A correction of a window that is over comes after the first charge of the present one.
		if begin >= b.begin {
			b.begin, b.charged = begin, total
		}
		return
	}
	u.budgets = append(u.budgets, budget{unit, window, begin, total})
}

func containsCost(l *limits.Limits, is func(limits.Cost) bool) bool {
	for c := range l.Costs() {
		if is(c) {
			return true
		}
	}
	return false
}

// Budgets are the limits of costs of a wire key, and what was charged of each.
func (v *View) Budgets(at time.Time, key string) (all []Budget) {
	u := v.users.lookUp(key)
	// The limits are told of every name, with nothing charged.
	if u == nil {
		u = &user{}
	}
	for c := range v.set.User(key).Costs() {
		begin := c.WindowStart(at.Unix())
		b := Budget{Cost: c, Ends: time.Unix(begin+c.Window.Seconds(), 0).UTC()}
		for _, of := range u.budgets {
			if of.unit == c.Unit && of.window == c.Window && of.begin == begin {
				b.Charged = of.charged
			}
		}
		all = append(all, b)
	}
	return all
}
