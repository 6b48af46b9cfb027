package ratelimit

import (
	"time"

	"github.com/sluice-qos/sluice/pkg/internal/agenda"
)

const (
	second = int64(time.Second)

	leaseSpan   = 40 * time.Millisecond  // a hot key's lease covers the arrivals of this span
	idleSpan    = 50 * time.Millisecond  // without a request for this long, a lease goes back
	hotSpan     = 2 * time.Second        // a key that was spent stays hot for this long
	nextLead    = 20 * time.Millisecond  // the next second is asked for at least this early,
	askSteps    = 16                     // and up to so many ticks earlier: not for all keys at once
	forgetSpan  = 3 * time.Second        // a key without requests for this long is forgotten
	firstProbe  = 10 * time.Millisecond  // a spent key is asked about again after this, doubling
	slowestGap  = 320 * time.Millisecond // up to this
	coolPortion = 4                      // a cool key's leases take up to 1/coolPortion of its limit
)

// bucket is what an agent knows of one key: its lease of the current second and
// of the next, and what it has still to report.
type bucket struct {
	agenda.Place

	key   Key
	owner *user
	limit int

	second   int64 // the cluster second that the fields below belong to
	admitted int   // requests admitted here
	unleased int   // of these, admitted without a token
	balance  int   // tokens in hand
	debt     int   // requests admitted without a token, not yet reported
	back     int   // tokens to be given back with the next flush
	total    int   // the pool's total when it was last heard of
	spent    bool  // the pool had less than was needed
	next     int   // tokens in hand for the following second
	nextAsk  bool  // the following second has been asked for

	probeAt  int64 // when a spent key is asked about again
	probeGap int64
	unmet    int  // requests refused since the last probe
	throttle bool // polygen says that the second is spent
	native   bool // HAProxy refuses the key by itself

	waiting int  // requests of the owner's queue that want a token
	asking  bool // an ask for tokens of the current second is on its way
	wanted  bool // stands in Agent.wanted
	dirty   bool // stands in Agent.dirty

	seen     arrivals
	early    int64 // how much earlier than others it asks for the next second, ns
	hotUntil int64
	sharers  int // agents that serve the user, as polygen last said; 0 if it never did
}

// hot reports whether the key may run into its limit, so that a lease must be
// small.
func (b *bucket) hot(now int64) bool { return now < b.hotUntil }

// cool reports whether the key is so far below its limit that a generous lease
// costs nobody anything.
func (b *bucket) cool(now int64) bool { return !b.hot(now) && 2*b.total < b.limit }

// target is the lease to hold: for a hot key what is expected in leaseSpan, for
// a cool one a fixed part of the limit, so that only its first request waits.
func (b *bucket) target(now int64, instances int) int {
	n := b.seen.expected(now, leaseSpan)
	if b.cool(now) {
		n = max(n, b.limit/(coolPortion*max(1, instances)))
	}
	return n
}

// user is what an agent knows of one user.
type user struct {
	name    string
	buckets []*bucket  // one for each class seen, and "*": few
	queue   []*Waiting // in the order of arrival
}

func (u *user) bucket(class string) *bucket {
	for _, b := range u.buckets {
		if b.key.Class == class {
			return b
		}
	}
	return nil
}
