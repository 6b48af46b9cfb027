package spoa

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/sluice-qos/sluice/internal/bus"
	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testLimits = `version: 1
default_tier: free
tiers:
  free: {requests: {GET: 4, "*": 6}}
  wide: {requests: {GET: 1000}}
  staff: {}
users: {wilma: wide, staff: staff}
`

var alice = ratelimit.Key{Class: "GET", User: "alice"}

// rig is an agent on a fake pool. Its tests run in synctest bubbles, in which
// the time begins with a whole second.
type rig struct {
	*Agent
	t        *testing.T
	registry *prometheus.Registry
	pool     *pool
	natives  []ratelimit.Native // see told; limiter.mu guards it
	stop     func()             // ends the exchange, and waits for its end
}

func newRig(t *testing.T, change func(*Options)) *rig {
	t.Helper()
	b, err := bus.Open(bus.Options{Addresses: []string{"127.0.0.1:1"}}) // never called
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	o := Options{Instance: "a", Bus: b, SPOE: "unix:none", Peers: "unix:none", Registerer: prometheus.NewPedanticRegistry()}
	if change != nil {
		change(&o)
	}
	a, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{Agent: a, t: t, registry: o.Registerer.(*prometheus.Registry), pool: &pool{totals: map[place]int{}}}
	a.exchange.take = r.pool.take
	a.limiter.native = func(n ratelimit.Native) {
		r.natives = append(r.natives, n)
		a.teach(n)
	}
	a.limiter.set.Store(parse(t, testLimits))
	return r
}

// run starts the exchange.
func (r *rig) run() *rig {
	ctx, cancel := context.WithCancel(r.t.Context())
	done := make(chan error, 1)
	go func() { done <- r.exchange.run(ctx) }()
	r.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			r.t.Errorf("exchange.run() = %v, want nil", err)
		}
	})
	r.t.Cleanup(r.stop)
	return r
}

// told is what HAProxy was told, in that order.
func (r *rig) told() []ratelimit.Native {
	r.limiter.mu.Lock()
	defer r.limiter.mu.Unlock()
	return slices.Clone(r.natives)
}

// want asks for a verdict and checks it, and how long it took.
func (r *rig) want(user, class string, allowed bool, took time.Duration) {
	r.t.Helper()
	began := time.Now()
	v := r.verdict(user, class)
	if v.Allowed != allowed || time.Since(began) != took {
		r.t.Errorf("verdict(%s, %s) at %s = %+v after %v, want allowed %v after %v",
			user, class, began.Format("05.000"), v, time.Since(began), allowed, took)
	}
}

func parse(t testing.TB, text string) *limits.Set {
	t.Helper()
	set, err := limits.Parse("limits", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// pool is Redis as the exchange knows it: ratelimit.Take, after a while.
type pool struct {
	mu     sync.Mutex
	totals map[place]int
	delay  time.Duration
	err    error
	calls  int
}

type place struct {
	key    ratelimit.Key
	second int64
}

func (p *pool) take(ctx context.Context, _ string, asks []ratelimit.Ask) (bus.Taken, error) {
	p.mu.Lock()
	delay, err := p.delay, p.err
	p.calls++
	p.mu.Unlock()
	select {
	case <-time.After(delay):
	case <-ctx.Done():
		return bus.Taken{}, ctx.Err()
	}
	if err != nil {
		return bus.Taken{}, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	taken := bus.Taken{Now: time.Now()}
	for _, ask := range asks {
		at := place{ask.Key, ask.Second}
		g := ratelimit.Take(p.totals[at], ask)
		p.totals[at] = g.Total
		taken.Grants = append(taken.Grants, g)
	}
	return taken, nil
}

var errAway = errors.New("connection refused")

// set changes how the pool answers from now on.
func (p *pool) set(delay time.Duration, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay, p.err = delay, err
}

// total is what is counted of a key in the present second.
func (p *pool) total(k ratelimit.Key) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.totals[place{k, time.Now().Unix()}]
}

// fill makes it that other agents have taken so many tokens of the present second.
func (p *pool) fill(k ratelimit.Key, total int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.totals[place{k, time.Now().Unix()}] = total
}

// asked is how often the pool was.
func (p *pool) asked() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.calls
}
