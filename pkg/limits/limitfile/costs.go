package limitfile

import (
	"cmp"
	"encoding/binary"
	"maps"
	"slices"

	"gopkg.in/yaml.v3"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// costs are the limits of what requests cost of a draft. They never change, and equal ones are
// the same pointer (see drafts.sharedCosts).
type costs struct{ limits []limits.Cost } // sorted by unit and window; a Mode may be Off

// asLimits returns the limits, also of nil.
func (c *costs) asLimits() []limits.Cost {
	if c == nil {
		return nil
	}
	return c.limits
}

// replaceUnit returns the limits with those of a unit replaced.
func (c *costs) replaceUnit(unit string, own []limits.Cost) []limits.Cost {
	// Cloned, because the users of the tier have the same ones.
	all := slices.DeleteFunc(slices.Clone(c.asLimits()), func(c limits.Cost) bool { return c.Unit == unit })
	all = append(all, own...)
	slices.SortFunc(all, func(a, b limits.Cost) int {
		return cmp.Or(cmp.Compare(a.Unit, b.Unit), cmp.Compare(a.Window, b.Window))
	})
	return all
}

// sharedCosts returns the one that has these limits, which are sorted.
func (ds *drafts) sharedCosts(all []limits.Cost) *costs {
	// No limits are nil, so that drafts without any are equal.
	if len(all) == 0 {
		return nil
	}
	var key []byte
	for _, c := range all {
		key = append(append(key, c.Unit...), 0, byte(c.Window), byte(c.Mode))
		// A unit's day begins when it begins: the rest of a limit follows from its unit.
		key = binary.AppendUvarint(key, uint64(c.Max))
	}
	shared := ds.costs[string(key)]
	if shared == nil {
		shared = &costs{slices.Clip(all)}
		ds.costs[string(key)] = shared
	}
	return shared
}

const costsExample = "{tokens: {minute: 20k, day: 500k}}"

// costDraft is what is said of one unit.
type costDraft struct {
	most [len(limits.CostWindows)]int64 // 0: not limited
	mode limits.Mode
}

var costFields = fields[costDraft]{
	scalar(limits.Second.String(), costLimits, func(c *costDraft) *int64 { return &c.most[limits.Second] }),
	scalar(limits.Minute.String(), costLimits, func(c *costDraft) *int64 { return &c.most[limits.Minute] }),
	scalar(limits.Hour.String(), costLimits, func(c *costDraft) *int64 { return &c.most[limits.Hour] }),
	scalar(limits.Day.String(), costLimits, func(c *costDraft) *int64 { return &c.most[limits.Day] }),
	modeField(func(c *costDraft) *limits.Mode { return &c.mode }),
}

// readCosts reads limits by unit: what is named replaces what was there.
func (f *file) readCosts(d *draft, at place, n *yaml.Node) {
	if !f.isPlain(n) {
		return
	}
	if isUnlimited(n) {
		d.costs = nil
		f.replace(at, n)
		return
	}
	// Unit by unit: what the tier says of a unit that is not named here stays.
	all := d.costs
	for key, value := range f.eachEntry(n, at, costsExample) {
		unit, ok := f.units[key.Value]
		if !ok {
			f.refuseUnit(key, at)
			continue
		}
		// Also after an error in it, so that the other units are read over the same.
		own := f.readCost(unit, at.below(key.Value), value)
		all = f.sharedCosts(all.replaceUnit(unit.Name, own))
	}
	d.costs = all
}

func (f *file) refuseUnit(key *yaml.Node, at place) {
	switch {
	case f.units == nil:
		f.errorf(key, "%s: unknown unit %s; declare it at the top of the limit file, such as costs: {%s: {estimate: {default: 1}}}", at, quote(key.Value), shorten(key.Value))
	// What is wrong with all of them is told there.
	case len(f.units) > 0:
		f.refuseUnknown(key, at, "unit", slices.Sorted(maps.Keys(f.units)))
	}
}

// readCost reads the limits of one unit: a mapping with a number for each window.
func (f *file) readCost(unit costUnit, at place, n *yaml.Node) (all []limits.Cost) {
	if !f.isPlain(n) {
		return nil
	}
	// An entry states all of its unit, as that of a class does: a window of the tier would be a surprise beside it.
	f.drop(at)
	switch {
	case isUnlimited(n):
		f.mark(at, n)
		return nil
	case n.Kind != yaml.MappingNode:
		f.errorf(n, "%s must be a mapping such as {minute: 20k, day: 500k}, or unlimited, got %s", at, describe(n))
		return nil
	}
	said := &f.cost
	*said = costDraft{}
	readFields(f, said, at, n, "{minute: 20k, day: 500k}", costFields)
	if !slices.ContainsFunc(limits.CostWindows[:], func(w limits.Window) bool { return lookup(n, w.String()) != nil }) {
		f.errorf(n, "%s has no limit; write one of second, minute, hour and day, such as {minute: 20k}", at)
	}
	for _, w := range limits.CostWindows {
		// Unlimited in one window is no limit there; the others count.
		if said.most[w] == 0 {
			continue
		}
		f.checkEstimates(unit, said.most[w], at.below(w.String()), lookup(n, w.String()))
		cost := limits.Cost{Unit: unit.Name, Window: w, Max: said.most[w], Mode: said.mode}
		if w == limits.Day {
			cost.DayStart = unit.dayStart
		}
		all = append(all, cost)
	}
	return all
}

// checkEstimates checks that a limit has room for each estimate that is made without the request's
// own words: all that it is made for would be refused for ever.
func (f *file) checkEstimates(unit costUnit, most int64, at place, n *yaml.Node) {
	if field, estimate := unit.largestEstimate(); estimate > most {
		f.errorf(n, "%s must be at least %d, got %s: a request is estimated at so much that does not say what it costs (costs.%s.estimate.%s), and could never be admitted",
			at, estimate, quoteUnlessPlain(n.Value), unit.Name, field)
	}
}
