package polygen

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/sluice-qos/sluice/internal/bus"
	"github.com/sluice-qos/sluice/internal/polygen/view"
	"github.com/sluice-qos/sluice/pkg/limits"
)

const (
	// toldAfter is how long after the end of a second all instances have reported it: see
	// reportWithin of internal/spoa.
	toldAfter = 900 * time.Millisecond
	// maxCountedBehind is how many seconds are counted later after a pause of this process or
	// of Redis. Earlier ones are missing in the counters.
	maxCountedBehind = 30
	// maxCountedTiers bounds the series. Further tiers count as otherTier.
	maxCountedTiers = 200
	otherTier       = "other"
	// eventSeconds is how many seconds an answer of Events has.
	eventSeconds = 50
)

// count adds up what all instances have reported of each second, by tier, until ctx ends.
// Only the polygen that leads does so: a sum over several would count requests twice.
func (p *Polygen) count(ctx context.Context) error {
	next := int64(0) // the second to count next; 0 before the first one
	tiers := map[string]bool{}
	for {
		now := p.clock.Now()
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(now.Add(-toldAfter).Truncate(time.Second).Add(time.Second + toldAfter).Sub(now)):
		}
		last := p.lastTold()
		// A new leader begins with the next second: the one before it has counted the others.
		// A next second far ahead means that the clock was set back.
		if !p.leads() || next == 0 || next > last+1 {
			next = last + 1
			continue
		}
		for next = max(next, last+1-maxCountedBehind); next <= last; next++ {
			events, err := p.options.Bus.TierEvents(ctx, next)
			if err != nil {
				if ctx.Err() == nil {
					p.options.Logger.Debug("starts and ends not read", slog.Any("error", err))
				}
				break // this second is counted with the next ones
			}
			for _, of := range events {
				p.metrics.counted(tiers, of)
			}
		}
	}
}

// lastTold is the last second that all instances have reported.
func (p *Polygen) lastTold() int64 { return p.clock.Now().Add(-toldAfter).Unix() - 1 }

// counted adds a tier's events to the metrics.
func (m *metrics) counted(tiers map[string]bool, of bus.EventsOf) {
	tier := of.Name
	if !tiers[tier] && len(tiers) >= maxCountedTiers {
		tier = otherTier
	}
	tiers[tier] = true
	for _, c := range of.Classes {
		m.clusterStarted.WithLabelValues(tier, c.Class).Add(float64(c.Starts))
	}
	m.clusterEnded.WithLabelValues(tier).Add(float64(of.Ends))
}

// Events returns what started and ended of a user, by their name, in the last seconds.
// The error is a view.ErrUnavailable if Redis does not answer.
func (p *Polygen) Events(ctx context.Context, name, endpoint string) (view.Events, error) {
	set := p.set.Load()
	key, _ := p.find(set, name, endpoint)
	out, err := p.EventsOfKey(ctx, key, endpoint)
	if err == nil && !hides(set, name) {
		out.Name = view.Name{User: name, Endpoint: endpoint, Href: view.Path(name, endpoint)}
	}
	return out, err
}

// EventsOfKey is Events, by the key that the cluster knows the user by.
func (p *Polygen) EventsOfKey(ctx context.Context, key, endpoint string) (view.Events, error) {
	set, wire := p.set.Load(), limits.EndpointKey(endpoint, key)
	end := p.lastTold()
	seconds := make([]int64, eventSeconds)
	for i := range seconds {
		seconds[i] = end - eventSeconds + 1 + int64(i)
	}
	all, err := p.options.Bus.UserEvents(ctx, wire, set.ClassNames(), seconds)
	if err != nil {
		return view.Events{}, fmt.Errorf("%w: %w", view.ErrUnavailable, err)
	}
	out := view.Events{From: p.from(), Name: view.NameOfKey(wire), Begin: seconds[0], Step: 1, Started: []view.ClassEvents{}, Ended: make([]int64, eventSeconds)}
	for i, of := range all {
		out.Ended[i] = of.Ends
		for _, c := range of.Classes {
			out.Start(i, c.Class, c.Starts)
		}
	}
	return out, nil
}
