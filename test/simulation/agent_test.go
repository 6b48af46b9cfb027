package simulation_test

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sluice-qos/sluice/internal/daemon"
	"github.com/sluice-qos/sluice/internal/redisbus"
	"github.com/sluice-qos/sluice/pkg/bandwidth"
	"github.com/sluice-qos/sluice/pkg/concurrency"
	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

// Those of internal/agent.
const (
	flushEvery  = 5 * time.Millisecond
	longestRest = 250 * time.Millisecond
	maxWait     = 20 * time.Millisecond
	lostAfter   = 100 * time.Millisecond
	lostRetry   = 100 * time.Millisecond
	longLoss    = time.Second
	heardWithin = 300 * time.Millisecond
	awaySpan    = 5
	backSpan    = 1
)

// edge is an instance: a HAProxy and the agent beside it.
type edge struct {
	world   *world
	number  int
	wall    time.Duration // by how much the machine's clock is wrong
	haproxy *haproxy
	agent   *agent // nil: there is none
	started int    // agents so far
	process process
}

func (e *edge) host() string { return fmt.Sprint("edge-", e.number) }

func (e *edge) happen(ev event, until time.Time) {
	a := e.agent
	var again func()
	again = func() {
		switch {
		case e.agent == nil:
			e.startAgent()
		case e.agent.leaving:
			// It stood still in between.
			e.world.After(100*time.Millisecond, again)
		}
	}
	switch ev.kind {
	case crashAgent, crashInstance:
		if a != nil {
			e.stopAgent()
		}
		if ev.kind == crashInstance {
			e.world.judge.died(e)
			e.haproxy.restart()
		}
		e.world.At(until, again)
	case leave:
		if a != nil && a.serving {
			a.leave()
		}
		e.world.At(until.Add(2*time.Second), again)
	default:
		// The way to Redis is the machine's, whichever agent runs there.
		e.process.disturb(ev, until)
		if a != nil {
			a.disturb(ev, until)
		}
	}
}

func (e *edge) stopAgent() {
	e.agent.life++
	e.agent = nil
}

func (e *edge) startAgent() {
	e.started++
	p := process{world: e.world, number: 1 + e.number, name: fmt.Sprintf("%s#%d", e.host(), e.started), sent: uint64(e.started) << 40}
	p.link = e.process.link
	a := &agent{process: p, edge: e, offset: e.wall, instances: 1, forTokens: make(map[*ratelimit.Waiting]*request), forSlots: make(map[*concurrency.Waiting]*request), until: make(map[string]ratelimit.Away)}
	a.tokens = ratelimit.NewAgent(ratelimit.Config{})
	a.slots = concurrency.NewAgent(concurrency.Config{Instance: a.name, Lookup: func(user string) (int, bool) {
		return e.world.users[userNumber(user)].concurrent, false
	}})
	a.bytes = bandwidth.NewAgent(bandwidth.Config{Instance: a.name})
	a.longest = maxWait
	e.agent = a
	a.prepare()
}

func userNumber(name string) (n int) {
	_, _ = fmt.Sscanf(name, "user-%d", &n)
	return n
}

func keyOf(user int, r limits.Rate) ratelimit.Key {
	return ratelimit.Key{Class: r.Class, User: userName(user), Window: r.Window}
}

// agent is the shell around the cores: what internal/agent does.
type agent struct {
	process
	edge    *edge
	offset  time.Duration // of the machine's clock when it began; it follows none that is set
	clock   daemon.Clock
	tokens  *ratelimit.Agent
	slots   *concurrency.Agent
	bytes   *bandwidth.Agent
	lanes   [3]*lane
	serving bool
	leaving bool

	forTokens map[*ratelimit.Waiting]*request
	forSlots  map[*concurrency.Waiting]*request
	waiting   int
	beats     int // so far

	loss
	instances int
	listed    time.Time
	found     time.Time // when the registry last answered after it had been away
	noAnswer  bool      // of the registry
	names     []string
	until     map[string]ratelimit.Away
}

func (a *agent) local() time.Time { return a.world.Now.Add(a.offset) }

// now is the cluster's time.
func (a *agent) now() time.Time { return a.local().Add(a.clock.Offset()) }

// update lets the cores take news, and carries out what follows.
func (a *agent) update(news func(now time.Time)) {
	news(a.now())
	a.carryOut()
}

func (a *agent) carryOut() {
	bytes := a.bytes.TakeOutput()
	for _, e := range bytes.TableEntries {
		h := a.edge.haproxy
		h.after(localDelay, func() { h.teachShare(userNumber(e.User), e.Share[bandwidth.Down]) })
	}
	a.lanes[2].signal(bytes.Urgent, bytes.Sooner)
	tokens, slots := a.tokens.TakeOutput(), a.slots.TakeOutput()
	for _, w := range tokens.Decided {
		if r := a.forTokens[w]; r != nil {
			delete(a.forTokens, w)
			a.after(0, func() { a.decided(r) })
		}
	}
	for _, w := range slots.Decided {
		if r := a.forSlots[w]; r != nil {
			delete(a.forSlots, w)
			a.after(0, func() { a.decided(r) })
		}
	}
	h := a.edge.haproxy
	for _, n := range tokens.TableEntries {
		until := a.haproxySecond(n.End)
		h.after(time.Millisecond, func() {
			if n.Lift {
				delete(h.throttle, n.Key)
			} else {
				h.throttle[n.Key] = throttleRow{until, h.world.Now.Add(ratelimit.RefuseFor)}
			}
		})
	}
	for _, n := range slots.TableEntries {
		until := a.haproxySecond(n.Until)
		h.after(time.Millisecond, func() { h.block[userNumber(n.User)] = until })
	}
	if len(tokens.Withdraw)+len(slots.Withdraw) > 0 {
		a.world.judge.wrong("%s withdraws credit that nobody has", a.name)
	}
	a.lanes[0].signal(tokens.Urgent, tokens.Sooner)
	a.lanes[1].signal(slots.Urgent, slots.Sooner)
}

// haproxySecond is a second of the cluster by the machine's clock, which is HAProxy's.
func (a *agent) haproxySecond(second int64) int64 {
	if second == 0 {
		return 0
	}
	return a.edge.haproxy.clock().Add(time.Unix(second, 0).Sub(a.now())).Round(time.Second).Unix()
}

// question is one of HAProxy's.
func (a *agent) question(r *request) {
	l := a.world.users[r.user]
	a.update(func(now time.Time) {
		r.slot, r.slotWaits = a.slots.Start(now, userName(r.user), l.concurrent, r.seen, concurrency.Places{})
		if r.slotWaits == nil && !r.slot.Allowed {
			return
		}
		r.tokenAsked = true
		r.token, r.tokenWaits = a.tokens.Start(now, userName(r.user), l.rates, ratelimit.NoCredit)
	})
	if r.refused() || r.slotWaits == nil && r.tokenWaits == nil {
		a.allOrNone(r)
		return
	}
	a.waiting++
	if r.slotWaits != nil {
		a.forSlots[r.slotWaits] = r
	}
	if r.tokenWaits != nil {
		a.forTokens[r.tokenWaits] = r
	}
	began := a.world.Now
	a.after(a.longest, func() { a.waited(r, began) })
}

func (r *request) refused() bool {
	return r.slotWaits == nil && !r.slot.Allowed || r.tokenWaits == nil && !r.token.Allowed
}

// waited is for a request that has waited for so long as one does.
func (a *agent) waited(r *request, began time.Time) {
	if r.decided {
		return
	}
	if r.tokenWaits != nil && a.tokens.HeardSince(r.tokenWaits) {
		if more := maxWait - a.world.Now.Sub(began); more > 0 {
			a.after(more, func() { a.waited(r, began) })
			return
		}
	}
	a.end(r)
}

// decided is for a request of which something is decided that it waited for.
func (a *agent) decided(r *request) {
	if r.decided {
		return
	}
	a.collect(r)
	if r.refused() || r.slotWaits == nil && r.tokenWaits == nil {
		a.end(r)
	}
}

// collect takes the verdicts of what was decided meanwhile.
func (a *agent) collect(r *request) {
	if w := r.slotWaits; w != nil && a.forSlots[w] == nil {
		r.slot, r.slotWaits = w.Verdict, nil
	}
	if w := r.tokenWaits; w != nil && a.forTokens[w] == nil {
		r.token, r.tokenWaits = w.Verdict, nil
	}
}

func (a *agent) end(r *request) {
	a.waiting--
	a.collect(r)
	if r.slotWaits != nil {
		delete(a.forSlots, r.slotWaits)
	}
	if r.tokenWaits != nil {
		delete(a.forTokens, r.tokenWaits)
	}
	a.allOrNone(r)
}

// allOrNone decides what is not decided yet, and gives back what was taken in vain.
func (a *agent) allOrNone(r *request) {
	r.decided = true
	l, name := a.world.users[r.user], userName(r.user)
	a.update(func(now time.Time) {
		if r.slotWaits != nil && !r.refused() {
			r.slot, r.slotWaits = a.slots.Timeout(now, r.slotWaits), nil
		}
		if r.tokenWaits != nil && !r.refused() {
			r.token, r.tokenWaits = a.tokens.Timeout(now, r.tokenWaits), nil
		}
		if !r.refused() {
			if l.down > 0 {
				r.share = a.bytes.Start(now, name, l.bandwidth())
			}
			return
		}
		if r.tokenWaits != nil {
			a.tokens.Abandon(now, r.tokenWaits)
		} else if r.tokenAsked {
			a.tokens.Cancel(now, name, l.rates, r.token)
		}
		switch {
		case r.slotWaits != nil:
			a.slots.Abandon(now, r.slotWaits)
		case r.slot.Allowed:
			a.slots.Cancel(now, name, r.seen.Process)
		}
	})
	allowed := r.slotWaits == nil && r.tokenWaits == nil && r.slot.Allowed && r.token.Allowed
	if !allowed {
		a.world.judge.refused(r)
		a.world.note("%s refuses user %d: slot %+v, token %+v", a.name, r.user, r.slot, r.token)
	}
	r.haproxy.after(localDelay, func() { r.answer(allowed) })
}

func (l userLimits) bandwidth() bandwidth.Limit {
	return bandwidth.Limit{Bytes: [2]int64{bandwidth.Down: l.down}}
}

// progress is what HAProxy pushes.
func (a *agent) progress(user int, count concurrency.Count, moved int64) {
	l, name := a.world.users[user], userName(user)
	a.update(func(now time.Time) {
		a.slots.Progress(now, name, l.concurrent, count)
		if l.down > 0 {
			a.bytes.Progress(now, name, l.bandwidth(), bandwidth.Asked, bandwidth.Count{Active: count.Active, Moved: [2]int64{bandwidth.Down: moved}})
		}
	})
}

// prepare joins the cluster, and serves when all know of it.
func (a *agent) prepare() {
	for i := range a.lanes {
		a.lanes[i] = &lane{agent: a, kind: i}
	}
	a.register(func(ok bool) {
		if !ok {
			a.after(redisbus.BeatEvery, a.prepare)
			return
		}
		serve := func() {
			a.serving = true
			for _, l := range a.lanes {
				l.flushed = a.world.Now
				l.arm(flushEvery)
			}
			a.edge.haproxy.tellAll()
			a.after(redisbus.BeatEvery, a.beat)
		}
		if a.instances <= 1 {
			serve()
			return
		}
		a.after(redisbus.BeatEvery/2, func() {
			a.register(func(bool) {})
			a.after(redisbus.BeatEvery/2, func() {
				a.register(func(bool) {})
				a.after(redisbus.BeatEvery/2, func() { a.register(func(bool) {}); a.after(10*time.Millisecond, serve) })
			})
		})
	})
}

type registered struct {
	names []string
	at    time.Time
}

// register tells the registry that this instance is there, and its shard.
func (a *agent) register(done func(ok bool)) {
	sent, w := a.local(), a.world
	call(&a.process, func(s *stored, at time.Time) registered {
		names, changed := s.register(at, "register", a.name)
		if changed {
			w.announce(registered{names, at})
		}
		return registered{names, at}
	}, func(r registered, ok bool) {
		if ok && a.noAnswer {
			a.found = a.world.Now
		}
		a.noAnswer = !ok
		if ok {
			a.clock.Sample(sent, a.local(), r.at)
			if back := a.listed.Sub(r.at); back <= 0 || back >= redisbus.BeatEvery {
				a.takeInstances(r)
			}
		}
		a.beats++
		if a.beats%2 == 0 || a.isLost() {
			a.tellAlive()
		}
		done(ok)
	})
}

func (a *agent) tellAlive() {
	sent := a.world.Now
	call(&a.process, func(s *stored, at time.Time) bool { s.tellAlive(at, a.name); return true }, func(_, ok bool) {
		if ok {
			a.heartbeatAnswered(a.world.Now.Sub(sent))
		} else {
			a.loseRedis()
		}
	})
}

func (a *agent) beat() {
	if a.leaving {
		return
	}
	began := a.world.Now
	a.register(func(bool) { a.after(redisbus.BeatEvery-a.world.Now.Sub(began), a.beat) })
}

// announce publishes a list of instances.
func (w *world) announce(r registered) {
	for _, e := range w.edges {
		if a := e.agent; a != nil {
			a.hearsay(func() {
				if ahead := r.at.Sub(a.listed); ahead >= 0 && ahead < 5*time.Second {
					a.takeInstances(r)
				}
			})
		}
	}
	for _, p := range w.polygens {
		p.hearsay(func() { p.takeInstances(r) })
	}
}

func hostOf(instance string) string {
	host, _, _ := strings.Cut(instance, "#")
	return host
}

// takeInstances puts a list of instances into force.
func (a *agent) takeInstances(r registered) {
	rank, there := slices.BinarySearch(r.names, a.name)
	if !there || len(r.names) < a.instances && (a.noAnswer || a.world.Now.Sub(a.found) < redisbus.Lapse) {
		return
	}
	a.listed, a.instances = r.at, len(r.names)
	a.update(func(now time.Time) {
		a.followAway(now.Unix(), r.names)
		if !a.serving {
			a.until[a.edge.host()] = ratelimit.Away{Of: len(r.names), Through: now.Unix() + backSpan, Counted: now.Unix() + 1}
		}
		without, gone := a.away(now.Unix()), 0
		for _, o := range a.until {
			if o.Counted == 0 {
				gone++
			}
		}
		a.tokens.Away(without)
		a.tokens.Cluster(now, len(r.names), rank)
		a.slots.Cluster(now, len(r.names)+gone, rank)
		a.bytes.Cluster(now, len(r.names))
	})
}

// followAway and away are internal/agent/away.go.
func (a *agent) followAway(sec int64, names []string) {
	if slices.Equal(names, a.names) {
		return
	}
	there := make(map[string]bool)
	for _, name := range names {
		there[hostOf(name)] = true
	}
	for _, name := range a.names {
		if host := hostOf(name); !there[host] {
			a.until[host] = ratelimit.Away{Of: len(a.names), Through: sec + awaySpan}
		}
	}
	for host, o := range a.until {
		if there[host] {
			o.Through, o.Counted = min(o.Through, sec+backSpan), sec+1
			a.until[host] = o
		}
	}
	a.names = names
}

func (a *agent) away(sec int64) (list []ratelimit.Away) {
	for host, o := range a.until {
		if o.Through < sec || o.Of < 2 {
			delete(a.until, host)
			continue
		}
		o.Through = min(o.Through, sec+awaySpan)
		a.until[host] = o
		list = append(list, o)
	}
	slices.SortFunc(list, func(x, y ratelimit.Away) int { return int(y.Through - x.Through) })
	return list
}

// leave ends the agent in order.
func (a *agent) leave() {
	a.leaving = true
	w, instances := a.world, a.instances
	left := func(bool, bool) {
		var rest time.Duration
		a.update(func(now time.Time) {
			a.until[a.edge.host()] = ratelimit.Away{Of: instances, Through: now.Unix() + awaySpan, Counted: now.Unix()}
			a.tokens.Away(a.away(now.Unix()))
			rest = now.Add(heardWithin).Truncate(time.Second).Add(time.Second).Sub(now)
		})
		a.after(rest, func() {
			a.serving = false
			a.update(func(time.Time) { a.tokens.Leave() })
			a.after(300*time.Millisecond, func() { a.edge.stopAgent() })
		})
	}
	if instances <= 1 {
		left(true, true)
		return
	}
	call(&a.process, func(s *stored, at time.Time) bool {
		if names, changed := s.register(at, "leave", a.name); changed {
			w.announce(registered{names, at})
		}
		return true
	}, left)
}
