package polygen

import (
	"context"
	"log/slog"
	"time"

	"github.com/sluice-qos/sluice/internal/loglimit"
	"github.com/sluice-qos/sluice/internal/policy"
	"github.com/sluice-qos/sluice/pkg/limits"
)

// announceEvery is how often the version of the limits is repeated, for agents that
// missed it, and how often Redis is asked whether it still has the limits.
const announceEvery = time.Second

// wantPublication has publishLimits look soon. It never waits.
func (p *Polygen) wantPublication() {
	select {
	case p.publish <- struct{}{}:
	default: // it is going to look anyway
	}
}

// publishLimits puts the limits into Redis when they change or Redis has
// forgotten them, and repeats their version for agents that missed it.
func (p *Polygen) publishLimits(ctx context.Context) error {
	announce := time.NewTicker(announceEvery)
	defer announce.Stop()
	var failures loglimit.Limit
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-p.publish:
		case <-announce.C:
		}
		// Before the overrides by hand are read, the limits would be published without them.
		if !p.leading.Load() || !p.overrides.read.Load() {
			continue
		}
		set := p.set.Load()
		err := p.ensurePublished(ctx, set)
		if err == nil || ctx.Err() != nil || p.cutOff() != nil { // the loss of Redis has a line of its own
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
	case kept: // nearly always: the version is enough for agents that missed it, which then read the limits
		return p.options.Bus.PublishPolicies(ctx, []policy.Message{policy.Limits{Version: set.Version()}})
	}
	began := time.Now()
	err = p.options.Bus.PublishLimits(ctx, set.Version(), set.Source())
	p.tracePublication(ctx, began, set, err)
	if err != nil {
		return err
	}
	p.options.Logger.Info("limits published", slog.String("version", set.Version()), slog.Int("users", set.UserCount()))
	return nil
}
