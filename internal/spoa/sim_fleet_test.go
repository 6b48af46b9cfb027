//go:build !race

package spoa

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-qos/sluice/internal/bus"
	"github.com/sluice-qos/sluice/internal/clock"
	"github.com/sluice-qos/sluice/internal/policy"
	"github.com/sluice-qos/sluice/pkg/concurrency"
)

const (
	simSettle = 4 * time.Second // before the load, until all agents agree on how many they are
	simWarm   = time.Second     // load that is not counted
)

// simFleet is a fleet in simulated time.
type simFleet struct {
	load    *simLoad
	redis   *simRedis
	polygen *simPolygen
	edges   []*simEdge

	requests, byCredit, refusedByHAProxy, questions, refusedByAgents atomic.Int64

	began    int64             // the first second of the load
	admitted [][8]atomic.Int32 // of the busy users, by second
	running  []atomic.Int32    // requests in progress of the busy users,
	most     []atomic.Int32    // and the most of them at a time
}

// admit counts a request that runs, and was asked about in a second and answered in the same or the next one.
func (f *simFleet) admit(user int, asked, answered int64) {
	if user == notBusy {
		return
	}
	// Whose of the two seconds the token was is not known here, so it counts for neither.
	if asked == answered {
		f.admitted[user][asked-f.began].Add(1)
	}
	n := f.running[user].Add(1)
	for most := f.most[user].Load(); n > most && !f.most[user].CompareAndSwap(most, n); most = f.most[user].Load() {
	}
}

type simCounts struct{ calls, items, toRedis, toAgents, toPolygen float64 }

// notBusy stands for any user of whom it is not counted how many requests are admitted.
const notBusy = -1

// simResult is what a fleet of one size cost, a second.
type simResult struct {
	agents                                                           int
	kinds                                                            [simKinds]simCounts
	requests, byCredit, refusedByHAProxy, questions, refusedByAgents float64
	shardCalls, shardItems, shardIn, shardOut                        float64 // of the busiest
	slotFields, published                                            float64
	worst, worstInProgress                                           float64 // second and instant of a user ÷ limit
}

// runSim simulates a fleet, and measures whole seconds of its load. It is called in a bubble.
func runSim(t *testing.T, instances int, l *simLoad, measure time.Duration) (r simResult) {
	b := unreachable(t, simShards)
	f := newSimFleet(t, b, instances, l)
	start := time.Now().Add(simSettle).Truncate(time.Second)
	f.began = start.Unix()
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	f.start(ctx, &running, start)

	// Just before a second begins: with it all requests of others are drawn.
	time.Sleep(time.Until(start.Add(simWarm - simStep/2)))
	before := f.totals()
	time.Sleep(measure)
	r = f.totals().since(before, measure.Seconds())
	f.judge(&r, int((simWarm+measure)/time.Second))
	cancel()
	running.Wait()
	time.Sleep(10 * time.Second) // what is on its way ends
	synctest.Wait()
	return r
}

func newSimFleet(t *testing.T, b *bus.Bus, instances int, l *simLoad) *simFleet {
	f := &simFleet{load: l, redis: newSimRedis(instances, cmp.Or(l.roundTrip, simRoundTrip)), admitted: make([][8]atomic.Int32, l.busy),
		running: make([]atomic.Int32, l.busy), most: make([]atomic.Int32, l.busy)}
	names := make([]string, instances)
	for i := range names {
		names[i] = fmt.Sprintf("edge-%04d#abcdefgh", i)
	}
	set := parse(t, l.limits)
	f.polygen = newSimPolygen(f.redis, set, names)
	f.redis.publish = f.polygen.receive
	f.polygen.hear = func(instance int, policies []policy.Message) {
		q := &f.edges[instance].received
		q.Lock()
		defer q.Unlock()
		q.policies = append(q.policies, policies...)
	}
	for i, name := range names {
		a, err := New(Options{Instance: name, Bus: b, SPOE: "unix:none", Peers: "unix:none"})
		if err != nil {
			t.Fatal(err)
		}
		e := &simEdge{Agent: a, fleet: f, number: i, name: name, rows: make(map[string]*simRow)}
		e.taught.rows = make(map[string]simRefusal)
		a.teach = e.teach
		// Without a runtime API no agent gives credit.
		if l.next == nil {
			a.runtime = e
		}
		a.exchange.calls = calls{take: f.redis.take, hold: f.redis.hold, demand: f.redis.demand, alive: f.redis.alive}
		a.limiter.inForce.set.Store(set)
		a.joined(bus.Registry{Instances: names, Now: time.Now()})
		f.edges = append(f.edges, e)
	}
	return f
}

// start starts everything; the load begins at a time.
func (f *simFleet) start(ctx context.Context, running *sync.WaitGroup, begin time.Time) {
	arrivals := f.load.arrivals(len(f.edges))
	for i, e := range f.edges {
		running.Go(func() { _ = e.exchange.run(ctx) })
		running.Go(func() { e.runBeats(ctx) })
		running.Go(func() { e.runReports(ctx) })
		running.Go(func() { e.serve(ctx, begin, arrivals[i]) })
		if e.runtime != nil {
			running.Go(func() { _ = e.runWithdrawals(ctx) })
		}
	}
	running.Go(func() { f.polygen.run(ctx) })
	if f.load.next == nil {
		running.Go(func() { f.drawOthers(ctx, begin) })
	} else {
		running.Go(func() { f.offer(ctx, begin) })
	}
}

// judge compares what was admitted of the busy users in so many seconds with their limits.
func (f *simFleet) judge(r *simResult, seconds int) {
	r.agents = len(f.edges)
	for i := range f.admitted {
		for s := range seconds {
			r.worst = max(r.worst, float64(f.admitted[i][s].Load())/float64(f.load.limit[i]))
		}
		r.worstInProgress = max(r.worstInProgress, float64(f.most[i].Load())/float64(f.load.concurrent[i]))
	}
}

// runBeats is the agent's heartbeats, without the registry: nobody joins or leaves.
func (e *simEdge) runBeats(ctx context.Context) {
	if !clock.Sleep(ctx, time.Duration(e.number)*beatEvery/time.Duration(len(e.fleet.edges))) {
		return
	}
	every := int(bus.HeartbeatEvery(len(e.fleet.edges)) / beatEvery)
	for n := e.number; clock.Sleep(ctx, beatEvery); n++ {
		if n%every == 0 {
			e.fleet.redis.heartbeat(e.name)
		}
		e.forget()
		_ = e.tellShards(ctx)
	}
}

// runReports is the agent's reportStarts, with Redis' calls counted instead of made.
func (e *simEdge) runReports(ctx context.Context) {
	buckets := newEvents()
	var reports []bus.Started
	later := rand.N(reportWithin)
	for number := 1; ; number++ {
		now := time.Now()
		if !clock.Sleep(ctx, now.Truncate(startsEvery).Add(startsEvery).Sub(now)) {
			return
		}
		var near int
		reports, near = e.starts.takeReports(reports[:0])
		e.raiseInProgress(reports)
		events := buckets.countSecond(reports, near, e.metrics.started.takeCounts(), func(user string) string { return e.limiter.inForce.limitsOf(user).Tier })
		if !clock.Sleep(ctx, later) {
			return
		}
		e.fleet.redis.started(e.name, number, reports, &events)
	}
}

// drawOthers draws the requests of users who are not busy, second by second.
func (f *simFleet) drawOthers(ctx context.Context, start time.Time) {
	random := rand.New(rand.NewPCG(2, 0))
	for second := start; clock.Sleep(ctx, time.Until(second)); second = second.Add(time.Second) {
		n := f.load.others(random, len(f.edges), func(rank, instance, tickets int) {
			e := f.edges[instance]
			places := concurrency.Places{Lent: true, Here: 1, Places: tickets}
			time.AfterFunc(time.Duration(random.Int64N(int64(time.Second))), func() {
				e.askOther(rank, haproxyCredit{classes: simClasses, spent: true, places: places})
			})
		})
		f.requests.Add(n)
		f.byCredit.Add(n)
	}
}

// offer asks the questions of a benchmark, as fleet.offer does.
func (f *simFleet) offer(ctx context.Context, start time.Time) {
	random := rand.New(rand.NewPCG(1, 0))
	for due := start; clock.Sleep(ctx, time.Until(due)); due = due.Add(time.Duration(random.ExpFloat64() / f.load.rate * 1e9)) {
		user, agent := f.load.next(len(f.edges))
		go f.edges[agent].askOther(int(user), haproxyCredit{})
	}
}

// askOther asks about a user who is not busy, and whose credit does not suffice.
func (e *simEdge) askOther(rank int, has haproxyCredit) {
	e.fleet.requests.Add(1)
	e.fleet.questions.Add(1)
	q := question{user: simUser(rank), verb: "GET", credit: has}
	e.mu.Lock()
	row := e.row(q.user)
	q.seen = concurrency.Count{Tracked: int64(row.tracked), Active: int64(row.active)}
	if has.places.Lent && row.credit == nil {
		row.credit = &simCredit{}
	}
	if has.places.Lent {
		row.credit.inside++
	}
	e.mu.Unlock()
	e.ask(notBusy, q)
}

// takeMail takes what has come for the agent since the last step.
func (e *simEdge) takeMail() {
	q := &e.received
	q.Lock()
	policies := q.policies
	q.policies = nil
	q.Unlock()
	if len(policies) > 0 {
		e.applyPolicies(policies)
	}
}

// end ends a request; e.mu is held.
func (e *simEdge) end(end *simEnd) {
	row := e.row(end.name)
	if end.credit {
		row.credit.inside--
	}
	if end.asked {
		row.active--
		row.moved += end.bytes
		e.tell(end.name, row)
	}
	if end.user != notBusy {
		e.fleet.running[end.user].Add(-1)
	}
}

// serve is the instance's loop: what arrives and ends in each step.
func (e *simEdge) serve(ctx context.Context, start time.Time, arrivals *simArrivals) {
	random := rand.New(rand.NewPCG(1, uint64(e.number)))
	names := make(map[int]string)
	if !clock.Sleep(ctx, time.Until(start)) {
		return
	}
	for clock.Sleep(ctx, simStep) {
		e.takeMail()
		e.mu.Lock()
		e.step++
		ends := e.ends[e.step%simEndRing]
		e.ends[e.step%simEndRing] = ends[:0]
		for _, end := range ends {
			e.end(&end)
		}
		e.mu.Unlock()
		for range poisson(random, arrivals.rate*simStep.Seconds()) {
			busy := arrivals.draw(random)
			name, ok := names[busy]
			if !ok {
				name = simUser(busyRank(busy))
				names[busy] = name
			}
			e.request(busy, name)
		}
	}
}

// totals are what was counted so far.
func (f *simFleet) totals() (r simResult) {
	load := func(n *atomic.Int64) float64 { return float64(n.Load()) }
	t := &f.redis.simTraffic
	for k := range r.kinds {
		r.kinds[k] = simCounts{load(&t.calls[k]), load(&t.items[k]), load(&t.toRedis[k]), load(&t.toAgents[k]), load(&t.toPolygen[k])}
	}
	for s := range simShards {
		r.shardCalls = max(r.shardCalls, load(&t.shardCalls[s]))
		r.shardItems = max(r.shardItems, load(&t.shardItems[s]))
		r.shardIn, r.shardOut = max(r.shardIn, load(&t.shardIn[s])), max(r.shardOut, load(&t.shardOut[s]))
	}
	r.slotFields, r.published = load(&t.slotFields), load(&t.published)
	r.requests, r.byCredit, r.questions = load(&f.requests), load(&f.byCredit), load(&f.questions)
	r.refusedByHAProxy, r.refusedByAgents = load(&f.refusedByHAProxy), load(&f.refusedByAgents)
	return r
}

// since is what was counted since then, a second.
func (r simResult) since(then simResult, seconds float64) simResult {
	of := func(now *float64, before float64) { *now = (*now - before) / seconds }
	for k := range r.kinds {
		now, before := &r.kinds[k], then.kinds[k]
		of(&now.calls, before.calls)
		of(&now.items, before.items)
		of(&now.toRedis, before.toRedis)
		of(&now.toAgents, before.toAgents)
		of(&now.toPolygen, before.toPolygen)
	}
	of(&r.shardCalls, then.shardCalls)
	of(&r.shardItems, then.shardItems)
	of(&r.shardIn, then.shardIn)
	of(&r.shardOut, then.shardOut)
	of(&r.slotFields, then.slotFields)
	of(&r.published, then.published)
	of(&r.requests, then.requests)
	of(&r.byCredit, then.byCredit)
	of(&r.questions, then.questions)
	of(&r.refusedByHAProxy, then.refusedByHAProxy)
	of(&r.refusedByAgents, then.refusedByAgents)
	return r
}
