package polygen

import (
	"context"
	"errors"
	"log/slog"
	"sync"
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

// division is which parts of the users this polygen decides about.
type division struct {
	mu sync.Mutex
	of *parts.Division
}

// mine are the parts that are this polygen's at a time of this machine's clock.
func (d *division) mine(now time.Time) parts.Set {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.of.Mine(now)
}

// kept are the parts that this polygen knows of.
func (d *division) kept() parts.Set {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.of.Kept()
}

func (d *division) ask(now time.Time) parts.Ask {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.of.Ask(now)
}

func (d *division) take(sent time.Time, a parts.Answer) (again bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.of.Take(sent, a)
}

func (d *division) drop() parts.Ask {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.of.Drop()
}

// keepLeading tries to become, and to remain, the polygen that leads, and to have its share of the parts.
func (p *Polygen) keepLeading(ctx context.Context, events chan<- bus.Event) error {
	ticker := time.NewTicker(renewEvery)
	defer ticker.Stop()
	for {
		if err := p.renewLead(ctx); err != nil {
			return err
		}
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
	began := time.Now()
	leading, err := p.askForLead(ctx)
	p.metrics.parts.Set(float64(p.division.mine(time.Now()).Len()))
	switch {
	case errors.Is(err, bus.ErrShards):
		return err // a mistake in the configuration, which ends this process
	case err != nil:
		p.metrics.lost.Set(1)
		p.metrics.leading.Set(0) // it cannot send anything, and another one may lead
		if before := p.lost.Swap(&err); (before == nil || before == &errNotAsked) && ctx.Err() == nil {
			p.options.Logger.Warn("redis cannot be reached: no policies are sent", slog.Any("error", err))
		}
		return nil // the leader of before goes on: two leaders only say the same twice
	}
	// Windows begin by Redis' clock, so polygen follows it.
	sent := time.Now()
	if now, err := p.options.Bus.Time(ctx); err == nil {
		p.clock.Sample(sent, time.Now(), now)
	}
	p.metrics.lost.Set(0)
	if before := p.lost.Swap(nil); before != nil && before != &errNotAsked {
		p.options.Logger.Info("redis is back")
		p.wantPublication()
	}
	if leading != p.leading.Swap(leading) {
		p.options.Logger.Info("leadership changed", slog.Bool("leading", leading))
		p.traceLead(ctx, began, leading)
		p.wantPublication() // the new leader's file may be another one
	}
	p.metrics.leading.Set(map[bool]float64{true: 1}[leading])
	return nil
}

// askForLead asks for the lead and for parts, once more if the answer says that others should have more, or
// this polygen could.
func (p *Polygen) askForLead(ctx context.Context) (leading bool, err error) {
	for range 2 {
		sent := time.Now()
		lead, err := p.options.Bus.Lead(ctx, p.candidacy(p.division.ask(sent)))
		if err != nil {
			return false, err
		}
		leading = lead.Leader == p.candidate
		p.others.set(p.candidate, lead.Polygens)
		if !p.division.take(sent, lead.Answer) {
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
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if err := p.options.Bus.Resign(last, p.candidacy(p.division.drop())); err != nil {
		p.options.Logger.Warn("could not resign: another takes over when the lead has lapsed", slog.Any("error", err))
	}
}
