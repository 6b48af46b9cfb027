package agent

import (
	"context"
	"errors"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/sluice-qos/sluice/internal/agent/peers"
	"github.com/sluice-qos/sluice/internal/redisbus"
	"github.com/sluice-qos/sluice/pkg/bandwidth"
	"github.com/sluice-qos/sluice/pkg/cause"
	"github.com/sluice-qos/sluice/pkg/concurrency"
	"github.com/sluice-qos/sluice/pkg/cost"
	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/limits/limitfile"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

// TestMain overlooks the one goroutine that outlives a pool of connections to a Redis
// that was not there: it sees within a second that the pool is closed.
func TestMain(m *testing.M) {
	if address := os.Getenv(workerVariable); address != "" {
		beWorker(address)
		return
	}
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}

const testLimits = `version: 1
default_tier: free
tiers:
  free: {requests: {GET: 4, "*": 6}}
  wide: {requests: {GET: 1000}}
  staff: {}
users: {wilma: wide, staff: staff}
`

// slotLimits are limits of requests in progress.
const slotLimits = `version: 1
default_tier: free
tiers:
  free: {concurrent: 2}
  both: {requests: {GET: 3}, concurrent: 2}
  rate: {requests: {GET: 4}}
  wide: {concurrent: 8}
  patient: {requests: {GET: 3}, concurrent: 1, over_limit: {concurrent: wait 2s}}
  first: {concurrent: 1, over_limit: {concurrent: wait 2s}, priority: -5}
  staff: {}
  lister: {requests: {LIST: {minute: 1}}}
classes: {LIST: {query: [list]}}
users: {both: both, rate: rate, rita: rate, wide: wide, patient: patient, first: first, staff: staff, lister: lister}
`

var alice = ratelimit.Key{Class: "GET", User: "alice"}

// decideNow decides a question by the limits in force.
func (l *limiter) decideNow(q question) verdict {
	set := l.inForce.set.Load()
	return l.decide(set, q, set.User(q.user))
}

// rig is an agent on a fake pool. Its tests run in synctest bubbles, in which
// the time begins with a whole second.
type rig struct {
	*Agent
	t        *testing.T
	registry *prometheus.Registry
	pool     *pool
	taught   map[string]peers.Values  // HAProxy's tables, by table and key; limiter.mu guards it
	row      peers.Values             // of the table of credit, as last taught; limiter.mu guards it
	denied   map[string]peers.Values  // the other rows, by class; limiter.mu guards them
	natives  []ratelimit.TableEntry   // see told; limiter.mu guards it
	blocks   []concurrency.TableEntry // see toldOfBlocks; limiter.mu guards it
	shares   []bandwidth.TableEntry   // see toldOfShares; limiter.mu guards it
	stop     func()                   // ends the exchange, and waits for its end
}

func newRig(t *testing.T, change func(*Options)) *rig {
	t.Helper()
	return newRigOn(t, newPool(), change)
}

// newSlotRig is an agent with slotLimits.
func newSlotRig(t *testing.T, change func(*Options)) *rig {
	t.Helper()
	r := newRig(t, change)
	r.limiter.inForce.set.Store(parse(t, slotLimits))
	return r
}

// unreachable is a bus with so many shards, for who calls none of them.
func unreachable(t *testing.T, shards int) *redisbus.Bus {
	t.Helper()
	b, err := redisbus.Open(redisbus.Options{Addresses: []string{"127.0.0.1:1"}, Shards: shards})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}

// newRigOn is one of several agents on one pool.
func newRigOn(t *testing.T, p *pool, change func(*Options)) *rig {
	t.Helper()
	b := unreachable(t, 1)
	o := Options{Instance: "a", Bus: b, SPOE: "unix:none", Peers: "unix:none", Registerer: prometheus.NewPedanticRegistry()}
	if change != nil {
		change(&o)
	}
	a, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	a.serving.Store(true) // its tests ask it without a socket
	r := &rig{Agent: a, t: t, registry: o.Registerer.(*prometheus.Registry), pool: p, taught: map[string]peers.Values{}, denied: map[string]peers.Values{}}
	a.teach = func(table, key string, values peers.Values, ttl time.Duration) {
		if table == creditTable.Name {
			if key == creditRow {
				r.row = values
			} else {
				r.denied[key] = values
			}
			return
		}
		r.taught[table+" "+key] = values
		a.peers.Teach(table, key, values, ttl)
	}
	a.exchange.take = r.pool.take
	a.exchange.hold = r.pool.hold
	a.exchange.charge = r.pool.charge
	a.exchange.demand = r.pool.demand
	a.limiter.tables.throttle = func(n ratelimit.TableEntry) {
		r.natives = append(r.natives, n)
		a.teachThrottle(n)
	}
	a.limiter.tables.block = func(n concurrency.TableEntry) {
		r.blocks = append(r.blocks, n)
		a.teachBlock(n)
	}
	a.limiter.tables.share = func(e bandwidth.TableEntry) {
		r.shares = append(r.shares, e)
		a.teachShare(e)
	}
	a.limiter.inForce.set.Store(parse(t, testLimits))
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
func (r *rig) told() []ratelimit.TableEntry {
	r.limiter.mu.Lock()
	defer r.limiter.mu.Unlock()
	return slices.Clone(r.natives)
}

// toldOfBlocks is what HAProxy was told of its block table, in that order.
func (r *rig) toldOfBlocks() []concurrency.TableEntry {
	r.limiter.mu.Lock()
	defer r.limiter.mu.Unlock()
	return slices.Clone(r.blocks)
}

// toldOfShares is what HAProxy was told of its table of shares, in that order.
func (r *rig) toldOfShares() []bandwidth.TableEntry {
	r.limiter.mu.Lock()
	defer r.limiter.mu.Unlock()
	return slices.Clone(r.shares)
}

// progress plays HAProxy, which pushes what its table says of a user.
func (r *rig) progress(user string, tracked, active uint64) {
	r.learnProgress(peers.Update{Table: "/active", Key: user, Values: peers.Values{peers.HTTPReqCnt: tracked, peers.ConnCur: active}})
}

// inProgress is how many requests of a user the agent believes in progress.
func (r *rig) inProgress(user string) int {
	r.limiter.mu.Lock()
	defer r.limiter.mu.Unlock()
	return r.limiter.allCores()[0].slots.InProgress(user)
}

// waiting is how many requests wait for a slot, or for the pool of slots.
func (r *rig) waiting() int {
	r.limiter.mu.Lock()
	defer r.limiter.mu.Unlock()
	return len(r.limiter.forSlots)
}

// verdict leaves out when the window ends, which TestRetry looks at, and the cause, which
// TestVariables does: who is refused has one that the agent can have.
func (r *rig) verdict(q question) verdict {
	v := r.Agent.verdict(q)
	if v.allowed && v.cause != "" || !v.allowed && !slices.Contains(cause.Agent(), v.cause) {
		r.t.Errorf("verdict(%+v) has the cause %q, allowed: %v", q, v.cause, v.allowed)
	}
	v.retry, v.window, v.cause = 0, 0, ""
	return v
}

// ask asks for a verdict.
func (r *rig) ask(user, class string) verdict {
	return r.verdict(question{user: user, verb: class})
}

// want asks for a verdict and checks it, and how long it took.
func (r *rig) want(user, class string, allowed bool, took time.Duration) {
	r.t.Helper()
	began := time.Now()
	v := r.ask(user, class)
	if v.allowed != allowed || time.Since(began) != took {
		r.t.Errorf("verdict(%s, %s) at %s = %+v after %v, want allowed %v after %v",
			user, class, began.Format("05.000"), v, time.Since(began), allowed, took)
	}
}

func parse(t testing.TB, text string) *limits.Set {
	t.Helper()
	set, err := limitfile.Parse("limits", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// pool is Redis as the exchange knows it: ratelimit.Take and concurrency.Take,
// after a while.
type pool struct {
	mu       sync.Mutex
	batches  map[string]uint64 // the last of each instance
	totals   map[place]int
	accounts map[ratelimit.Key]ratelimit.Account
	slots    map[string]map[string]concurrency.Holding // by user and instance
	costs    cost.Pools
	called   map[string]cost.Call // the last one about costs of each instance
	tokens   answering
	holds    answering
	charges  answering
	bytes    answering
	counted  int // instances, as the last ask for slots said
	heard    []report
}

func newPool() *pool {
	return &pool{batches: map[string]uint64{}, totals: map[place]int{}, accounts: map[ratelimit.Key]ratelimit.Account{}, slots: map[string]map[string]concurrency.Holding{},
		costs: cost.Pools{}, called: map[string]cost.Call{}}
}

// report is what the pool was told of the bytes that are moved.
type report struct {
	bandwidth.Report
	from string    // the instance that called
	at   time.Time // when it was heard
}

// answering is how one of the pools answers.
type answering struct {
	delay time.Duration
	err   error
	calls int
}

// answer lets the delay of one of the pools pass.
func (p *pool) answer(ctx context.Context, of *answering) error {
	p.mu.Lock()
	delay, err := of.delay, of.err
	of.calls++
	p.mu.Unlock()
	select {
	case <-time.After(delay):
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

type place struct {
	key    ratelimit.Key
	second int64
}

func (p *pool) take(ctx context.Context, instance string, asks []ratelimit.Ask) (redisbus.Taken, error) {
	if err := p.answer(ctx, &p.tokens); err != nil {
		return redisbus.Taken{}, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	taken := redisbus.Taken{Now: time.Now()}
	again := asks[0].Seq > 0 && asks[0].Seq <= p.batches[instance]
	p.batches[instance] = max(p.batches[instance], asks[0].Seq)
	for _, ask := range asks {
		if again {
			ask = ask.Repeated()
		}
		var g ratelimit.Grant
		if at := (place{ask.Key, ask.WindowStart}); ask.Burst == 0 {
			total, ok := p.totals[at]
			if !ok {
				total = ask.Reserve
			}
			g = ratelimit.Take(total, ask)
			p.totals[at] = g.Total
		} else {
			p.accounts[ask.Key], g = p.accounts[ask.Key].Take(taken.Now, ask)
		}
		taken.Grants = append(taken.Grants, g)
	}
	return taken, nil
}

var errAway = errors.New("connection refused")

// set changes how the pools answer from now on.
func (p *pool) set(delay time.Duration, err error) {
	p.setTokens(delay, err)
	p.setSlots(delay, err)
	p.setBytes(delay, err)
	p.setCharges(delay, err)
}

func (p *pool) setCharges(delay time.Duration, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.charges.delay, p.charges.err = delay, err
}

func (p *pool) charge(ctx context.Context, instance string, asks []cost.Ask) (redisbus.Charged, error) {
	if err := p.answer(ctx, &p.charges); err != nil {
		return redisbus.Charged{}, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	charged := redisbus.Charged{Now: time.Now()}
	charged.Grants, p.called[instance] = p.costs.Answer(p.called[instance], asks)
	return charged, nil
}

// spent is what was charged of a user's unit in the present window.
func (p *pool) spent(user string, of limits.Cost) int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.costs[cost.Pool{User: user, Unit: of.Unit, Window: of.Window, Start: of.WindowStart(time.Now().Unix())}].Charged
}

func (p *pool) setTokens(delay time.Duration, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tokens.delay, p.tokens.err = delay, err
}

func (p *pool) setSlots(delay time.Duration, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.holds.delay, p.holds.err = delay, err
}

func (p *pool) setBytes(delay time.Duration, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bytes.delay, p.bytes.err = delay, err
}

func (p *pool) demand(ctx context.Context, instance string, reports []bandwidth.Report) error {
	if err := p.answer(ctx, &p.bytes); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range reports {
		p.heard = append(p.heard, report{r, instance, time.Now()})
	}
	return nil
}

// reports are what was heard of a user's bytes, in that order.
func (p *pool) reports(user string) (heard []report) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range p.heard {
		if r.User == user {
			heard = append(heard, r)
		}
	}
	return heard
}

// reported is how often the pool was called with reports.
func (p *pool) reported() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.bytes.calls
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

// asked is how often the pool of tokens was.
func (p *pool) asked() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.tokens.calls
}

// askedForSlots is how often the pool of slots was.
func (p *pool) askedForSlots() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.holds.calls
}

func (p *pool) hold(ctx context.Context, instance string, instances int, asks []concurrency.Ask) (redisbus.Slotted, error) {
	if err := p.answer(ctx, &p.holds); err != nil {
		return redisbus.Slotted{}, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counted = instances
	slotted := redisbus.Slotted{Now: time.Now()}
	for _, ask := range asks {
		slotted.Grants = append(slotted.Grants, concurrency.Take(p.of(ask.User), instances, instance, ask))
	}
	return slotted, nil
}

// of is the pool of a user; p.mu is held.
func (p *pool) of(user string) map[string]concurrency.Holding {
	if p.slots[user] == nil {
		p.slots[user] = make(map[string]concurrency.Holding)
	}
	return p.slots[user]
}

// occupy makes it that an instance holds so many of a user's slots.
func (p *pool) occupy(user, instance string, held int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.of(user)[instance] = concurrency.Holding{Held: held, Active: held, Seq: 1}
}

// held is how many of a user's slots an instance holds.
func (p *pool) held(user, instance string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.of(user)[instance].Held
}
