package polygen

import (
	"context"
	"fmt"
	"time"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/internal/daemon"
	"github.com/sluice-qos/sluice/internal/redisbus"
)

const (
	// toldAfter is how long after the end of a second all instances have reported it that did
	// not stand still: see reportWithin of internal/agent.
	toldAfter = 900 * time.Millisecond
	// countedLater is how many seconds later than that a second is counted: a report may be late whose
	// agent, or Redis, stood still.
	countedLater = 4
	// maxCountedBehind is how many seconds are counted later after a pause of this process or
	// of Redis. Earlier ones are missing in the counters.
	maxCountedBehind = 30
	// maxCountedTiers bounds the series. Further tiers count as otherTier.
	maxCountedTiers = 200
	otherTier       = "other"
	// eventSeconds is how many seconds an answer of Events has.
	eventSeconds = 50
)

// countEvents adds up what all instances have reported of each second, by tier, until ctx ends.
func (p *Polygen) countEvents(ctx context.Context) error {
	next := int64(0) // the second to count next; 0 before the first one
	tiers := map[string]bool{}
	for {
		now := p.clock.Now()
		if !daemon.Sleep(ctx, now.Add(-toldAfter).Truncate(time.Second).Add(time.Second+toldAfter).Sub(now)) {
			return nil
		}
		last := p.lastTold() - countedLater
		// Only the leader counts, so that a sum over polygens has each request once. A next second far ahead means that the
		// clock was set back.
		if !p.leads() || next == 0 || next > last+1 {
			next = last + 1
			continue
		}
		for next = max(next, last+1-maxCountedBehind); next <= last; next++ {
			events, err := p.options.Bus.TierEvents(ctx, next)
			if err != nil {
				break // this second is read with the next one
			}
			for _, of := range events {
				p.metrics.countEvents(tiers, of)
			}
		}
	}
}

func (p *Polygen) lastTold() int64 { return p.clock.Now().Add(-toldAfter).Unix() - 1 }

func (m *metrics) countEvents(tiers map[string]bool, of redisbus.EventsOf) {
	tier := of.Name
	// Limit files change, and the series of a tier that is gone stays until the process ends.
	if !tiers[tier] && len(tiers) >= maxCountedTiers {
		tier = otherTier
	}
	tiers[tier] = true
	for _, c := range of.Classes {
		m.clusterStarted.WithLabelValues(tier, c.Class).Add(float64(c.Starts))
		m.clusterRefused.WithLabelValues(tier, c.Class).Add(float64(c.Refused))
	}
	m.clusterEnded.WithLabelValues(tier).Add(float64(of.Ends))
}

// Events returns what started, was refused and ended of a user in the last seconds. The error is an api.ErrUnavailable if Redis does not
// answer.
func (p *Polygen) Events(ctx context.Context, who api.Who) (api.Events, error) {
	end := p.lastTold()
	seconds := make([]int64, eventSeconds)
	for i := range seconds {
		seconds[i] = end - eventSeconds + 1 + int64(i)
	}
	all, err := p.options.Bus.UserEvents(ctx, who.Key(), seconds)
	if err != nil {
		return api.Events{}, fmt.Errorf("%w: %w", api.ErrUnavailable, err)
	}
	out := api.Events{From: p.answerHead(), Name: who.Name(), Begin: seconds[0], Step: 1, Started: []api.ClassEvents{}, Refused: []api.ClassEvents{}, Ended: make([]int64, eventSeconds)}
	for i, of := range all {
		out.Ended[i] = of.Ends
		for _, c := range of.Classes {
			out.Add(i, c.Class, c.Starts, c.Refused)
		}
	}
	return out, nil
}
