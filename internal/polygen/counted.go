package polygen

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/internal/bus"
	"github.com/sluice-qos/sluice/internal/clock"
	"github.com/sluice-qos/sluice/pkg/limits"
)

const (
	// toldAfter is how long after the end of a second all instances have reported it that did
	// not stand still: see reportWithin of internal/spoa.
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

// recountAfter are the ages, in seconds, at which the bucket of a second is read. An agent
// that was stopped, or whose Redis was, tells of it later than others: see maxUnsent of
// internal/spoa. The bucket is kept for longer than the last of them and maxCountedBehind.
var recountAfter = [...]int64{0, 4, 20}

// recount adds up the events of each second by tier, also those that come late. The zero
// value has counted nothing. It is for one goroutine.
type recount struct {
	next    [len(recountAfter)]int64 // the second to read next at each age; 0 before the first one
	counted map[int64]map[string]bus.EventsOf
}

// growth reads the seconds that are due and returns, by tier, what they have more than when
// they were read before. What is read before an error counts.
func (r *recount) growth(last int64, read func(second int64) ([]bus.EventsOf, error)) (growth []bus.EventsOf, err error) {
	for age, after := range recountAfter {
		last := last - after
		next := &r.next[age]
		for *next = max(*next, last+1-maxCountedBehind); *next <= last; *next++ {
			tiers, err := read(*next)
			// This second is read with the next ones. What has grown before it counts, for it is not read again.
			if err != nil {
				return growth, err
			}
			for _, of := range tiers {
				if more := r.growthOf(*next, of); more.Ends > 0 || len(more.Classes) > 0 {
					growth = append(growth, more)
				}
			}
		}
	}
	for second := range r.counted {
		// Read at the last age: nobody compares with it any more.
		if second < r.next[len(r.next)-1] {
			delete(r.counted, second)
		}
	}
	return growth, nil
}

// startAfter has counted all seconds up to this one.
func (r *recount) startAfter(last int64) {
	for age := range r.next {
		r.next[age] = last + 1
	}
	r.counted = map[int64]map[string]bus.EventsOf{}
}

// growthOf returns what a tier's events of a second have more than was counted.
func (r *recount) growthOf(second int64, of bus.EventsOf) bus.EventsOf {
	before := r.counted[second][of.Name]
	if r.counted[second] == nil {
		r.counted[second] = map[string]bus.EventsOf{}
	}
	r.counted[second][of.Name] = of
	// A bucket may have less than before, when Redis fell back to a replica that lagged. Counters only grow.
	more := bus.EventsOf{Name: of.Name, Ends: max(0, of.Ends-before.Ends)}
	for _, class := range of.Classes {
		for _, counted := range before.Classes {
			if counted.Class == class.Class {
				class.Starts -= counted.Starts
			}
		}
		if class.Starts > 0 {
			more.Classes = append(more.Classes, class)
		}
	}
	return more
}

// countEvents adds up what all instances have reported of each second, by tier, until ctx ends.
func (p *Polygen) countEvents(ctx context.Context) error {
	var seconds recount
	tiers := map[string]bool{}
	for {
		now := p.clock.Now()
		if !clock.Sleep(ctx, now.Add(-toldAfter).Truncate(time.Second).Add(time.Second+toldAfter).Sub(now)) {
			return nil
		}
		last := p.lastTold()
		// Only the polygen that leads counts: a sum over several would have each request twice. A new
		// leader begins with the next second, for the one before it has counted the others.
		// A next second far ahead means that the clock was set back.
		if next := seconds.next[0]; !p.leadsAndSends() || next == 0 || next > last+1 {
			seconds.startAfter(last)
			continue
		}
		events, err := seconds.growth(last, func(second int64) ([]bus.EventsOf, error) {
			return p.options.Bus.TierEvents(ctx, second)
		})
		if err != nil && ctx.Err() == nil {
			p.options.Logger.Debug("starts and ends not read", slog.Any("error", err))
		}
		for _, of := range events {
			p.metrics.countEvents(tiers, of)
		}
	}
}

// lastTold is the last second that all instances have reported.
func (p *Polygen) lastTold() int64 { return p.clock.Now().Add(-toldAfter).Unix() - 1 }

// countEvents adds a tier's events to the metrics.
func (m *metrics) countEvents(tiers map[string]bool, of bus.EventsOf) {
	tier := of.Name
	// Limit files change, and the series of a tier that is gone stays until the process ends.
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
// The error is a api.ErrUnavailable if Redis does not answer.
func (p *Polygen) Events(ctx context.Context, name string) (api.Events, error) {
	out, err := p.EventsOfKey(ctx, limits.KeyOf(name))
	if err == nil {
		out.Name = api.NameOfUser(name)
	}
	return out, err
}

// EventsOfKey is Events, by the key that the cluster knows the user by.
func (p *Polygen) EventsOfKey(ctx context.Context, key string) (api.Events, error) {
	// Not up to now: a second that some instances have not told of yet would look like a dip.
	end := p.lastTold()
	seconds := make([]int64, eventSeconds)
	for i := range seconds {
		seconds[i] = end - eventSeconds + 1 + int64(i)
	}
	all, err := p.options.Bus.UserEvents(ctx, key, seconds)
	if err != nil {
		return api.Events{}, fmt.Errorf("%w: %w", api.ErrUnavailable, err)
	}
	out := api.Events{From: p.answerHead(), Name: api.NameOfKey(key), Begin: seconds[0], Step: 1, Started: []api.ClassEvents{}, Ended: make([]int64, eventSeconds)}
	// Each second apart, and nothing is computed from it: docs/events.md says why no limit is decided by starts and ends.
	for i, of := range all {
		out.Ended[i] = of.Ends
		for _, c := range of.Classes {
			out.AddStarts(i, c.Class, c.Starts)
		}
	}
	return out, nil
}
