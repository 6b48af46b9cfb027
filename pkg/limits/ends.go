package limits

import (
	"math"
	"slices"
	"time"
)

// Time is when the set is as it is (see At): before 1970 for the set of all times.
func (s *Set) Time() time.Time { return time.Unix(0, s.now) }

// At returns the set as it is at a time: s itself, or one of the same content and
// version in which other entries have expired.
func (s *Set) At(t time.Time) *Set {
	// The same set, not an equal one: callers tell a change by its address.
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
	// Sets begin with the least time, of which nothing has expired.
	case s < 0:
		return math.MinInt64
	// UnixNano of a time beyond would be some other time, perhaps long ago.
	case s > math.MaxInt64/int64(time.Second)-1:
		return math.MaxInt64
	}
	return t.UnixNano()
}

// Expires returns when the next entry expires, after which At returns another
// set, or the zero time if none does.
func (s *Set) Expires() time.Time {
	// Sorted, so that the next one is right behind those that have expired.
	if n := s.expiredEntries(s.now); n < len(s.content.untils) {
		return time.Unix(0, s.content.untils[n]).UTC()
	}
	return time.Time{}
}

// expiredEntries counts the entries that have expired at a time.
func (s *Set) expiredEntries(now int64) int {
	// What ends at now has ended, so now+1 is looked for, and this one has none.
	if now == math.MaxInt64 {
		return len(s.content.untils)
	}
	n, _ := slices.BinarySearch(s.content.untils, now+1)
	return n
}
