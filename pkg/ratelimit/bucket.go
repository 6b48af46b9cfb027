package ratelimit

import (
	"time"

	"github.com/sluice-qos/sluice/pkg/internal/agenda"
	"github.com/sluice-qos/sluice/pkg/limits"
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
	slowestGap  = 320 * time.Millisecond // up to this,
	longGap     = time.Second            // or this, for windows longer than a second
	coolPortion = 4                      // a cool key's leases take up to 1/coolPortion of its limit
	longLease   = 4                      // or for windows longer than a second of a second's part of it, or so many if that is more
	selfHot     = 80                     // per cent of the limit at which a pooled key is hot without a hint
)

// RefuseFor is how long HAProxy may refuse a key by itself without hearing of it
// again, in windows longer than a second: its table forgets an entry after that.
// While there are requests of the key the agent repeats the TableEntry, so that what
// HAProxy lost, and what it should not believe any more, is right again by then.
const RefuseFor = 5 * time.Second

const (
	refuseAgain = time.Second             // at most this often
	refuseSpan  = RefuseFor + time.Second // for this long the agent waits for the next request
)

// bucket is what an agent knows of one key. Each of its concerns is a type of its own,
// with the invariant that it keeps.
type bucket struct {
	agenda.Place

	key   Key
	owner *user
	rate  limits.Rate // the limit that the key's requests count against
	early int64       // how much earlier than others it asks for the next window, ns

	window
	lease
	ledger
	shortage
	demand
	portion portion // what HAProxy may admit by itself of the limit

	listedToAsk    bool // stands in Agent.tokenRequests
	listedToReport bool // stands in Agent.toReport
}

// window is the present one of a key. All other counts of a bucket belong to it, but for
// those that say that they are of the following one.
type window struct {
	start    int64 // at which it begins
	ends     int64 // at which it is over, and the next one begins
	limit    int   // requests that may be admitted in it; with a burst, what the pool said of it
	admitted int   // requests admitted here
	total    int   // handed out by the pool to all agents, as last heard
}

// lease is what the agent has from the pool. A token is one request that the pool has
// counted already. It is in one place only: in hand, on its way back (ledger.back), or
// spent; so nobody else can admit the same request.
type lease struct {
	balance int  // tokens in hand
	next    int  // tokens in hand for the following window
	asking  bool // an ask for tokens is on its way: there is one at a time
	nextAsk bool // the following window has been asked for
}

// ledger is what was admitted without the pool, and what the pool has still to hear. Each
// request is reported once. owed <= unleased.
type ledger struct {
	unleased int // requests admitted here without a token
	owed     int // of these, not yet in the pool's total
	debt     int // requests to be reported: of these, and what HAProxy admitted beyond its portion
	back     int // tokens to be given back with the next flush
}

// shortage is what the agent knows of a window in which nothing is left. HAProxy refuses a
// key by itself only while the agent would refuse it too.
type shortage struct {
	spent    bool // the pool had less than was needed
	throttle bool // polygen, or the pool itself, says that the window is spent
	refusing bool // HAProxy refuses the key by itself

	unmet      int   // requests refused since the last probe
	probeAt    int64 // when the pool is asked again, ns
	probeGap   int64 // from one such ask to the next, ns
	refusingAt int64 // when HAProxy was last told to refuse the key, ns
}

type demand struct {
	arrivals arrivals
	waiting  int   // requests of the owner's queue that want a token
	hotUntil int64 // until when the key may run into its limit, ns
	sharers  int   // agents that serve the user, as polygen last said; 0 if it never did
}

// pooled reports whether the pool is asked by an agent that is alone, too: it may restart
// within a long window, and what a burst has left is remembered for longer than a user.
func (b *bucket) pooled() bool { return b.longWindow() || b.rate.Burst > 0 }

// hot reports whether the key may run into its limit, so that a lease must be
// small.
func (b *bucket) hot(now int64) bool { return now < b.hotUntil }

// cool reports whether the key is so far below its limit that a generous lease
// costs nobody anything.
// What is reserved for HAProxy is not: it was not used, or not here.
func (b *bucket) cool(now int64) bool {
	return !b.hot(now) && 2*b.handedOut() < b.limit-b.portion.reserve
}

// handedOut is the pool's total without what is reserved for HAProxy's credit, some of
// which may have come back.
func (b *bucket) handedOut() int { return max(0, b.total-b.portion.reserve) }

// target is the lease to hold: for a hot key what is expected in leaseSpan, for
// a cool one a fixed part of the limit, so that only its first request waits.
func (b *bucket) target(now int64, instances int) int {
	// A hot key's tokens are wanted elsewhere too, so no more are held than will be used.
	n := b.arrivals.expected(now, leaseSpan)
	if b.cool(now) {
		// All agents together then hold a quarter of the limit at most, whatever they do not use.
		part := coolPortion * max(1, instances)
		cool := b.rate.Max / part
		// What an agent that is killed holds is lost until the window ends.
		if b.longWindow() {
			cool = min(cool, max(longLease, cool/int(b.rate.Window.Seconds())))
		}
		n = max(n, cool)
	}
	return n
}

// reclaim keeps the tokens that were to go back with the next flush: nobody else can
// have them yet, and without them a request would be refused below the limit.
func (b *bucket) reclaim() { b.balance, b.back = b.balance+b.back, 0 }

func (b *bucket) longWindow() bool { return b.key.Window != limits.Second }

// end is when the window is over, ns.
func (b *bucket) end() int64 { return b.ends * second }

// emptyAsk makes an Ask of nothing yet, about a window that begins at a second.
func (a *Agent) emptyAsk(b *bucket, sec int64) Ask {
	return Ask{Key: b.key, WindowStart: sec, Limit: a.ceiling(b, sec), Burst: b.rate.Burst, Reserve: b.portion.reserve}
}

// ceiling is what all agents together may admit in the window that begins at a second, but for what a burst has left.
func (a *Agent) ceiling(b *bucket, sec int64) int {
	if b.pooled() {
		// What HAProxy admits without its agent is counted by the second.
		return b.rate.Max
	}
	return a.fleet.ceiling(b.rate.Max, sec)
}

type user struct {
	name    string
	buckets []*bucket  // one for each class and window seen: few
	queue   []*Waiting // in the order of arrival

	withdrawAt int64 // when HAProxy's credit was last to be withdrawn; 0: Recalled has come since
}

func (u *user) findBucket(class string, w limits.Window) *bucket {
	for _, b := range u.buckets {
		if b.key.Class == class && b.key.Window == w {
			return b
		}
	}
	return nil
}
