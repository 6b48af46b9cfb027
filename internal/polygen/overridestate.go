package polygen

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/limits/limitfile"
)

// overrideState is what is known of overrides by hand. Two states that went different ways, as when Redis
// fails over to a replica that lagged behind, are merged: of each user the later write counts. So
// nothing that was set is lost, and nothing that was removed comes back. The zero value has none.
//
// Writes are ordered by Since, which stamp makes later than all that is known.
type overrideState struct {
	list []limits.Override // those that were set; one for each user
	// removed has the removals, in the form of overrides without limits: what was set before Since is
	// gone. Each is needed until Until, when all that it removed would have ended anyway.
	removed []limits.Override
}

// stamp is the time of the next write: now, or just after the last one that is known.
func (s *overrideState) stamp(now time.Time) time.Time {
	last := now.UTC().Truncate(time.Millisecond)
	for _, o := range slices.Concat(s.list, s.removed) {
		// The clocks of polygens differ and may be set back: a write that is older than what it replaces would lose
		// against it in every merge.
		if !o.Since.Before(last) {
			last = o.Since.Add(time.Millisecond)
		}
	}
	return last
}

// presentAt is what is still needed of the state: what has not ended.
func (s overrideState) presentAt(now time.Time) overrideState {
	return overrideState{unexpired(s.list, now), unexpired(s.removed, now)}
}

// unexpired are the overrides that have not ended.
func unexpired(list []limits.Override, now time.Time) []limits.Override {
	return slices.DeleteFunc(slices.Clone(list), func(o limits.Override) bool { return !o.Until.After(now) })
}

// lastUntil is when the last of the state ends.
func (s *overrideState) lastUntil() (last time.Time) {
	for _, o := range slices.Concat(s.list, s.removed) {
		last = later(last, o.Until)
	}
	return last
}

// find returns the override of a user.
func (s *overrideState) find(user string) (limits.Override, bool) {
	i := slices.IndexFunc(s.list, func(o limits.Override) bool { return o.User == user })
	if i < 0 {
		return limits.Override{}, false
	}
	return s.list[i], true
}

// add takes an override, unless a later write of the user is known.
func (s *overrideState) add(o limits.Override) {
	for i, r := range s.removed {
		if o.User == r.User && o.Since.Before(r.Since) {
			// A third copy of the override may turn up for as long as it would have lasted.
			s.removed[i].Until = later(r.Until, o.Until)
			return
		}
	}
	before, there := s.find(o.User)
	if there && compareWrites(before, o) > 0 {
		before, o = o, before
	}
	s.list = append(slices.DeleteFunc(s.list, func(b limits.Override) bool { return b.User == o.User }), o)
	// The one that is replaced would last longer, and come back with an old copy of Redis when this one has ended: it
	// counts as removed.
	if there && before.Until.After(o.Until) {
		s.remove(removalOf(before, o.Since))
	}
}

// removalOf is the removal of an override at a time.
func removalOf(o limits.Override, at time.Time) limits.Override {
	return limits.Override{User: o.User, Since: at, Until: o.Until}
}

// remove takes a removal.
func (s *overrideState) remove(r limits.Override) {
	// Removals of one user become one, the latest, for as long as the longest: or somebody who sets and removes all
	// day would fill the list.
	s.removed = slices.DeleteFunc(s.removed, func(other limits.Override) bool {
		if other.User != r.User {
			return false
		}
		until := later(r.Until, other.Until)
		if compareWrites(other, r) > 0 {
			r = other
		}
		r.Until = until
		return true
	})
	s.list = slices.DeleteFunc(s.list, func(o limits.Override) bool {
		// What was set after the removal stays, whichever was heard of first.
		gone := o.User == r.User && o.Since.Before(r.Since)
		if gone {
			r.Until = later(r.Until, o.Until)
		}
		return gone
	})
	s.removed = append(s.removed, r)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// merge is what two states know together. It is the same whichever comes first.
func (s overrideState) merge(other overrideState) overrideState {
	var all overrideState
	// Removals first: add compares with them, and they find nothing to remove yet.
	for _, r := range slices.Concat(s.removed, other.removed) {
		all.remove(r)
	}
	for _, o := range slices.Concat(s.list, other.list) {
		all.add(o)
	}
	all.settle()
	return all
}

// settle writes what the state knows in one way only.
func (s *overrideState) settle() {
	// Otherwise polygens that heard of the same in another order would tell Redis in turns, for ever. An override
	// outdoes all earlier writes for as long as it lasts itself, so a removal beside it is of its time, and is
	// there only if it lasts longer.
	s.removed = slices.DeleteFunc(s.removed, func(r limits.Override) bool {
		o, there := s.find(r.User)
		return there && !o.Until.Before(r.Until)
	})
	for i, r := range s.removed {
		if o, there := s.find(r.User); there {
			s.removed[i] = removalOf(o, o.Since)
			s.removed[i].Until = r.Until
		}
	}
}

// fit keeps the latest writes, as many as may be kept, and returns how many it let go.
func (s *overrideState) fit() (dropped int) {
	return fitList(&s.list) + fitList(&s.removed)
}

func fitList(list *[]limits.Override) (dropped int) {
	if fits(*list) {
		return 0
	}
	// The latest, in an order that all polygens share: if each let others go, they would tell Redis in turns.
	latest := slices.SortedFunc(slices.Values(*list), func(a, b limits.Override) int { return compareWrites(b, a) })
	kept, size := 0, len("[]")
	for ; kept < min(len(latest), limitfile.MaxOverrides); kept++ {
		if size += len(encoded(latest[kept])); size > limitfile.MaxOverridesSize {
			break
		}
	}
	*list = latest[:kept]
	return len(latest) - kept
}

// fits reports whether Redis may keep so many.
func fits(list []limits.Override) bool {
	return len(list) <= limitfile.MaxOverrides && len(encoded(list...)) <= limitfile.MaxOverridesSize
}

// equal reports whether two states say the same.
func (s overrideState) equal(other overrideState) bool {
	return encoded(s.list...) == encoded(other.list...) && encoded(s.removed...) == encoded(other.removed...)
}

func encoded(list ...limits.Override) string { return string(limitfile.EncodeOverrides(list)) }

// compareWrites orders writes by their time. Two at the same time are ordered by what they say, so
// that all polygens prefer the same.
func compareWrites(a, b limits.Override) int {
	return cmp.Or(a.Since.Compare(b.Since), a.Until.Compare(b.Until), strings.Compare(encoded(a), encoded(b)))
}
