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
// that. So one that joins, leaves or dies moves only its parts. Which ones it takes and gives back it chooses so that they
// lie in few of Redis' shards: it hears what is reported of all users of these.
package parts

import (
	"math/bits"
	"sync"
	"time"
)

// Count is how many parts there are, and so how many polygens can have work. All processes must agree: it may not change.
const Count = 64

// A Set is a set of parts: bit n is part n. The zero value is empty.
type Set uint64

// All are all parts.
const All = ^Set(0)

// SetOf is the set of some parts. Numbers that no part has are left out.
func SetOf(numbers ...int) (s Set) {
	for _, n := range numbers {
		// Redis and other polygens say them, and a shift by less than 0 panics.
		if n >= 0 && n < Count {
			s |= 1 << n
		}
	}
	return s
}

// Has reports whether a part is in the set.
func (s Set) Has(part int) bool { return s>>part&1 != 0 }

// Len is how many parts are in the set.
func (s Set) Len() int { return bits.OnesCount64(uint64(s)) }

// Numbers are the parts in the set, in order.
func (s Set) Numbers() (numbers []int) {
	for rest := s; rest != 0; rest &= rest - 1 {
		numbers = append(numbers, bits.TrailingZeros64(uint64(rest)))
	}
	return numbers
}

// An Ask is what a polygen asks Redis for: to renew its leases, but for those that it gives back, and to lease
// it up to Take of the parts that are free.
type Ask struct {
	// Number grows with each Ask. Redis passes over one that is not above the last it heard: a late one would give
	// back what was taken again since.
	Number   int64
	GiveBack Set
	Take     int
	Wanted   []int // parts, in the order in which they are taken, as far as they are free
}

// An Answer is what Redis says.
type Answer struct {
	Held     Set      // leased to who asked
	Free     Set      // leased to nobody
	Polygens []string // that have asked lately, the one that asks among them
	Leader   string   // who leads the cluster; "" for nobody
}

// Division is what one polygen holds. New makes one. It is safe for concurrent use: who decides looks at it while who
// renews the leases changes it.
type Division struct {
	lease  time.Duration
	shards Shards

	mu     sync.Mutex
	number int64 // of the last Ask
	until  [Count]time.Time
	share  int // the most parts to hold; 0 before the first answer
	giving Set // given back, and Redis has not confirmed that yet
	known  Set
	free   Set // by the last answer
}

// New returns a Division that holds nothing, with leases of this length.
func New(lease time.Duration, shards Shards) *Division {
	return &Division{lease: lease, shards: shards, known: All}
}

// KnownParts are the parts that this polygen has to know of: those that it held by the last answer, whether it may still
// decide about them or not. It is all of them before the first answer.
func (d *Division) KnownParts() Set {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.known
}

// HeardShards are the shards whose reports this polygen has to hear, sorted: those of the parts that it held by the last
// answer. They are none before that, for most of them are others'.
func (d *Division) HeardShards() []int {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.share == 0 {
		return nil
	}
	return d.shards.Of(d.known)
}

// DecidedParts are the parts that this polygen decides about now.
func (d *Division) DecidedParts(now time.Time) Set {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.decided(now)
}

func (d *Division) decided(now time.Time) (mine Set) {
	for part, until := range d.until {
		if now.Before(until) {
			mine |= 1 << part
		}
	}
	return mine
}

// NextAsk is what to send to Redis now. What it gives back is not decided about any more.
func (d *Division) NextAsk(now time.Time) Ask {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.number++
	mine := d.decided(now)
	more := d.shards.toGiveBack(mine, max(0, mine.Len()-d.share))
	// Before the message goes out: another polygen may decide as soon as Redis has it.
	for _, part := range more.Numbers() {
		d.until[part] = time.Time{}
	}
	// Again with each Ask until an answer comes, for this one may be lost.
	d.giving |= more
	d.known &^= more
	// The first Ask takes nothing: how many others there are only the answer says, and what this one took
	// beyond its share would change hands twice.
	ask := Ask{Number: d.number, GiveBack: d.giving, Take: max(0, d.share-(mine&^more).Len())}
	if ask.Take > 0 {
		ask.Wanted = d.shards.byPreference(mine&^more, d.free&^more)
	}
	return ask
}

// TakeAnswer takes the answer to the last Ask, which was sent at a time. It reports whether asking again at once would
// change something.
func (d *Division) TakeAnswer(sent time.Time, a Answer) (again bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.giving, d.known, d.free = 0, a.Held, a.Free
	for part := range d.until {
		d.until[part] = time.Time{}
		// From when it was sent, not from now: Redis counts from when it heard it, which is between the two.
		if a.Held.Has(part) {
			d.until[part] = sent.Add(d.lease)
		}
	}
	polygens := max(1, len(a.Polygens))
	// Rounded up, or some parts would be nobody's.
	d.share = (Count + polygens - 1) / polygens
	held := a.Held.Len()
	return held > d.share || held < d.share && a.Free != 0
}

// DropAll lets go of everything at once, and returns what to tell Redis.
func (d *Division) DropAll() Ask {
	d.mu.Lock()
	defer d.mu.Unlock()
	// Before Redis hears of it, and should it never: others may decide as soon as it does.
	d.share, d.number = 0, d.number+1
	d.until = [Count]time.Time{}
	return Ask{Number: d.number, GiveBack: All}
}
