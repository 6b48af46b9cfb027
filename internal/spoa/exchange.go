package spoa

import (
	"context"
	"time"

	"github.com/sluice-qos/sluice/internal/bus"
	"github.com/sluice-qos/sluice/internal/group"
	"github.com/sluice-qos/sluice/pkg/bandwidth"
	"github.com/sluice-qos/sluice/pkg/concurrency"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

// exchange carries asks for tokens and for slots to the pools in Redis, and
// grants back, and reports what is moved.
type exchange struct {
	loss
	take   func(context.Context, string, []ratelimit.Ask) (bus.Taken, error)          // Bus.Take
	hold   func(context.Context, string, int, []concurrency.Ask) (bus.Slotted, error) // Bus.Slots
	demand func(context.Context, string, []bandwidth.Report) error                    // Bus.Demand
}

func (e *exchange) run(ctx context.Context) error {
	flushes := e.metrics.flush.WithLabelValues
	tokens := &lane[ratelimit.Ask]{loss: &e.loss, laneSignals: e.limiter.lanes.tokens, flushes: flushes("requests"), collect: e.collectTokens, send: e.sendTokens,
		rest: e.restOf(e.limiter.tokens), leave: func() { e.limiter.update(func(time.Time) { e.limiter.tokens.Leave() }) }}
	slots := &lane[concurrency.Ask]{loss: &e.loss, laneSignals: e.limiter.lanes.slots, flushes: flushes("concurrent"), collect: e.collectSlots, send: e.sendSlots, rest: e.restOf(e.limiter.slots)}
	bytes := &lane[bandwidth.Report]{loss: &e.loss, laneSignals: e.limiter.lanes.bytes, flushes: flushes("bandwidth"), collect: e.collectBytes, send: e.sendBytes, rest: e.restOf(e.limiter.bytes)}
	return group.Run(ctx, tokens.run, slots.run, bytes.run)
}

// restOf is for how long a core has nothing to do.
func (e *exchange) restOf(core interface {
	IdleFor(at time.Time, most time.Duration) time.Duration
}) func() time.Duration {
	return func() (rest time.Duration) {
		e.limiter.update(func(now time.Time) { rest = core.IdleFor(now, longestRest) })
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
	if err != nil {
		e.loseRedis(err)
	}
	return err
}

func (e *exchange) collectTokens(flush, ask bool, asks []ratelimit.Ask) []ratelimit.Ask {
	e.limiter.update(func(now time.Time) {
		// Only a flush has the core do what is due: an urgent ask in between must not cost that much.
		if flush {
			e.limiter.tokens.Tick(now)
			e.metrics.users.Set(float64(e.limiter.tokens.KnownUsers()))
			e.countOverflow()
		}
		if ask {
			asks = e.limiter.tokens.Collect(now, flush, asks)
		}
	})
	return asks
}

func (e *exchange) collectSlots(flush, ask bool, asks []concurrency.Ask) []concurrency.Ask {
	e.limiter.update(func(now time.Time) {
		if flush {
			e.limiter.slots.Tick(now)
			s := e.limiter.slots.Stats()
			e.metrics.slotUsers.Set(float64(s.Users))
			e.metrics.inProgress.Set(float64(s.InProgress))
			e.metrics.line.Set(float64(s.InLine))
			e.metrics.parked.Set(float64(s.Parked))
		}
		// A core that is not collected from keeps what it has to say, and says it when the pool is back.
		if ask {
			asks = e.limiter.slots.Collect(now, flush, asks)
		}
	})
	return asks
}

// countOverflow counts the requests that were admitted uncounted; the limiter's
// lock is held.
func (e *exchange) countOverflow() {
	// The cores count up, and a counter takes what is new.
	n := e.limiter.tokens.Overflowed() + e.limiter.slots.Stats().Overflowed
	e.metrics.uncounted.Add(float64(n - e.limiter.overflowed))
	e.limiter.overflowed = n
}

func (e *exchange) sendTokens(ctx context.Context, asks []ratelimit.Ask) error {
	taken, err := e.take(ctx, e.options.Instance, asks)
	answer(e, e.limiter.tokens, asks, taken.Grants, err)
	return err
}

func (e *exchange) sendSlots(ctx context.Context, asks []concurrency.Ask) error {
	slotted, err := e.hold(ctx, e.options.Instance, int(e.limiter.inForce.instances.Load()), asks)
	answer(e, e.limiter.slots, asks, slotted.Grants, err)
	return err
}

// asker is a core that asks a pool.
type asker[Ask, Grant any] interface {
	Reply(time.Time, Ask, Grant)
	Fail(time.Time, Ask)
}

// answer tells a core what came of its asks: the grants, or an error, which is a
// loss of Redis.
func answer[Ask, Grant any](e *exchange, core asker[Ask, Grant], asks []Ask, grants []Grant, err error) {
	// The cores are told of the loss before they are told that their asks failed: they decide alone then.
	if err != nil {
		e.loseRedis(err)
	}
	e.limiter.update(func(now time.Time) {
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
