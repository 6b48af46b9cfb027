package polygen

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/internal/redisbus"
)

const (
	// leadFor is how long a polygen leads without renewing, and renewEvery how often it renews and standbys ask for the lead:
	// a standby takes over within leadFor + renewEvery.
	leadFor    = 2 * time.Second
	renewEvery = 500 * time.Millisecond
)

// lead is what a polygen knows of who leads. The zero value is before the first answer.
type lead struct {
	leader redisbus.Leader
	until  time.Time // until when this polygen leads without another answer; zero if another one does
}

// leads reports whether this polygen leads. It is safe for concurrent use.
func (p *Polygen) leads() bool {
	// By this machine's clock, from when the lease was asked for: Redis counts from later on, and gives the lead to nobody before.
	l := p.lead.Load()
	return l != nil && time.Now().Before(l.until)
}

// Leader is the polygen that answers questions and takes overrides, unless this one does.
func (p *Polygen) Leader() (l api.Leader, other bool) {
	// Without Redis it is not known, and what this one knows is better than no answer.
	known := p.lead.Load()
	if known == nil || known.leader.Name == p.candidate || p.lost.Load() != nil {
		return api.Leader{}, false
	}
	return api.Leader{Name: baseName(known.leader.Name), Address: known.leader.Address}, true
}

// keepLeading tries to become, and to remain, the polygen that leads. It fails if the processes of the cluster are
// configured differently.
func (p *Polygen) keepLeading(ctx context.Context, events chan<- redisbus.Event) error {
	ticker := time.NewTicker(renewEvery)
	defer ticker.Stop()
	for {
		if err := p.renewLead(ctx); err != nil {
			return err
		}
		// Asked for, although each change is published: a message may be lost, and an instance that died says
		// nothing.
		if r, err := p.options.Bus.Instances(ctx); err == nil {
			pass(ctx, events, r)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

func (p *Polygen) renewLead(ctx context.Context) error {
	sent := time.Now()
	leader, err := p.options.Bus.Lead(ctx, redisbus.Leader{Name: p.candidate, Address: p.options.Address}, leadFor)
	switch {
	case errors.Is(err, redisbus.ErrShards):
		// No attempt after this one would succeed, and keys of users on two numbers of shards count apart: each user
		// would have their limits twice. So this process ends.
		return err
	case err != nil:
		p.metrics.lost.Set(1)
		p.metrics.leading.Set(0)
		if before := p.lost.Swap(&err); before == nil && ctx.Err() == nil {
			p.options.Logger.Warn("redis cannot be reached: no policies are sent", slog.Any("error", err))
		}
		return nil
	}
	// Windows begin by Redis' clock, so polygen follows it.
	asked := time.Now()
	if now, err := p.options.Bus.Time(ctx); err == nil {
		p.clock.Sample(asked, time.Now(), now)
	}
	p.metrics.lost.Set(0)
	if before := p.lost.Swap(nil); before != nil {
		p.options.Logger.Info("redis is back")
		// It may have been restarted without what it had, and an agent that comes back first would find no limits.
		p.wantPublication()
	}
	p.takeLead(leader, sent)
	return nil
}

// takeLead takes the answer to a request for the lead that was sent at a time.
func (p *Polygen) takeLead(leader redisbus.Leader, sent time.Time) {
	now := lead{leader: leader}
	leading := leader.Name == p.candidate
	if leading {
		now.until = sent.Add(leadFor)
	}
	before := p.lead.Swap(&now)
	p.metrics.leading.Set(map[bool]float64{true: 1}[leading])
	if before != nil && before.leader.Name == leader.Name {
		return
	}
	p.options.Logger.Info("leadership changed", slog.Bool("leading", leading), slog.String("leader", leader.Name))
	if leading {
		// The last leader may have set overrides since this one looked, and published another file.
		p.overrides.read.Store(false)
		select {
		case p.overrides.look <- struct{}{}:
		default:
		}
	}
}

// resign lets another polygen lead at once, not only after leadFor.
func (p *Polygen) resign(ctx context.Context) {
	p.lead.Store(nil)
	// Run's context has ended. A Redis that does not answer must not hold up the end of the process for long: then
	// the lease lapses.
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if err := p.options.Bus.Resign(last, p.candidate); err != nil {
		p.options.Logger.Warn("could not resign: another takes over when the lead has lapsed", slog.Any("error", err))
	}
}
