package agent

import (
	"context"
	"time"

	"github.com/sluice-qos/sluice/internal/daemon"
	"github.com/sluice-qos/sluice/internal/redisbus"
	"github.com/sluice-qos/sluice/pkg/bandwidth"
	"github.com/sluice-qos/sluice/pkg/concurrency"
	"github.com/sluice-qos/sluice/pkg/cost"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

// exchange carries asks for tokens and for slots to the pools in Redis, and
// grants back, and reports what is moved.
type exchange struct {
	calls
	limiter  *limiter
	metrics  *metrics
	options  *Options
	links    []*link // by shard
	channels loss    // of what is published
}

type calls struct {
	take   func(context.Context, string, []ratelimit.Ask) (redisbus.Taken, error)          // Bus.Take
	hold   func(context.Context, string, int, []concurrency.Ask) (redisbus.Slotted, error) // Bus.Slots
	charge func(context.Context, string, []cost.Ask) (redisbus.Charged, error)             // Bus.Charge
	demand func(context.Context, string, []bandwidth.Report) error                         // Bus.Demand
	alive  func(ctx context.Context, instance string, shard int) error                     // Bus.Alive
}

func newExchange(l *limiter, m *metrics, o *Options) *exchange {
	e := &exchange{calls: calls{take: o.Bus.Take, hold: o.Bus.Slots, charge: o.Bus.Charge, demand: o.Bus.Demand, alive: o.Bus.Alive}, limiter: l, metrics: m, options: o}
	e.channels.limiter, e.channels.metrics, e.channels.options = l, m, o
	for _, s := range l.shards {
		// Before the first answer nobody knows how long one takes: requests had better wait than do without it.
		s.reach.most = o.MaxWait
		s.reach.wait.Store(int64(o.MaxWait))
		e.links = append(e.links, &link{calls: &e.calls, loss: loss{limiter: l, metrics: m, options: o, shard: s}})
	}
	return e
}

func (e *exchange) run(ctx context.Context) error {
	flushes := e.metrics.flush.WithLabelValues
	bytes := &lane[bandwidth.Report]{loss: &e.channels, laneSignals: e.limiter.bandwidth, flushes: flushes("bandwidth"), collect: e.collectBytes, send: e.sendBytes, rest: restOf(e.limiter, e.limiter.bytes)}
	loops := []func(context.Context) error{bytes.run}
	// Each shard has lanes of its own: one that does not answer holds up no other's asks.
	for _, k := range e.links {
		s := k.shard
		tokens := &lane[ratelimit.Ask]{loss: &k.loss, laneSignals: s.lanes.tokens, flushes: flushes("requests"), collect: k.collectTokens, send: k.sendTokens,
			rest: restOf(e.limiter, s.tokens), leave: func() { k.update(func(time.Time) { s.tokens.Leave() }) }}
		slots := &lane[concurrency.Ask]{loss: &k.loss, laneSignals: s.lanes.slots, flushes: flushes("concurrent"), collect: k.collectSlots, send: k.sendSlots, rest: restOf(e.limiter, s.slots)}
		costs := &lane[cost.Ask]{loss: &k.loss, laneSignals: s.lanes.costs, flushes: flushes("costs"), collect: k.collectCosts, send: k.sendCosts, rest: restOf(e.limiter, s.costs)}
		loops = append(loops, tokens.run, slots.run, costs.run)
	}
	return daemon.Run(ctx, loops...)
}

func restOf(l *limiter, core interface {
	IdleFor(at time.Time, most time.Duration) time.Duration
}) func() time.Duration {
	return func() (rest time.Duration) {
		// The core notes that it was told how long the rest is: from then on news that cannot wait for its end say Sooner.
		l.update(func(now time.Time) { rest = core.IdleFor(now, longestRest) })
		return rest
	}
}

// collectBytes drops the reports that a lost Redis cannot take: the next ones say
// all there is to say.
func (e *exchange) collectBytes(flush, ask bool, reports []bandwidth.Report) []bandwidth.Report {
	e.limiter.update(func(now time.Time) {
		if flush {
			e.limiter.bytes.Tick(now)
			e.metrics.bandwidthUsers.Set(float64(e.limiter.bytes.KnownUsers()))
		}
		reports = e.limiter.bytes.Collect(now, reports)
	})
	// Unlike asks, reports are absolute: what is not sent now is said by the next one.
	if !ask {
		return reports[:0]
	}
	return reports
}

func (e *exchange) sendBytes(ctx context.Context, reports []bandwidth.Report) error {
	err := e.demand(ctx, e.options.Instance, reports)
	// No shard of it: what is published needs none, and shares that are in force go on without new reports.
	if err != nil {
		e.channels.loseRedis(err)
	}
	return err
}

// link carries what the cores of a shard say to it, and back what it answers.
type link struct {
	loss
	calls *calls
}

// update lets the cores of the shard take news, and carries out what follows.
func (k *link) update(news func(now time.Time)) {
	k.limiter.update(func(now time.Time) {
		k.limiter.touch(k.shard)
		news(now)
	})
}

func (k *link) collectTokens(flush, ask bool, asks []ratelimit.Ask) []ratelimit.Ask {
	k.update(func(now time.Time) {
		// Only a flush has the core do what is due: an urgent ask in between must not cost that much.
		if flush {
			k.shard.tokens.Tick(now)
		}
		if ask {
			asks = k.shard.tokens.Collect(now, flush, asks)
		}
	})
	return asks
}

func (k *link) collectSlots(flush, ask bool, asks []concurrency.Ask) []concurrency.Ask {
	k.update(func(now time.Time) {
		if flush {
			k.shard.slots.Tick(now)
		}
		// A core that is not collected from keeps what it has to say, and says it when the pool is back.
		if ask {
			asks = k.shard.slots.Collect(now, flush, asks)
		}
	})
	return asks
}

func (k *link) collectCosts(flush, ask bool, asks []cost.Ask) []cost.Ask {
	k.update(func(now time.Time) {
		if flush {
			k.shard.costs.Tick(now)
		}
		if ask {
			asks = k.shard.costs.Collect(now, flush, asks)
		}
	})
	return asks
}

func (k *link) sendCosts(ctx context.Context, asks []cost.Ask) error {
	charged, err := k.calls.charge(ctx, k.options.Instance, asks)
	answer(k, k.shard.costs, asks, charged.Grants, err)
	return err
}

func (k *link) sendTokens(ctx context.Context, asks []ratelimit.Ask) error {
	taken, err := k.calls.take(ctx, k.options.Instance, asks)
	answer(k, k.shard.tokens, asks, taken.Grants, err)
	return err
}

func (k *link) sendSlots(ctx context.Context, asks []concurrency.Ask) error {
	slotted, err := k.calls.hold(ctx, k.options.Instance, int(k.limiter.inForce.instances.Load()), asks)
	answer(k, k.shard.slots, asks, slotted.Grants, err)
	return err
}

type asker[Ask, Grant any] interface {
	Reply(time.Time, Ask, Grant)
	Fail(time.Time, Ask)
}

// answer tells a core what came of its asks: the grants, or an error, which is a
// loss of the shard.
func answer[Ask, Grant any](k *link, core asker[Ask, Grant], asks []Ask, grants []Grant, err error) {
	// The cores are told of the loss before they are told that their asks failed: they decide alone then.
	if err != nil {
		k.loseRedis(err)
	}
	k.update(func(now time.Time) {
		for i, ask := range asks {
			// It may have arrived all the same. The core asks again under the same number, or absolutely, so that
			// it counts once: invariant 2 of ARCHITECTURE.md.
			if err != nil {
				core.Fail(now, ask)
			} else {
				core.Reply(now, ask, grants[i])
			}
		}
	})
}
