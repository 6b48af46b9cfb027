package diff

import (
	"reflect"
	"slices"

	"github.com/sluice-qos/sluice/cmd/sluice/internal/terms"
	"github.com/sluice-qos/sluice/pkg/limits"
)

// costUnits compares what requests cost: what HAProxy must learn of it, or the rest.
func (c *comparison) costUnits(haproxy bool) {
	before, namesBefore := byName(c.before.CostUnits())
	after, namesAfter := byName(c.after.CostUnits())
	for name, in := range unionOf(namesBefore, namesAfter) {
		was, is := before[name], after[name]
		if in.left && in.right && reflect.DeepEqual(was, is) || reflect.DeepEqual(inHAProxy(was), inHAProxy(is)) == haproxy {
			continue
		}
		switch {
		case !in.left:
			c.writeLine("cost in %s: added: %s", name, terms.DescribeCostUnit(is))
		case !in.right:
			c.writeLine("cost in %s: removed", name)
		default:
			c.writeLine("cost in %s: %s → %s", name, terms.DescribeCostUnit(was), terms.DescribeCostUnit(is))
		}
	}
}

// inHAProxy is what HAProxy knows of a unit. The agent estimates requests that do not say what they cost.
func inHAProxy(u limits.CostUnit) limits.CostUnit {
	u.Default, u.ByClass = 0, nil
	return u
}

// byName returns units by their name, and the names, sorted.
func byName(all []limits.CostUnit) (units map[string]limits.CostUnit, names []string) {
	units = map[string]limits.CostUnit{}
	for _, u := range all {
		units[u.Name] = u
		names = append(names, u.Name)
	}
	return units, slices.Sorted(slices.Values(names))
}
