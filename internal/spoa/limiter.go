package spoa

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-qos/sluice/internal/clock"
	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

// limiter is the shell around the rate-limit core: a lock, the clock, and the
// requests that wait. What the core has to say to others it hands on.
type limiter struct {
	clock   *clock.Clock
	metrics *metrics
	native  func(ratelimit.Native) // into HAProxy's table; must not block
	urgent  chan struct{}          // holds one token when the exchange should not wait

	set  atomic.Pointer[limits.Set] // the limits in force
	wait atomic.Int64               // how long a request may wait, ns
	open atomic.Bool                // the bus is lost and requests are not to be limited

	mu      sync.Mutex
	core    *ratelimit.Agent
	waiting map[*ratelimit.Waiting]chan struct{}
}

func newLimiter(c *clock.Clock, m *metrics, native func(ratelimit.Native)) *limiter {
	l := &limiter{
		clock:   c,
		metrics: m,
		native:  native,
		urgent:  make(chan struct{}, 1),
		core:    ratelimit.NewAgent(ratelimit.Config{}),
		waiting: make(map[*ratelimit.Waiting]chan struct{}),
	}
	l.wait.Store(int64(minWait))
	return l
}

// decide answers one request start. It returns at once unless the agent is out
// of tokens that the cluster may still have, and then after the wait at most.
func (l *limiter) decide(user, class string) ratelimit.Verdict {
	rates := l.set.Load().User(user).Rates(class)
	if len(rates) == 0 || l.open.Load() {
		return ratelimit.Verdict{Allowed: true}
	}
	var done chan struct{}
	l.mu.Lock()
	v, w := l.core.Start(l.clock.Now(), user, rates)
	if w != nil {
		done = make(chan struct{})
		l.waiting[w] = done
	}
	l.act()
	l.mu.Unlock()
	if w == nil {
		return v
	}

	start := time.Now()
	defer func() { l.metrics.waits.Observe(time.Since(start).Seconds()) }()
	timer := time.NewTimer(time.Duration(l.wait.Load()))
	defer timer.Stop()
	select {
	case <-done:
		return w.Verdict
	case <-timer.C:
	}
	l.metrics.timeouts.Inc()
	l.mu.Lock()
	defer l.mu.Unlock()
	v = l.core.Timeout(l.clock.Now(), w)
	delete(l.waiting, w)
	l.act()
	return v
}

// update lets the core take news, and acts on what follows from them.
func (l *limiter) update(news func(core *ratelimit.Agent, now time.Time)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	news(l.core, l.clock.Now())
	l.act()
}

// act does what the core says; l.mu is held, so that it happens in order.
func (l *limiter) act() {
	out := l.core.Drain()
	for _, w := range out.Decided {
		if done, ok := l.waiting[w]; ok {
			delete(l.waiting, w)
			close(done)
		}
	}
	for _, n := range out.Native {
		l.native(n)
	}
	if out.Urgent {
		select {
		case l.urgent <- struct{}{}:
		default:
		}
	}
}

// roundTrips remembers how long the pool took to answer.
type roundTrips struct {
	last [31]time.Duration
	n    int
}

func (r *roundTrips) add(d time.Duration) {
	r.last[r.n%len(r.last)] = d
	r.n++
}

// median is 0 when nothing was measured yet.
func (r *roundTrips) median() time.Duration {
	n := min(r.n, len(r.last))
	if n == 0 {
		return 0
	}
	sorted := r.last
	slices.Sort(sorted[:n])
	return sorted[n/2]
}
