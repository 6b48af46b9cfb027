package check

import (
	"slices"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// warnOfCost says what is valid, and hardly meant.
func (r *Report) warnOfCost(u limits.CostUnit) {
	if !r.limitsCost(u.Name) {
		r.writeLine("    nobody has a limit of it, so that nothing is charged")
	}
	if u.Estimate.IsZero() && !estimatesSomething(u) {
		r.writeLine("    a request costs nothing until its answer says so: any number may start at once; give it an estimate")
	}
	if len(u.Estimate.JSON) > 1 || len(u.Actual.JSON) > 1 || u.Actual.Sum || u.Unreadable >= 0 || u.Failed4xx != u.Failed5xx {
		r.writeLine("    warning: HAProxy does not read lists and sums of paths, estimate.unreadable and failed by status yet")
	}
	if u.Classes == nil && (len(u.Estimate.JSON) > 0 || len(u.Actual.JSON) > 0) {
		r.writeLine("    the bodies of all classes are read for it; name those that cost something under classes")
	}
}

func estimatesSomething(u limits.CostUnit) bool {
	if u.Default > 0 {
		return true
	}
	for _, n := range u.ByClass {
		if n > 0 {
			return true
		}
	}
	return false
}

func (r *Report) limitsCost(unit string) bool {
	of := func(l *limits.Limits) bool {
		return slices.ContainsFunc(slices.Collect(l.Costs()), func(c limits.Cost) bool { return c.Unit == unit })
	}
	// Tiers first, which are few: nearly always one of them has.
	for _, name := range r.set.TierNames() {
		if l, _ := r.set.TierLimits(name); of(l) {
			return true
		}
	}
	for user := range r.set.UserNames() {
		if of(r.set.User(limits.Key(user))) {
			return true
		}
	}
	return false
}
