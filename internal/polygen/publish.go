package polygen

import (
	"context"
	"log/slog"
	"time"

	"github.com/sluice-qos/sluice/internal/daemon"
	"github.com/sluice-qos/sluice/internal/redisbus"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// announceEvery is how often the version of the limits is repeated, for agents that
// missed it, and how often Redis is asked whether it still has the limits.
const announceEvery = time.Second

// wantPublication has publishLimits look soon. It never waits.
func (p *Polygen) wantPublication() {
	select {
	case p.publish <- struct{}{}:
	default:
		// A look is due already, and will find what this caller has changed, for it was changed before the call.
	}
}

// publishLimits puts the limits into Redis when they change or Redis has
// forgotten them, and repeats their version for agents that missed it.
func (p *Polygen) publishLimits(ctx context.Context) error {
	announce := time.NewTicker(announceEvery)
	defer announce.Stop()
	var failures daemon.LogLimit
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-p.publish:
		case <-announce.C:
		}
		// Only one publishes: two with different files would replace each other's limits in turns. And before
		// the overrides by hand are read, the limits would be published without them.
		if !p.leads() || !p.overrides.read.Load() {
			continue
		}
		set := p.set.Load()
		err := p.ensurePublished(ctx, set)
		// The loss of Redis has a log line of its own. This one is for a Redis that answers, and refuses to keep the
		// limits: one whose users are those of a version before.
		if err == nil || ctx.Err() != nil || p.cutOff() != nil {
			continue
		}
		if skipped, ok := failures.Allow(); ok {
			p.options.Logger.Warn("limits not published: agents keep those that they have",
				slog.String("version", set.Version()), slog.Any("error", err), slog.Int("failures", skipped+1))
		}
	}
}

func (p *Polygen) ensurePublished(ctx context.Context, set *limits.Set) error {
	kept, err := p.options.Bus.KeepLimits(ctx, set.Version())
	switch {
	case err != nil:
		return err
	case kept:
		// Nearly always. An agent that missed the version reads the limits now; to send them every second would
		// cost as much as the file is long, for each agent.
		return p.options.Bus.PublishPolicies(ctx, []redisbus.Message{redisbus.Limits{Version: set.Version()}})
	}
	if err := p.options.Bus.PublishLimits(ctx, redisbus.PublishedLimits{Version: set.Version(), File: set.Source(), Overrides: set.EncodedOverrides()}); err != nil {
		return err
	}
	p.options.Logger.Info("limits published", slog.String("version", set.Version()), slog.Int("users", set.UserCount()))
	return nil
}
