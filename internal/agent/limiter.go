package agent

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-qos/sluice/internal/daemon"
	"github.com/sluice-qos/sluice/pkg/bandwidth"
	"github.com/sluice-qos/sluice/pkg/concurrency"
	"github.com/sluice-qos/sluice/pkg/cost"
	"github.com/sluice-qos/sluice/pkg/credit"
	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

// limiter is the shell around the cores: a lock, the clock, and the requests
// that wait. What the cores have to say to others it hands on.
type limiter struct {
	clock     *daemon.Clock
	metrics   *metrics
	tables    nativeTables
	inForce   limitsInForce
	shards    []*shard
	divide    func(user string) int // the number of a user's shard
	bandwidth laneSignals           // of the lane of bytes
	over      chan struct{}         // closed when nobody may wait in line any more

	mu         sync.Mutex // of all that follows
	touched    []*shard   // whose cores may have something to say
	lost       lost
	bytes      *bandwidth.Agent
	forTokens  waiting[*ratelimit.Waiting]
	forSlots   waiting[*concurrency.Waiting]
	forCosts   waiting[*cost.Waiting]
	bodies     bodies
	throttles  throttles
	credits    credits
	unheard    unheard
	overflowed uint64 // requests uncounted, of which the metric knows
	postponed  uint64 // asks for slots that waited for a flush, of which the metric knows
	unsaid     uint64 // corrections that were dropped, of which the metric knows
}

// nativeTables are how entries of the cores get into HAProxy's tables. None may block:
// the limiter's lock is held, so that they arrive in the order in which they were decided.
type nativeTables struct {
	throttle func(ratelimit.TableEntry)
	block    func(concurrency.TableEntry)
	share    func(bandwidth.TableEntry)
}

// laneSignals wake a lane of the exchange. Each holds one token at most: a lane that
// works takes with it whatever comes up meanwhile, so that a second one says nothing more.
type laneSignals struct {
	urgent chan struct{} // the lane should not wait
	sooner chan struct{} // it should flush again although its core had nothing to do for a while
}

func newLaneSignals() laneSignals {
	return laneSignals{urgent: make(chan struct{}, 1), sooner: make(chan struct{}, 1)}
}

func (s laneSignals) passOn(urgent, sooner bool) {
	if urgent {
		notify(s.urgent)
	}
	if sooner {
		notify(s.sooner)
	}
}

// bodies is what is known of the bytes that HAProxy moves for users with a bandwidth limit.
type bodies struct {
	moved     movedBytes
	transfers transfers
}

// limitsInForce are the limits, and among how many instances they are divided. Both
// change without the limiter's lock; what depends on them in its state changes under it
// afterwards (Agent.force, Agent.takeInstances).
type limitsInForce struct {
	set       atomic.Pointer[limits.Set] // nil before any are known
	instances atomic.Int64               // this one included
}

// limitsOf is a user's limits, or none before any are known.
func (f *limitsInForce) limitsOf(user string) *limits.Limits {
	if set := f.set.Load(); set != nil {
		return set.User(user)
	}
	return &limits.Limits{}
}

func (f *limitsInForce) hasVersion(version string) bool {
	set := f.set.Load()
	return set != nil && set.Version() == version
}

func (f *limitsInForce) possible(key string, of *limits.Limits) bool {
	return credit.PossibleKey(key) && credit.Possible(of, int(f.instances.Load()))
}

// newLimiter divides users into shards, which must be as many as those of the bus.
func newLimiter(c *daemon.Clock, m *metrics, slots concurrency.Config, shards int, divide func(user string) int) *limiter {
	l := &limiter{
		clock:     c,
		metrics:   m,
		over:      make(chan struct{}),
		divide:    divide,
		bandwidth: newLaneSignals(),
		bytes:     bandwidth.NewAgent(bandwidth.Config{Instance: slots.Instance}),
		forTokens: make(waiting[*ratelimit.Waiting]),
		forSlots:  make(waiting[*concurrency.Waiting]),
		forCosts:  make(waiting[*cost.Waiting]),
		bodies:    bodies{moved: newMovedBytes(m.bytes), transfers: newTransfers()},
		throttles: newThrottles(),
		credits:   newCredits(),
		unheard:   newUnheard(),
	}
	// As the cores: until it has heard of others an agent is alone. With 0 a part of a limit would be no number.
	l.inForce.instances.Store(1)
	slots.Lookup = func(user string) (limit int, possible bool) {
		// Called by the core with the lock held; limits change without it, so the newest ones are looked up.
		set := l.inForce.set.Load()
		if set == nil {
			return 0, false
		}
		of := set.User(user)
		return of.Concurrent, l.inForce.possible(user, of)
	}
	l.shards = newShards(shards, slots)
	l.lost.shards = make([]bool, shards)
	return l
}

// update lets the cores take news, and carries out what follows.
func (l *limiter) update(news func(now time.Time)) {
	// One turn of the lock for both: HAProxy must be taught in the order in which the cores decide, or an entry
	// that was lifted could come after the lift and stay.
	l.mu.Lock()
	defer l.mu.Unlock()
	news(l.clock.Now())
	l.carryOut()
}

// carryOut does what the cores say; l.mu is held.
func (l *limiter) carryOut() {
	bytes := l.bytes.TakeOutput()
	for _, e := range bytes.TableEntries {
		l.tables.share(e)
	}
	l.bandwidth.passOn(bytes.Urgent, bytes.Sooner)
	// A withdrawal that lasts longer may have decided requests that wait: then its core is touched once more.
	for round := 0; round < 2 && len(l.touched) > 0; round++ {
		n := len(l.touched)
		for i := range n {
			s := l.touched[i]
			s.touched = false
			l.carryOutOf(s)
		}
		l.touched = slices.Delete(l.touched, 0, n)
	}
}

func (l *limiter) carryOutOf(s *shard) {
	tokens, slots, costs := s.tokens.TakeOutput(), s.slots.TakeOutput(), s.costs.TakeOutput()
	// Requests that wait come first: all that follows may take longer than to close a channel.
	for _, w := range tokens.Decided {
		l.forTokens.decided(w)
	}
	for _, w := range slots.Decided {
		l.forSlots.decided(w)
	}
	for _, w := range costs.Decided {
		l.forCosts.decided(w)
	}
	for _, n := range tokens.TableEntries {
		l.tables.throttle(n)
	}
	for _, n := range slots.TableEntries {
		l.tables.block(n)
	}
	for _, users := range [...][]string{tokens.Withdraw, slots.Withdraw} {
		for _, user := range users {
			// A user who has reached their portion will reach it again at once: they have none for a while.
			now := l.clock.Now()
			l.withdraw(now, user, now.Add(withoutCredit).Unix())
		}
	}
	for _, user := range slots.Withdraw {
		// Credit that was withdrawn for the rates: the slot core could not use that answer then, and hears it again.
		if w := l.credits.withdrawals[user]; w != nil && w.told > 0 {
			l.credits.polls[user] = l.clock.Now()
			notify(l.credits.wake)
		}
	}
	s.lanes.tokens.passOn(tokens.Urgent, tokens.Sooner)
	s.lanes.slots.passOn(slots.Urgent, slots.Sooner)
	s.lanes.costs.passOn(costs.Urgent, costs.Sooner)
}

func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	// The token that is there was not taken yet: whoever takes it sees this news too.
	default:
	}
}

func (l *limiter) shareOf(user string, of *limits.Limits) [2]int64 {
	limit := bandwidthOf(of)
	// Without the lock, which most users need not have.
	if !limit.Limited() {
		return [2]int64{}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	share := l.bytes.Start(l.clock.Now(), user, limit)
	l.carryOut()
	return share
}

func bandwidthOf(of *limits.Limits) (l bandwidth.Limit) {
	b := of.Bandwidth
	l.Bytes = [2]int64{bandwidth.Down: b.Down, bandwidth.Up: b.Up}
	for _, d := range bandwidth.Directions {
		// A direction without a limit must not get a default share: that would be a limit.
		if l.Bytes[d] > 0 {
			l.Default[d] = b.DefaultShare
		}
	}
	return l
}
