package spoa

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-qos/sluice/internal/clock"
	"github.com/sluice-qos/sluice/pkg/bandwidth"
	"github.com/sluice-qos/sluice/pkg/concurrency"
	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

// limiter is the shell around the three cores: a lock, the clock, and the requests
// that wait. What the cores have to say to others it hands on.
type limiter struct {
	clock   *clock.Clock
	metrics *metrics
	// Into HAProxy's tables; must not block.
	throttle func(ratelimit.Native)
	block    func(concurrency.Native)
	share    func(bandwidth.Entry)
	// Each holds one token when its lane of the exchange should not wait.
	tokensUrgent, slotsUrgent, bytesUrgent chan struct{}

	set  atomic.Pointer[limits.Set] // the limits in force
	wait atomic.Int64               // how long a request may wait for Redis, ns
	open atomic.Bool                // the bus is lost and requests are not to be limited
	over chan struct{}              // closed when nobody may wait in line any more

	mu         sync.Mutex
	tokens     *ratelimit.Agent
	slots      *concurrency.Agent
	bytes      *bandwidth.Agent
	forTokens  waiting[*ratelimit.Waiting]
	forSlots   waiting[*concurrency.Waiting]
	dryBytes   byteDryRuns
	moved      movedBytes
	throttles  throttles
	transfers  transfers
	overflowed uint64 // requests uncounted, of which the metric knows
}

// waiting are the requests that wait for one of the cores; a channel is closed
// when its request is decided.
type waiting[W comparable] map[W]chan struct{}

func (m waiting[W]) add(w W) <-chan struct{} {
	done := make(chan struct{})
	m[w] = done
	return done
}

func (m waiting[W]) decided(w W) {
	if done, ok := m[w]; ok {
		delete(m, w)
		close(done)
	}
}

// remove takes out a request that is not decided yet, and reports whether it was there.
func (m waiting[W]) remove(w W) bool {
	_, open := m[w]
	delete(m, w)
	return open
}

func newLimiter(c *clock.Clock, m *metrics, slots concurrency.Config) *limiter {
	l := &limiter{
		clock:        c,
		metrics:      m,
		throttle:     func(ratelimit.Native) {},
		block:        func(concurrency.Native) {},
		share:        func(bandwidth.Entry) {},
		tokensUrgent: make(chan struct{}, 1),
		slotsUrgent:  make(chan struct{}, 1),
		bytesUrgent:  make(chan struct{}, 1),
		over:         make(chan struct{}),
		tokens:       ratelimit.NewAgent(ratelimit.Config{}),
		slots:        concurrency.NewAgent(slots),
		bytes:        bandwidth.NewAgent(bandwidth.Config{Instance: slots.Instance}),
		forTokens:    make(waiting[*ratelimit.Waiting]),
		forSlots:     make(waiting[*concurrency.Waiting]),
		dryBytes:     newByteDryRuns(),
		moved:        newMovedBytes(m.bytes),
		throttles:    newThrottles(),
		transfers:    newTransfers(),
	}
	l.wait.Store(int64(minWait))
	return l
}

// question is what HAProxy asks about one request start.
type question struct {
	user     string            // his key, with the endpoint's name in front if there is one
	verb, op string            // the method's class, and the operation class, "" if there is none
	seen     concurrency.Count // what HAProxy's table says of the user
	inLine   bool              // it has been told to wait for a slot
	log      bool              // the access log wants to know what is left
}

// verdict is the answer to a question.
type verdict struct {
	allowed  bool
	priority int           // of an allowed request: HAProxy's priority class
	share    [2]int64      // of an allowed request, by direction: bytes per second; 0: not limited
	spare    *spare        // of an allowed request, if the access log wants to know
	wait     time.Duration // not yet: ask again in line, which may take so long

	others string // the key that the user shares with others; "" if they have their own

	limit int           // that refused it, in requests in progress; 0 if another did,
	rate  limits.Rate   // which is this one
	retry time.Duration // from now, its window ends
}

// decide answers one question. It returns at once unless the agent is out of
// what the cluster may still have, and then after the wait at most; in line, after
// the user's.
//
// A request needs a slot and a token of each limit: all of them or none. Limits in a
// dry run are asked last.
func (l *limiter) decide(q question) verdict { return l.decideOf(q, l.set.Load().User(q.user)) }

// decideOf is decide, for a user whose limits are known.
func (l *limiter) decideOf(q question, of *limits.Limits) verdict {
	if l.open.Load() {
		return verdict{allowed: true, priority: of.Priority}
	}
	var room [2 * limits.MaxRates]limits.Rate
	rates := of.AppendRates(room[:0:limits.MaxRates], q.verb, q.op)
	rates, dry := splitRates(rates, room[limits.MaxRates:])
	if refused, by := l.enforce(q, of, rates); by {
		return refused
	}
	rehearsed := l.rehearse(q, of, dry)
	v := verdict{allowed: true, priority: of.Priority, share: l.shareOf(q.user, of)}
	if q.log {
		v.spare = l.spareOf(q.user, of, rates, rehearsed)
	}
	return v
}

// enforce takes what the request needs, or reports how it is refused.
func (l *limiter) enforce(q question, of *limits.Limits, rates []limits.Rate) (refused verdict, by bool) {
	counted := of.Concurrent > 0 && of.ConcurrentMode == limits.Enforce
	slot, token := concurrency.Verdict{Allowed: true}, ratelimit.Verdict{Allowed: true}
	switch {
	case counted && len(rates) > 0 && !q.inLine:
		slot, token = l.slotAndToken(q, of, rates)
	case counted:
		slot = l.slot(q, of)
		if slot.Allowed && len(rates) > 0 {
			// It waited in line for longer than a second may last: a token taken before
			// would be of another second.
			if token = l.token(q.user, rates); !token.Allowed {
				l.update(func(now time.Time) { l.slots.Cancel(now, q.user, q.seen.Process) })
			}
		}
	case len(rates) > 0:
		token = l.token(q.user, rates)
	}
	switch {
	case !slot.Allowed && !q.inLine && of.Wait > 0:
		return verdict{limit: slot.Limit, wait: of.Wait}, true
	case !slot.Allowed:
		return verdict{limit: slot.Limit}, true
	case !token.Allowed:
		return verdict{rate: token.Limit, retry: time.Unix(token.End(), 0).Sub(l.clock.Now())}, true
	}
	return verdict{}, false
}

// slotAndToken decides about a slot and about tokens. Both pools are asked at the same
// time, and the question has one deadline: two waits, one after the other, would be
// longer than HAProxy waits, which then lets the request pass. What was taken in vain
// is given back. One verdict at most is a refusal.
func (l *limiter) slotAndToken(q question, of *limits.Limits, rates []limits.Rate) (slot concurrency.Verdict, token ratelimit.Verdict) {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.act()
	slot, slotWaits := l.slots.Start(l.clock.Now(), q.user, of.Concurrent, q.seen)
	if slotWaits == nil && !slot.Allowed {
		return slot, ratelimit.Verdict{Allowed: true}
	}
	token, tokenWaits := l.tokens.Start(l.clock.Now(), q.user, rates)
	if (slotWaits != nil || tokenWaits != nil) && (token.Allowed || tokenWaits != nil) {
		var slotDone, tokenDone <-chan struct{}
		if slotWaits != nil {
			slotDone = l.forSlots.add(slotWaits)
		}
		if tokenWaits != nil {
			tokenDone = l.forTokens.add(tokenWaits)
		}
		l.act()
		l.mu.Unlock()
		l.awaitBoth(slotWaits, slotDone, tokenWaits, tokenDone)
		l.mu.Lock()
		if slotWaits != nil && !l.forSlots.remove(slotWaits) {
			slot, slotWaits = slotWaits.Verdict, nil
		}
		if tokenWaits != nil && !l.forTokens.remove(tokenWaits) {
			token, tokenWaits = tokenWaits.Verdict, nil
		}
	}
	return l.allOrNone(q, rates, slot, slotWaits, token, tokenWaits)
}

// awaitBoth waits until both are decided, or one of them refuses, or the question may
// wait no longer. A channel that is nil is of what is decided already.
func (l *limiter) awaitBoth(slot *concurrency.Waiting, slotDone <-chan struct{}, token *ratelimit.Waiting, tokenDone <-chan struct{}) {
	p := l.forRedis()
	began := time.Now()
	defer func() { p.waits.Observe(time.Since(began).Seconds()) }()
	timer := time.NewTimer(p.longest)
	defer timer.Stop()
	for slotDone != nil || tokenDone != nil {
		select {
		case <-slotDone:
			if !slot.Verdict.Allowed {
				return
			}
			slotDone = nil
		case <-tokenDone:
			if !token.Verdict.Allowed {
				return
			}
			tokenDone = nil
		case <-timer.C:
			p.timeouts.Inc()
			return
		}
	}
}

// allOrNone decides what is not decided yet, which waits no longer, and gives back what
// was taken in vain; l.mu is held. What still waits is not nil, its verdict not valid.
func (l *limiter) allOrNone(q question, rates []limits.Rate,
	slot concurrency.Verdict, slotWaits *concurrency.Waiting, token ratelimit.Verdict, tokenWaits *ratelimit.Waiting,
) (concurrency.Verdict, ratelimit.Verdict) {
	now := l.clock.Now()
	if slotWaits != nil && (tokenWaits != nil || token.Allowed) {
		slot, slotWaits = l.slots.Timeout(now, slotWaits), nil
	}
	if slotWaits == nil && !slot.Allowed {
		if tokenWaits != nil {
			l.tokens.Withdraw(now, tokenWaits)
		} else {
			l.tokens.Cancel(now, q.user, rates, token)
		}
		return slot, ratelimit.Verdict{Allowed: true}
	}
	if tokenWaits != nil {
		token = l.tokens.Timeout(now, tokenWaits)
	}
	switch {
	case token.Allowed:
	case slotWaits != nil:
		l.slots.Withdraw(now, slotWaits)
	default:
		l.slots.Cancel(now, q.user, q.seen.Process)
	}
	return concurrency.Verdict{Allowed: true}, token
}

// shareOf is this instance's share of the user's bandwidth.
func (l *limiter) shareOf(user string, of *limits.Limits) [2]int64 {
	limit := bandwidthOf(of)
	if !limit.Limited() {
		return [2]int64{}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	share := l.bytes.Start(l.clock.Now(), user, limit)
	l.act()
	if of.Bandwidth.Mode != limits.Enforce {
		return [2]int64{}
	}
	return share
}

// bandwidthOf is a user's limit as the core takes it.
func bandwidthOf(of *limits.Limits) (l bandwidth.Limit) {
	b := of.Bandwidth
	l.Bytes = [2]int64{bandwidth.Down: b.Down, bandwidth.Up: b.Up}
	l.DryRun = b.Mode != limits.Enforce
	for _, d := range bandwidth.Directions {
		if l.Bytes[d] > 0 {
			l.Default[d] = b.DefaultShare
		}
	}
	return l
}

// slot decides about a slot, when the pool has answered if it must be asked.
func (l *limiter) slot(q question, of *limits.Limits) concurrency.Verdict {
	v, wait := l.startSlot(q, of)
	if wait != nil {
		return wait()
	}
	return v
}

// startSlot decides about a slot at once, or returns how to wait for the verdict.
func (l *limiter) startSlot(q question, of *limits.Limits) (concurrency.Verdict, func() concurrency.Verdict) {
	start, p := l.slots.Start, l.forRedis()
	if q.inLine {
		start, p = l.slots.Hold, patience{longest: of.Wait, waits: l.metrics.inLine, over: l.over}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	v, w := start(l.clock.Now(), q.user, of.Concurrent, q.seen)
	if w == nil {
		l.act()
		return v, nil
	}
	done := l.forSlots.add(w)
	l.act()
	return v, func() concurrency.Verdict {
		if !await(l, l.forSlots, w, done, p) {
			l.update(func(now time.Time) { l.slots.Timeout(now, w) })
		}
		return w.Verdict
	}
}

// token decides about tokens, when the pool has answered if it must be asked.
func (l *limiter) token(user string, rates []limits.Rate) ratelimit.Verdict {
	v, wait := l.startToken(user, rates)
	if wait != nil {
		return wait()
	}
	return v
}

// startToken decides about tokens at once, or returns how to wait for the verdict.
func (l *limiter) startToken(user string, rates []limits.Rate) (ratelimit.Verdict, func() ratelimit.Verdict) {
	l.mu.Lock()
	defer l.mu.Unlock()
	v, w := l.tokens.Start(l.clock.Now(), user, rates)
	if w == nil {
		l.act()
		return v, nil
	}
	done := l.forTokens.add(w)
	l.act()
	return v, func() ratelimit.Verdict {
		if !await(l, l.forTokens, w, done, l.forRedis()) {
			l.update(func(now time.Time) { l.tokens.Timeout(now, w) })
		}
		return w.Verdict
	}
}

// patience is how a request waits.
type patience struct {
	longest  time.Duration
	waits    prometheus.Observer // of seconds
	timeouts prometheus.Counter  // nil: that it waited in vain is nothing special
	over     <-chan struct{}     // closed when nobody may wait any longer; nil: never
}

func (l *limiter) forRedis() patience {
	return patience{longest: time.Duration(l.wait.Load()), waits: l.metrics.waits, timeouts: l.metrics.timeouts}
}

// await waits for a request to be decided and reports whether it was.
func await[W comparable](l *limiter, all waiting[W], w W, done <-chan struct{}, p patience) bool {
	began := time.Now()
	defer func() { p.waits.Observe(time.Since(began).Seconds()) }()
	timer := time.NewTimer(p.longest)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-p.over:
	case <-timer.C:
		if p.timeouts != nil {
			p.timeouts.Inc()
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	all.remove(w)
	return false
}

// update lets the cores take news, and acts on what follows.
func (l *limiter) update(news func(now time.Time)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	news(l.clock.Now())
	l.act()
}

// act does what the cores say; l.mu is held, so that it happens in order.
func (l *limiter) act() {
	tokens, slots, bytes := l.tokens.Drain(), l.slots.Drain(), l.bytes.Drain()
	for _, w := range tokens.Decided {
		l.forTokens.decided(w)
	}
	for _, w := range slots.Decided {
		l.forSlots.decided(w)
	}
	for _, n := range tokens.Native {
		l.throttle(n)
	}
	for _, n := range slots.Native {
		l.block(n)
	}
	if tokens.Urgent {
		wake(l.tokensUrgent)
	}
	if slots.Urgent {
		wake(l.slotsUrgent)
	}
	for _, e := range bytes.Entries {
		l.share(e)
	}
	if bytes.Urgent {
		wake(l.bytesUrgent)
	}
}

func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
