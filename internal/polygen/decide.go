package polygen

import (
	"context"
	"log/slog"
	"time"

	"github.com/sluice-qos/sluice/internal/bus"
	"github.com/sluice-qos/sluice/internal/policy"
	"github.com/sluice-qos/sluice/pkg/bandwidth"
	"github.com/sluice-qos/sluice/pkg/concurrency"
	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

// decide owns the watches: reports of the agents go in, policies come out. It alone touches
// them, so they need no lock.
func (p *Polygen) decide(ctx context.Context, events <-chan bus.Event) error {
	forget := time.NewTicker(time.Second)
	defer forget.Stop()
	tick := time.NewTicker(tickEvery)
	defer tick.Stop()
	bytes := time.NewTicker(bytesEvery)
	defer bytes.Stop()
	for {
		var began time.Time
		select {
		case <-ctx.Done():
			return nil
		case e := <-events:
			began = time.Now()
			p.observe(p.clock.Now(), e)
			for range len(events) { // the policies of all that waits are sent in one call
				p.observe(p.clock.Now(), <-events)
			}
		case <-tick.C:
			began = time.Now()
			p.tickSlots(p.clock.Now())
		case <-bytes.C:
			began = time.Now()
			p.bytes.Tick(p.clock.Now())
		case <-forget.C:
			began = time.Now()
			now := p.clock.Now()
			p.rates.Forget(now)
			p.metrics.keys.Set(float64(p.rates.WatchedKeys()))
			p.countDropped()
			p.metrics.unconfirmed.Add(float64(p.reactions.giveUp(now)))
			p.expire(now)
			p.review(now)
		}
		p.round.began = began
		p.sendPolicies(ctx)
		p.metrics.loop.Observe(time.Since(began).Seconds())
		p.endRound(ctx)
	}
}

func (p *Polygen) observe(now time.Time, e bus.Event) {
	p.round.events++
	set := p.set.Load()
	switch e := e.(type) {
	case bus.Usage:
		for _, u := range e.Entries {
			// The watch tells only that a limit was spent; the moment is needed to measure how
			// long the HAProxies take to refuse.
			before := p.rates.SpentWindows()
			p.rates.Observe(now, e.Instance, u.Key, u.Second, u.Total, limitOf(set, u.Key))
			if p.rates.SpentWindows() > before {
				p.reactions.markSpent(u.Key, u.Second, e.At)
			}
		}
		p.metrics.usage.Add(float64(len(e.Entries)))
	case bus.Progress:
		for _, u := range e.Entries {
			p.slots.Observe(now, concurrency.Report{
				Instance: e.Instance, User: u.User, Active: u.Active, Refused: u.Refused, Limit: set.User(u.User).Concurrent,
			})
		}
		p.metrics.progress.Add(float64(len(e.Entries)))
	case bus.Demand:
		for _, r := range e {
			b := set.User(r.User).Bandwidth
			p.bytes.Observe(now, r, [2]int64{bandwidth.Down: b.Down, bandwidth.Up: b.Up})
		}
		p.metrics.demand.Add(float64(len(e)))
	case bus.Starts:
		p.metrics.starts.Add(float64(len(e.Users)))
	case bus.Confirmed:
		if took, done := p.reactions.confirmed(e); done {
			p.metrics.reaction.Observe(took.Seconds())
		}
	case bus.Unblock:
		p.slots.Unblock(now, e.User)
	case bus.Registry:
		p.reactions.instances = e.Instances
		// What an instance reported counts until the registry says that it is gone, not until it is silent: what is
		// idle reports nothing.
		p.slots.Instances(now, e.Instances)
		p.bytes.Instances(now, e.Instances)
		p.takeRegistry(e, set.Version())
	}
	p.showEvent(now, set, e)
}

// countDropped sets the metrics of what the watches had no room for.
func (p *Polygen) countDropped() {
	for i, now := range [...]uint64{p.rates.Dropped(), p.slots.Dropped(), p.bytes.Dropped()} {
		p.metrics.watchDropped.WithLabelValues([...]string{"requests", "concurrent", "bandwidth"}[i]).Add(float64(now - p.dropped[i]))
		p.dropped[i] = now
	}
}

func (p *Polygen) tickSlots(now time.Time) {
	p.slots.Tick(now)
	users, blocked := p.slots.WatchedUsers()
	p.metrics.users.Set(float64(users))
	p.metrics.blockedUsers.Set(float64(blocked))
}

// limitOf is how many requests the limit of the key's class and window admits in one
// window at most, bursts included, or 0 if there is no limit. A limit in a dry run counts
// like any other; the agents do not refuse for it.
func limitOf(set *limits.Set, k ratelimit.Key) int {
	r, _ := set.User(k.User).Rate(k.Class, k.Window)
	return r.Max + r.Burst
}

// sendPolicies publishes what the watches decided, if this polygen leads. Policies that cannot be
// sent are dropped: limits hold without them, by the agents' leases, and blocks and shares
// are repeated.
func (p *Polygen) sendPolicies(ctx context.Context) {
	hints, throttles := p.rates.Decisions()
	d := p.slots.Decisions()
	sharings := p.bytes.Sharings()
	begun := p.remember(throttles, d)
	p.tellPolicies(p.set.Load(), begun, hints, throttles, d, sharings)
	p.throttledUsers.addThrottles(p.set.Load(), throttles)
	// A follower decides too, by the same reports, so that it knows everything when it takes the lead. Only the
	// leader sends.
	if len(hints)+len(throttles)+len(sharings) == 0 && d.IsEmpty() || !p.leading.Load() {
		return
	}
	// The more urgent ones come first: a user who is let in waits for that, and confirmations
	// are asked for before the throttles that they are about. Hints only save questions.
	messages := make([]policy.Message, 0, len(hints)+len(throttles)+len(d.Blocks)+len(d.Unblocks)+len(d.Sharings)+len(sharings))
	for _, user := range d.Unblocks {
		messages = append(messages, policy.Unblock{User: user})
	}
	messages = append(messages, p.reactions.confirmations(p.clock.Now(), p.set.Load(), throttles)...)
	for _, t := range throttles {
		messages = append(messages, policy.Throttle{Key: t.Key, Second: t.WindowStart, Limit: t.Limit})
	}
	for _, b := range d.Blocks {
		messages = append(messages, policy.Block{User: b.User, Limit: b.Max, Release: b.Release})
	}
	for _, s := range d.Sharings {
		m := policy.Slots{User: s.User, Until: s.Until}
		for _, share := range s.Shares {
			m.Shares = append(m.Shares, policy.SlotShare(share))
		}
		messages = append(messages, m)
	}
	for _, s := range sharings {
		messages = append(messages, policy.Share(s))
	}
	for _, h := range hints {
		messages = append(messages, policy.Hot{Key: h.Key, Until: h.Until, Instances: h.Instances})
	}
	traced, span := p.tracePublishing(ctx, messages)
	err := p.options.Bus.PublishPolicies(ctx, traced)
	span.End(err)
	if err != nil {
		p.metrics.dropped.Add(float64(len(messages)))
		if ctx.Err() == nil {
			p.options.Logger.Debug("policies not sent", slog.Int("policies", len(messages)), slog.Any("error", err))
		}
		return
	}
	p.metrics.countSent(p.set.Load(), messages)
}
