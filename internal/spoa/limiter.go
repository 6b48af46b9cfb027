package spoa

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-qos/sluice/internal/clock"
	"github.com/sluice-qos/sluice/pkg/bandwidth"
	"github.com/sluice-qos/sluice/pkg/cause"
	"github.com/sluice-qos/sluice/pkg/concurrency"
	"github.com/sluice-qos/sluice/pkg/credit"
	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

// limiter is the shell around the three cores: a lock, the clock, and the requests
// that wait. What the cores have to say to others it hands on.
type limiter struct {
	clock   *clock.Clock
	metrics *metrics
	tables  nativeTables
	inForce limitsInForce
	redis   redisReach
	lanes   struct{ tokens, slots, bytes laneSignals }
	over    chan struct{} // closed when nobody may wait in line any more

	mu         sync.Mutex // of all that follows
	tokens     *ratelimit.Agent
	slots      *concurrency.Agent
	bytes      *bandwidth.Agent
	forTokens  waiting[*ratelimit.Waiting]
	forSlots   waiting[*concurrency.Waiting]
	bodies     bodies
	throttles  throttles
	credits    credits
	overflowed uint64 // requests uncounted, of which the metric knows
}

// nativeTables are how entries of the cores get into HAProxy's tables. None may block:
// the limiter's lock is held, so that they arrive in the order in which they were decided.
type nativeTables struct {
	throttle func(ratelimit.TableEntry)
	block    func(concurrency.TableEntry)
	share    func(bandwidth.TableEntry)
}

// redisReach is what a request must know of Redis. The agent's loss decides it; it is
// read without a lock, for every request looks at it.
type redisReach struct {
	wait atomic.Int64 // how long a request may wait for Redis, ns
	open atomic.Bool  // it is lost and requests are not to be limited
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

// wake passes on what a core said of its lane.
func (s laneSignals) wake(urgent, sooner bool) {
	if urgent {
		wake(s.urgent)
	}
	if sooner {
		wake(s.sooner)
	}
}

// bodies is what is known of the bytes that HAProxy moves for users with a bandwidth limit.
type bodies struct {
	moved     movedBytes
	dryBytes  byteDryRuns
	transfers transfers
}

// limitsInForce are the limits, and among how many instances they are divided. Both
// change without the limiter's lock; what depends on them in its state changes under it
// afterwards (Agent.force, Agent.takeInstances).
type limitsInForce struct {
	set       atomic.Pointer[limits.Set] // nil before any are known
	instances atomic.Int64               // this one included
}

// of is a user's limits, or none before any are known.
func (f *limitsInForce) of(user string) *limits.Limits {
	if set := f.set.Load(); set != nil {
		return set.User(user)
	}
	return &limits.Limits{}
}

// areOf reports whether the limits are those of a version.
func (f *limitsInForce) areOf(version string) bool {
	set := f.set.Load()
	return set != nil && set.Version() == version
}

// possible reports whether a user can have credit: not if some of their limits are
// counted over all endpoints together.
func (f *limitsInForce) possible(set *limits.Set, key string, of *limits.Limits) bool {
	return togetherOf(set, key).of == nil && f.possibleAlone(key, of)
}

// possibleAlone is possible of somebody who has no limits over all endpoints.
func (f *limitsInForce) possibleAlone(key string, of *limits.Limits) bool {
	return credit.PossibleKey(key) && credit.Possible(of, int(f.instances.Load()))
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
		clock:     c,
		metrics:   m,
		over:      make(chan struct{}),
		tokens:    ratelimit.NewAgent(ratelimit.Config{}),
		bytes:     bandwidth.NewAgent(bandwidth.Config{Instance: slots.Instance}),
		forTokens: make(waiting[*ratelimit.Waiting]),
		forSlots:  make(waiting[*concurrency.Waiting]),
		bodies:    bodies{moved: newMovedBytes(m.bytes), dryBytes: newByteDryRuns(), transfers: newTransfers()},
		throttles: newThrottles(),
		credits:   newCredits(),
	}
	l.lanes.tokens, l.lanes.slots, l.lanes.bytes = newLaneSignals(), newLaneSignals(), newLaneSignals()
	l.inForce.instances.Store(1)
	slots.Lookup = func(user string) (limit int, possible bool) {
		set := l.inForce.set.Load()
		if set == nil {
			return 0, false
		}
		of := set.User(user)
		return of.Concurrent, l.inForce.possible(set, user, of)
	}
	l.slots = concurrency.NewAgent(slots)
	l.redis.wait.Store(int64(minWait))
	return l
}

// question is what HAProxy asks about one request start.
type question struct {
	user     string            // their key, with the endpoint's name in front if there is one
	verb, op string            // the method's class, and the operation class, "" if there is none
	seen     concurrency.Count // what HAProxy's table says of the user
	inLine   bool              // it has been told to wait for a slot
	log      bool              // the access log wants to know what is left

	credit haproxyCredit
}

// haproxyCredit is what HAProxy has of the user's credit at that instant. The zero one is
// none, and no wish for any: so it is for a question that counts for another key than
// HAProxy's.
type haproxyCredit struct {
	classes string             // that HAProxy's configuration can keep limits of by itself; "" if it has no credit
	spent   bool               // HAProxy's own credit of this second did not suffice
	drawn   bool               // it did, and only a place is missing: the request has its tokens
	lapsed  uint32             // it has credit of another generation than this one, which it would renew, and that credit is over; 0: not so
	shares  bool               // its configuration keeps shares of bandwidth with credit
	places  concurrency.Places // what it may have in progress by itself
}

// verdict is the answer to a question.
type verdict struct {
	allowed  bool
	priority int           // of an allowed request: HAProxy's priority class
	share    [2]int64      // of an allowed request, by direction: bytes per second; 0: not limited
	spare    *spare        // of an allowed request, if the access log wants to know
	credit   *grant        // of an allowed request: what HAProxy may admit by itself from now on
	wait     time.Duration // not yet: ask again in line, which may take so long

	others string // the key that the user shares with others; "" if they have their own

	cause    cause.Cause   // of a refused request: who found that nothing is left
	limit    int           // that refused it, in requests in progress; 0 if another did,
	rate     limits.Rate   // which is this one
	together bool          // the rate is that of all endpoints together
	retry    time.Duration // from now, its window ends
}

// decide answers one question. It returns at once unless the agent is out of
// what the cluster may still have, and then after the wait at most; in line, after
// the user's.
//
// A request needs a slot and a token of each limit: all of them or none. Limits in a
// dry run are asked last.
func (l *limiter) decide(q question) verdict {
	set := l.inForce.set.Load()
	return l.decideOf(set, q, set.User(q.user), togetherOf(set, q.user))
}

// together is what a user is limited to at all endpoints and away from them. The zero
// together is no limit.
type together struct {
	key string // under which the user's requests are counted
	of  *limits.Limits
}

func togetherOf(set *limits.Set, user string) together {
	key, of, ok := set.Together(user)
	if !ok {
		return together{}
	}
	return together{key, of}
}

// rateName is the name of a limit for answers, the access log and metrics. One over all
// endpoints together is told from that of the endpoint: "@*/GET" from "GET".
func rateName(r limits.Rate, together bool) string {
	if together {
		return limits.EndpointKey(limits.All, r.Name())
	}
	return r.Name()
}

// decideOf is decide, for a user whose limits are known.
func (l *limiter) decideOf(set *limits.Set, q question, of *limits.Limits, all together) verdict {
	if l.redis.open.Load() {
		return verdict{allowed: true, priority: of.Priority}
	}
	var room [2 * limits.MaxRates]limits.Rate
	var rates, dry rates
	rates[own], dry[own] = splitRates(of.AppendRates(room[:0:limits.MaxRates], q.verb, q.op), room[limits.MaxRates:])
	if all.of != nil {
		var room [2 * limits.MaxRates]limits.Rate
		rates[whole], dry[whole] = splitRates(all.of.AppendRates(room[:0:limits.MaxRates], q.verb, q.op), room[limits.MaxRates:])
	}
	possible := all.of == nil && l.inForce.possibleAlone(q.user, of)
	if possible && q.credit.drawn {
		rates[own] = nil
	}
	n := needs{question: q}
	n.tokens[whole].key, n.tokens[own].key = all.key, q.user
	n.tokens[own].credit = q.credit.status(possible)
	if refused, by := l.enforce(&n, of, &rates); by {
		return refused
	}
	rehearsed := l.rehearse(&n, of, &dry)
	v := verdict{allowed: true, priority: of.Priority, share: l.shareOf(q.user, of)}
	if q.log {
		v.spare = l.spareOf(&n, of, &rates, rehearsed)
	}
	if possible {
		l.update(func(now time.Time) { v.credit = l.grant(now, q, of) })
	}
	return v
}

// needs are what a request needs to run: a slot, if they are limited, and the tokens of
// two keys at most. All of them or none are taken.
type needs struct {
	question

	slots     int                 // the limit of requests in progress; 0: no slot is needed
	patient   bool                // it may wait in line for one
	slot      concurrency.Verdict // allowed if none is needed; not valid while it waits
	slotWaits *concurrency.Waiting
	slotDone  <-chan struct{} // closed when it waits no longer; nil: it does not wait

	tokens [2]tokens
}

// The keys that a request counts for, in the order in which they are asked: HAProxy is
// taught when the limit of the request's own key is spent, and would be also for a token
// that is only taken to be given back.
const (
	whole = iota // over all endpoints together
	own
)

// rates are the limits of both keys. They are no part of needs: then they would be
// allocated for each request.
type rates [2][]limits.Rate

// tokens are one of each limit of a key, all of them or none.
type tokens struct {
	key    string
	credit ratelimit.Credit

	verdict ratelimit.Verdict // the zero one if nobody was asked; not valid while it waits
	waits   *ratelimit.Waiting
	done    <-chan struct{} // closed when it waits no longer; nil: it does not wait
}

// enforce takes what the request needs, or reports how it is refused.
func (l *limiter) enforce(n *needs, of *limits.Limits, rates *rates) (refused verdict, by bool) {
	n.slot.Allowed = true
	counted := of.Concurrent > 0 && of.ConcurrentMode == limits.Enforce
	switch {
	case counted && n.inLine:
		// It waits in line for longer than a second may last: tokens taken before would be
		// of another second.
		if n.slot = l.slot(n.question, of); n.slot.Allowed && !l.takeAll(n, rates) {
			l.update(func(now time.Time) { l.slots.Cancel(now, n.user, n.seen.Process) })
		}
	case counted:
		n.slots, n.patient = of.Concurrent, of.Wait > 0
		l.takeAll(n, rates)
	default:
		l.takeAll(n, rates)
	}
	if !n.slot.Allowed {
		v := verdict{cause: n.slot.Cause, limit: n.slot.Limit}
		if !n.inLine {
			v.wait = of.Wait
		}
		return v, true
	}
	if i := n.spent(); i >= 0 {
		v := n.tokens[i].verdict
		return verdict{cause: v.Cause, rate: v.Limit, together: i == whole, retry: time.Unix(v.End(), 0).Sub(l.clock.Now())}, true
	}
	return verdict{}, false
}

// spent is the first of the keys whose tokens are refused, or -1.
func (n *needs) spent() int {
	for i := range n.tokens {
		if t := &n.tokens[i]; t.waits == nil && !t.verdict.Allowed {
			return i
		}
	}
	return -1
}

// refused reports whether the request need not wait for anything more.
func (n *needs) refused() bool {
	return n.slotWaits == nil && !n.slot.Allowed || n.spent() >= 0
}

// takeAll takes all that the request needs, or nothing, and reports which. All pools are
// asked at the same time, and the question has one deadline: several waits, one after
// the other, would be longer than HAProxy waits, which then lets the request pass.
func (l *limiter) takeAll(n *needs, rates *rates) bool {
	if n.slots == 0 && len(rates[whole]) == 0 && len(rates[own]) == 0 {
		n.tokens[whole].verdict.Allowed, n.tokens[own].verdict.Allowed = true, true
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.act()
	if l.ask(n, rates); !n.refused() && l.mayWait(n) {
		l.act()
		l.mu.Unlock()
		l.awaitAll(n)
		l.mu.Lock()
		l.collect(n)
	}
	return l.allOrNone(n, rates)
}

// ask asks for each thing that the request needs, until one is refused; l.mu is held.
func (l *limiter) ask(n *needs, rates *rates) {
	now := l.clock.Now()
	if n.slots > 0 {
		l.knowDenied(now, n.question)
		n.slot, n.slotWaits = l.slots.Start(now, n.user, n.slots, n.seen, n.credit.places)
		if n.patient {
			l.slots.Patient(now, n.user)
		}
		if n.slotWaits == nil && !n.slot.Allowed {
			return
		}
	}
	for i := range n.tokens {
		t := &n.tokens[i]
		if w := l.credits.withdrawals[t.key]; w != nil && w.told == 0 && t.credit == ratelimit.Withheld {
			t.credit = ratelimit.Uncertain // nobody knows yet what was spent
		}
		if t.credit == ratelimit.Lapsed && (n.credit.lapsed != l.credits.generation || now.Unix() < l.seconds(time.Now())) {
			// HAProxy may yet be taught a generation between the one it spoke of and this agent's, and
			// renew credit of that one. Or credit may have been in force in the cluster's second.
			t.credit = ratelimit.Uncertain
		}
		if t.credit == ratelimit.Withheld && l.credits.mayBegin(now, t.key) {
			t.credit = ratelimit.Pending
		}
		t.verdict, t.waits = l.tokens.Start(now, t.key, rates[i], t.credit)
		if t.waits == nil && !t.verdict.Allowed {
			return
		}
	}
}

// mayWait prepares to wait for what is not decided, and reports whether anything is
// not; l.mu is held.
func (l *limiter) mayWait(n *needs) (any bool) {
	if n.slotWaits != nil {
		n.slotDone, any = l.forSlots.add(n.slotWaits), true
	}
	for i := range n.tokens {
		if t := &n.tokens[i]; t.waits != nil {
			t.done, any = l.forTokens.add(t.waits), true
		}
	}
	return any
}

// awaitAll waits until all is decided, or something is refused, or the question may
// wait no longer.
func (l *limiter) awaitAll(n *needs) {
	p := l.forRedis()
	began := time.Now()
	defer func() { p.waits.Observe(time.Since(began).Seconds()) }()
	timer := time.NewTimer(p.longest)
	defer timer.Stop()
	slot, both, single := n.slotDone, n.tokens[whole].done, n.tokens[own].done
	for slot != nil || both != nil || single != nil {
		allowed := true
		select {
		case <-slot:
			slot, allowed = nil, n.slotWaits.Verdict.Allowed
		case <-both:
			both, allowed = nil, n.tokens[whole].waits.Verdict.Allowed
		case <-single:
			single, allowed = nil, n.tokens[own].waits.Verdict.Allowed
		case <-timer.C:
			p.timeouts.Inc()
			return
		}
		if !allowed {
			return
		}
	}
}

// collect takes the verdicts of what was decided meanwhile; l.mu is held.
func (l *limiter) collect(n *needs) {
	if n.slotWaits != nil && !l.forSlots.remove(n.slotWaits) {
		n.slot, n.slotWaits = n.slotWaits.Verdict, nil
	}
	for i := range n.tokens {
		if t := &n.tokens[i]; t.waits != nil && !l.forTokens.remove(t.waits) {
			t.verdict, t.waits = t.waits.Verdict, nil
		}
	}
}

// allOrNone decides what is not decided yet, which waits no longer. If anything is
// refused it gives back what was taken in vain. It reports whether all was taken; l.mu
// is held.
func (l *limiter) allOrNone(n *needs, rates *rates) bool {
	now := l.clock.Now()
	if n.slotWaits != nil && !n.refused() {
		n.slot, n.slotWaits = l.slots.Timeout(now, n.slotWaits), nil
	}
	for i := range n.tokens {
		if t := &n.tokens[i]; t.waits != nil && !n.refused() {
			t.verdict, t.waits = l.tokens.Timeout(now, t.waits), nil
		}
	}
	if !n.refused() {
		return true
	}
	for i := range n.tokens {
		if t := &n.tokens[i]; t.waits != nil {
			l.tokens.Abandon(now, t.waits)
		} else {
			l.tokens.Cancel(now, t.key, rates[i], t.verdict)
		}
	}
	switch {
	case n.slotWaits != nil:
		l.slots.Abandon(now, n.slotWaits)
		n.slot.Allowed = true // it is not what refuses the request
	case n.slots > 0 && n.slot.Allowed:
		l.slots.Cancel(now, n.user, n.seen.Process)
	}
	return false
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
	l.knowDenied(l.clock.Now(), q)
	v, w := start(l.clock.Now(), q.user, of.Concurrent, q.seen, q.credit.places)
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

// startToken decides about tokens at once, or returns how to wait for the verdict.
func (l *limiter) startToken(user string, rates []limits.Rate) (ratelimit.Verdict, func() ratelimit.Verdict) {
	l.mu.Lock()
	defer l.mu.Unlock()
	v, w := l.tokens.Start(l.clock.Now(), user, rates, ratelimit.NoCredit)
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
	return patience{longest: time.Duration(l.redis.wait.Load()), waits: l.metrics.waits, timeouts: l.metrics.timeouts}
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
	if l.actOnce() { // a withdrawal that lasts longer may have decided requests that wait
		l.actOnce()
	}
}

// actOnce is act, and reports whether the cores were told of withdrawals.
func (l *limiter) actOnce() (withdrew bool) {
	tokens, slots, bytes := l.tokens.TakeOutput(), l.slots.TakeOutput(), l.bytes.TakeOutput()
	for _, w := range tokens.Decided {
		l.forTokens.decided(w)
	}
	for _, w := range slots.Decided {
		l.forSlots.decided(w)
	}
	for _, n := range tokens.TableEntries {
		l.tables.throttle(n)
	}
	for _, n := range slots.TableEntries {
		l.tables.block(n)
	}
	for _, users := range [...][]string{tokens.Withdraw, slots.Withdraw} {
		for _, user := range users {
			now := l.clock.Now()
			l.withdraw(now, user, now.Add(withoutCredit).Unix())
		}
	}
	for _, user := range slots.Withdraw {
		// It has been taken back for the rates, and the core could not believe it then, or has
		// learnt of places since: it is told again.
		if w := l.credits.withdrawals[user]; w != nil && w.told > 0 {
			l.credits.polls[user] = l.clock.Now()
			wake(l.credits.wake)
		}
	}
	for _, e := range bytes.TableEntries {
		l.tables.share(e)
	}
	l.lanes.tokens.wake(tokens.Urgent, tokens.Sooner)
	l.lanes.slots.wake(slots.Urgent, slots.Sooner)
	l.lanes.bytes.wake(bytes.Urgent, bytes.Sooner)
	return len(tokens.Withdraw)+len(slots.Withdraw) > 0
}

func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
