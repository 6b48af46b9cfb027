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

	limit int           // that refused it, in requests in progress; 0 if another did,
	rate  limits.Rate   // which is this one
	retry time.Duration // from now, its window ends
}

// decide answers one question. It returns at once unless the agent is out of
// what the cluster may still have, and then after the wait at most; in line, after
// the user's.
//
// A request needs a slot and a token of each limit. The slot comes first, for it
// can be given back. Limits in a dry run are asked last.
func (l *limiter) decide(q question) verdict { return l.decideOf(q, l.set.Load().User(q.user)) }

// decideOf is decide, for a user whose limits are known.
func (l *limiter) decideOf(q question, of *limits.Limits) verdict {
	if l.open.Load() {
		return verdict{allowed: true, priority: of.Priority}
	}
	var room [2 * limits.MaxRates]limits.Rate
	rates := of.AppendRates(room[:0:limits.MaxRates], q.verb, q.op)
	rates, dry := splitRates(rates, room[limits.MaxRates:])
	counted := of.Concurrent > 0 && of.ConcurrentMode == limits.Enforce
	if counted {
		if v := l.slot(q, of); !v.Allowed {
			if !q.inLine && of.Wait > 0 {
				return verdict{limit: v.Limit, wait: of.Wait}
			}
			return verdict{limit: v.Limit}
		}
	}
	if len(rates) > 0 {
		if v := l.token(q.user, rates); !v.Allowed {
			if counted {
				l.update(func(now time.Time) { l.slots.Cancel(now, q.user, q.seen.Process) })
			}
			return verdict{rate: v.Limit, retry: time.Unix(v.End(), 0).Sub(l.clock.Now())}
		}
	}
	rehearsed := l.rehearse(q, of, dry)
	v := verdict{allowed: true, priority: of.Priority, share: l.shareOf(q.user, of)}
	if q.log {
		v.spare = l.spareOf(q.user, of, rates, rehearsed)
	}
	return v
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
	delete(all, w)
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
