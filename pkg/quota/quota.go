// Package quota bounds how many names of a client's own invention have anything
// counted for them alone.
//
// A name that is not written down anywhere costs nothing to make up, and each name
// that is counted takes memory in the agent, in Redis, in polygen and in HAProxy's
// tables. The first ones up to a quota have counts of their own and keep them while
// they come back; all others are to be counted together. So users who were there before
// a flood of names are not affected by it, and new ones share one limit until it is over.
//
// The package is pure: the time is an argument. What it does not do is find out who
// is honest.
package quota

import (
	"hash/maphash"
	"time"
)

// Names remembers which names have counts of their own. It is not safe for
// concurrent use.
type Names struct {
	most int
	span time.Duration

	// Hashes of names, for names may be long. They are seeded, so nobody can look for
	// two names with one hash; should two have one by chance, the second of them has
	// counts of its own beyond the quota.
	seed maphash.Seed

	// What was not used since the last turn is in old, which the next turn drops as a
	// whole: no walk through all of them holds up a request.
	young, old map[uint64]struct{}
	turned     time.Time
}

// New returns a Names that knows of none. At most so many have counts of their own at
// a time; each is remembered for the span after its last use at least, and for twice
// that at most. So within any n spans at most (n+2)·most names begin to have counts.
func New(most int, span time.Duration) *Names {
	return &Names{most: most, span: span, seed: maphash.MakeSeed(), young: make(map[uint64]struct{})}
}

// Own reports whether a name has counts of its own, which it has from now on if there
// is room.
func (n *Names) Own(at time.Time, name string) bool {
	n.dropUnused(at)
	h := maphash.String(n.seed, name)
	if _, ok := n.young[h]; ok {
		return true
	}
	if _, ok := n.old[h]; ok {
		delete(n.old, h)
	} else if n.Len() >= n.most {
		return false
	}
	n.young[h] = struct{}{}
	return true
}

// dropUnused forgets what was not used for a span.
func (n *Names) dropUnused(now time.Time) {
	since := now.Sub(n.turned)
	if since >= 0 && since < n.span {
		return
	}
	n.old, n.young, n.turned = n.young, make(map[uint64]struct{}), now
	if since >= 2*n.span {
		n.old = nil
	}
}

// Len is the number of names that have counts of their own.
func (n *Names) Len() int { return len(n.young) + len(n.old) }
