package limits

import (
	"maps"
	"slices"
)

// SecondClasses are the classes, All among them, of which somebody has a limit by the
// second, at whatever time, sorted.
func (s *Set) SecondClasses() []string {
	found := map[string]bool{}
	s.eachLimits(func(l *Limits) {
		for _, r := range l.rates {
			if r.Window == Second {
				found[r.Class] = true
			}
		}
	})
	return slices.Sorted(maps.Keys(found))
}

// LimitsBandwidth is whether somebody's bandwidth is limited, at whatever time.
func (s *Set) LimitsBandwidth() bool {
	found := false
	s.eachLimits(func(l *Limits) { found = found || l.Bandwidth != (Bandwidth{}) })
	return found
}

// eachLimits calls of with all limits of everybody.
func (s *Set) eachLimits(of func(*Limits)) {
	for _, e := range slices.Concat(s.content.Entries, []*Entry{s.content.fallback}) {
		e.eachLimits(of)
	}
	for _, entries := range []map[string]*Entry{s.content.Tiers, s.content.overridden} {
		for _, e := range entries {
			e.eachLimits(of)
		}
	}
}
