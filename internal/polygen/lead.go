package polygen

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/sluice-qos/sluice/internal/bus"
	"github.com/sluice-qos/sluice/internal/parts"
)

const (
	// leadFor is how long a polygen leads, and decides about its parts, without renewing, and renewEvery how
	// often it renews: others take over within leadFor + renewEvery.
	leadFor    = 2 * time.Second
	renewEvery = 500 * time.Millisecond
)

// keepLeading tries to become, and to remain, the polygen that leads, and to have its share of the parts. It fails
// if the processes of the cluster are configured differently.
func (p *Polygen) keepLeading(ctx context.Context, events chan<- bus.Event, heardShards chan<- []int) error {
	ticker := time.NewTicker(renewEvery)
	defer ticker.Stop()
	var heard []int
	for {
		if err := p.renewLead(ctx); err != nil {
			return err
		}
		// At once, for of parts that are new here nothing is known before.
		if now := p.division.HeardShards(); !slices.Equal(now, heard) {
			heard = now
			select {
			case heardShards <- heard:
			case <-ctx.Done():
			}
		}
		// Asked for, although each change is published: a message may be lost, and an instance that died says
		// nothing.
		if r, err := p.options.Bus.Instances(ctx); err == nil {
			select {
			case events <- r:
			case <-ctx.Done():
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

func (p *Polygen) renewLead(ctx context.Context) error {
	leading, err := p.askForLead(ctx)
	p.metrics.parts.Set(float64(p.division.DecidedParts(time.Now()).Len()))
	p.metrics.learning.Set(float64(p.learningParts().Len()))
	switch {
	case errors.Is(err, bus.ErrShards):
		// No attempt after this one would succeed, and keys of users on two numbers of shards count apart: each user
		// would have their limits twice. So this process ends.
		return err
	case err != nil:
		p.metrics.lost.Set(1)
		// It cannot send anything, and another one may lead by now. It goes on as what it was all the same: what it
		// decides lapses with its leases, and two leaders only say the same twice.
		p.metrics.leading.Set(0)
		if before := p.lost.Swap(&err); (before == nil || before == &errNotAsked) && ctx.Err() == nil {
			p.options.Logger.Warn("redis cannot be reached: no policies are sent", slog.Any("error", err))
		}
		return nil
	}
	// Windows begin by Redis' clock, so polygen follows it.
	sent := time.Now()
	if now, err := p.options.Bus.Time(ctx); err == nil {
		p.clock.Sample(sent, time.Now(), now)
	}
	p.metrics.lost.Set(0)
	if before := p.lost.Swap(nil); before != nil && before != &errNotAsked {
		p.options.Logger.Info("redis is back")
		// It may have been restarted without what it had, and an agent that comes back first would find no limits.
		p.wantPublication()
	}
	if leading != p.leading.Swap(leading) {
		p.options.Logger.Info("leadership changed", slog.Bool("leading", leading))
		// The new leader's file may be another one than that which the last one published.
		p.wantPublication()
	}
	p.metrics.leading.Set(map[bool]float64{true: 1}[leading])
	return nil
}

// askForLead asks for the lead and for parts.
func (p *Polygen) askForLead(ctx context.Context) (leading bool, err error) {
	// An ask goes by what the answer before it said of the others. So a second one at once gives a new polygen its
	// part, or takes that of one that died, half a second sooner. A third one would find what the second left.
	for range 2 {
		sent := time.Now()
		lead, err := p.options.Bus.Lead(ctx, p.candidacy(p.division.NextAsk(sent)))
		if err != nil {
			return false, err
		}
		leading = lead.Leader == p.candidate
		// From the same answer as the parts: whoever may know of a user is asked.
		p.others.setNames(p.candidate, lead.Polygens)
		if !p.division.TakeAnswer(sent, lead) {
			break
		}
	}
	return leading, nil
}

func (p *Polygen) candidacy(ask parts.Ask) bus.Candidacy {
	return bus.Candidacy{Name: p.candidate, For: leadFor, Ask: ask}
}

// resign lets others lead and decide at once, not only after leadFor.
func (p *Polygen) resign(ctx context.Context) {
	// Run's context has ended. A Redis that does not answer must not hold up the end of the process for long: then
	// the leases lapse.
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if err := p.options.Bus.Resign(last, p.candidacy(p.division.DropAll())); err != nil {
		p.options.Logger.Warn("could not resign: another takes over when the lead has lapsed", slog.Any("error", err))
	}
}
