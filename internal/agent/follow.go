package agent

import (
	"context"
	"time"

	"github.com/sluice-qos/sluice/internal/redisbus"

	"github.com/sluice-qos/sluice/pkg/bandwidth"
	"github.com/sluice-qos/sluice/pkg/concurrency"
)

// hotFor is how long a policy hot holds from polygen's decision on: that is how the
// agent knows when it was made.
const hotFor = 3 * time.Second

func (a *Agent) follow(ctx context.Context) error {
	channels := []redisbus.Channel{redisbus.PoliciesChannel, redisbus.InstancesChannel}
	return a.options.Bus.Subscribe(ctx, channels, func(e redisbus.Event) {
		switch e := e.(type) {
		case redisbus.Policies:
			a.applyPolicies(e)
		case redisbus.Registry:
			a.announced(e)
		case redisbus.Connected:
			// A new set may have been announced while nobody listened. Polygen repeats the version, but later than now.
			a.wantLimits()
		}
	})
}

func (a *Agent) followOwn(ctx context.Context) error {
	return a.options.Bus.SubscribeOwn(ctx, a.options.Instance, func(e redisbus.Event) {
		// After a Connected there is nothing to read: polygen repeats the policies that matter while they do.
		if policies, ok := e.(redisbus.Policies); ok {
			a.applyPolicies(policies)
		}
	})
}

func (a *Agent) applyPolicies(messages []redisbus.Message) {
	a.metrics.policyAt.SetToCurrentTime()
	for _, m := range messages {
		a.metrics.policies.WithLabelValues(redisbus.Kind(m)).Inc()
		switch m := m.(type) {
		case redisbus.Throttle:
			a.limiter.update(func(now time.Time) {
				a.limiter.coresOf(m.Key.User).tokens.Throttle(now, m.Key, m.Second, m.Limit)
			})
		case redisbus.Hot:
			a.limiter.update(func(now time.Time) {
				// Two machines' estimates of Redis' clock differ by some microseconds: a delay below 0 is one of 0.
				a.metrics.policyDelay.Observe(max(0, now.Sub(m.Until.Add(-hotFor)).Seconds()))
				a.limiter.coresOf(m.Key.User).tokens.MarkHot(now, m.Key, m.Until, m.Instances)
				a.limiter.withdrawHot(now, m.Key.User, m.Until)
			})
		case redisbus.Block:
			a.limiter.update(func(now time.Time) {
				a.limiter.coresOf(m.User).slots.Block(now, m.User, concurrency.Limit{Max: m.Limit, Release: m.Release})
			})
		case redisbus.Unblock:
			a.limiter.update(func(now time.Time) { a.limiter.coresOf(m.User).slots.Unblock(now, m.User) })
		case redisbus.Slots:
			s := concurrency.Sharing{User: m.User, Until: m.Until}
			for _, share := range m.Shares {
				s.Shares = append(s.Shares, concurrency.Share(share))
			}
			a.limiter.update(func(now time.Time) { a.limiter.coresOf(m.User).slots.Share(now, s) })
		case redisbus.Share:
			s := bandwidth.Sharing{User: m.User, Direction: m.Direction, Shares: m.Shares}
			a.limiter.update(func(now time.Time) { a.limiter.bytes.Share(now, s) })
		case redisbus.Limits:
			// Polygen repeats the version, for agents that missed it: nearly always it is in force already.
			if !a.limiter.inForce.hasVersion(m.Version) {
				a.wantLimits()
			}
		}
	}
}
