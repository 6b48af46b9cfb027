package limits

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// Entry is what a limit file says of one user, or of all users of a pattern or a tier.
// Users with the same should share one. An Entry never changes.
type Entry struct {
	Limits *Limits

	// Then is what counts from Until on. It has no Until of its own, unless the entry is of
	// an override.
	Until int64 // Unix time in ns; 0 if the entry never ends
	Then  *Entry
}

// Named is that a file names a user or a pattern. It is small, because there may be millions.
type Named struct {
	Entry uint32 // the index in Content.Entries of what the file says
	Line  uint32 // where it says so, as the reader numbers lines
}

// at returns the limits at a time.
func (e *Entry) at(now int64) *Limits {
	for e.Until != 0 && e.Until <= now {
		e = e.Then
	}
	return e.Limits
}

// eachLimits calls of with all limits of an entry and of those that follow it.
func (e *Entry) eachLimits(of func(*Limits)) {
	for ; e != nil; e = e.Then {
		of(e.Limits)
	}
}

// eachEnd calls of with each time at which the entry, or what follows it, ends.
func (e *Entry) eachEnd(of func(until int64)) {
	for ; e != nil && e.Until != 0; e = e.Then {
		of(e.Until)
	}
}

// Time is when the set is as it is (see At): before 1970 for the set of all times.
func (s *Set) Time() time.Time { return time.Unix(0, s.now) }

// At returns the set as it is at a time: s itself, or one of the same content and
// version in which other entries have expired.
func (s *Set) At(t time.Time) *Set {
	now := unixNano(t)
	if s.expiredEntries(now) == s.expiredEntries(s.now) {
		return s
	}
	return &Set{content: s.content, now: now}
}

// unixNano is the Unix time in ns, the least or greatest one for times that have none:
// before 1970, which is before anything expires, and after 2262.
func unixNano(t time.Time) int64 {
	switch s := t.Unix(); {
	case s < 0:
		return math.MinInt64
	case s > math.MaxInt64/int64(time.Second)-1:
		return math.MaxInt64
	}
	return t.UnixNano()
}

// Expires returns when the next entry expires, after which At returns another
// set, or the zero time if none does.
func (s *Set) Expires() time.Time {
	if n := s.expiredEntries(s.now); n < len(s.content.untils) {
		return time.Unix(0, s.content.untils[n]).UTC()
	}
	return time.Time{}
}

// expiredEntries counts the entries that have expired at a time.
func (s *Set) expiredEntries(now int64) int {
	// An entry that ends at now has ended.
	n, _ := slices.BinarySearchFunc(s.content.untils, now, func(end, now int64) int { return cmp.Or(cmp.Compare(end, now), -1) })
	return n
}
