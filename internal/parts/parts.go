// Package parts divides the users among the polygens. Each user is in one of Count parts, and each
// part is leased to one polygen, which alone decides about its users. A Division is what one polygen knows
// of that. It is pure: it takes the time, and its caller carries what it asks to Redis, which keeps the leases.
//
// Two never decide about one part: a polygen decides until its lease's length after it *sent* what
// renewed it, and Redis ends the lease that long after it *heard* it. A part that is given back is not decided
// about any more when Redis hears of it. While Redis cannot be reached for a lease's length nobody decides. A Redis
// that has forgotten leases, emptied or failed over, may give them to others: then two decide for half a second, and
// say the same.
//
// Each polygen holds Count divided by the number of polygens at most, rounded up, and takes what is free below
// that. So one that joins, leaves or dies moves only its parts.
package parts

import (
	"math/bits"
	"slices"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// Count is how many parts there are, and so how many polygens can have work. All processes must agree, also of
// different versions: it may not change, nor may Of.
const Count = 64

// Of is the part of a user, given by wire key. At all endpoints a user is in one part. It takes other bits of the
// hash than shards and the parts of windows do.
func Of(key string) int {
	_, user := limits.SplitEndpoint(key)
	return int(xxhash.Sum64String(user) >> 48 % Count)
}

// A Set is a set of parts: bit n is part n. The zero value is empty.
type Set uint64

// All are all parts.
const All = ^Set(0)

// SetOf is the set of some parts. Numbers that no part has are left out.
func SetOf(numbers ...int) (s Set) {
	for _, n := range numbers {
		if n >= 0 && n < Count {
			s |= 1 << n
		}
	}
	return s
}

// Has reports whether a part is in the set.
func (s Set) Has(part int) bool { return s>>part&1 != 0 }

// HasUser reports whether the part of a user is in the set.
func (s Set) HasUser(user string) bool { return s.Has(Of(user)) }

// Len is how many parts are in the set.
func (s Set) Len() int { return bits.OnesCount64(uint64(s)) }

// Numbers are the parts in the set, in order.
func (s Set) Numbers() (numbers []int) {
	for rest := s; rest != 0; rest &= rest - 1 {
		numbers = append(numbers, bits.TrailingZeros64(uint64(rest)))
	}
	return numbers
}

// last are the n highest parts of the set.
func (s Set) last(n int) (last Set) {
	for range n {
		last |= 1 << (bits.Len64(uint64(s&^last)) - 1)
	}
	return last
}

// An Ask is what a polygen asks Redis for: to renew its leases, but for those that it gives back, and to lease
// it up to Take of the parts that are free.
type Ask struct {
	// Number grows with each Ask. Redis passes over one that is not above the last it heard: a late one would give
	// back what was taken again since.
	Number   int64
	GiveBack Set
	Take     int
}

// An Answer is what Redis says.
type Answer struct {
	Held     Set      // leased to who asked
	Free     int      // parts that are leased to nobody
	Polygens []string // that have asked lately, the one that asks among them
	Leader   string   // who leads the cluster; "" for nobody
}

// Division is what one polygen holds. New makes one. It is for one goroutine at a time.
type Division struct {
	lease  time.Duration
	number int64 // of the last Ask
	until  [Count]time.Time
	share  int // the most parts to hold
	giving Set // given back, and Redis has not confirmed that yet
	kept   Set
}

// New returns a Division that holds nothing, with leases of this length.
func New(lease time.Duration) *Division { return &Division{lease: lease, kept: All} }

// Kept are the parts that this polygen has to know of: those that it held by the last answer, whether it may still
// decide about them or not. It is all of them before the first answer, and beside a polygen that knows of
// no parts, whose place it may have to take.
func (d *Division) Kept() Set { return d.kept }

// Mine are the parts that this polygen decides about now.
func (d *Division) Mine(now time.Time) (mine Set) {
	for part, until := range d.until {
		if now.Before(until) {
			mine |= 1 << part
		}
	}
	return mine
}

// Ask is what to send to Redis now. What it gives back is not decided about any more.
func (d *Division) Ask(now time.Time) Ask {
	d.number++
	mine := d.Mine(now)
	more := mine.last(max(0, mine.Len()-d.share))
	for _, part := range more.Numbers() {
		d.until[part] = time.Time{}
	}
	d.giving |= more
	if d.share > 0 {
		d.kept &^= more
	}
	return Ask{Number: d.number, GiveBack: d.giving, Take: max(0, d.share-(mine&^more).Len())}
}

// Take takes the answer to the last Ask, which was sent at a time. It reports whether asking again at once would
// change something.
func (d *Division) Take(sent time.Time, a Answer) (again bool) {
	d.giving, d.kept = 0, a.Held
	for part := range d.until {
		d.until[part] = time.Time{}
		if a.Held.Has(part) {
			d.until[part] = sent.Add(d.lease)
		}
	}
	// A polygen of a version before leads without asking for parts, and decides about all users.
	if a.Leader != "" && !slices.Contains(a.Polygens, a.Leader) {
		d.share, d.kept = 0, All
		return a.Held != 0
	}
	polygens := max(1, len(a.Polygens))
	d.share = (Count + polygens - 1) / polygens
	held := a.Held.Len()
	return held > d.share || held < d.share && a.Free > 0
}

// Drop lets go of everything at once, and returns what to tell Redis.
func (d *Division) Drop() Ask {
	d.share, d.number = 0, d.number+1
	d.until = [Count]time.Time{}
	return Ask{Number: d.number, GiveBack: All}
}
