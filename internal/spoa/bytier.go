package spoa

import (
	"maps"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	// maxByTier bounds the series of requests by tier: what comes up beyond it counts
	// for otherTier, lest a limit file with a tier for each user fill Prometheus.
	maxByTier = 1000
	otherTier = "other"
)

// outcome is what became of a request.
type outcome struct{ tier, verdict, limit string }

// byTier counts requests by their user's tier. It remembers the counters, because
// every request looks for one.
type byTier struct {
	counters *prometheus.CounterVec // tier, verdict, limit

	mu   sync.Mutex // held while seen is replaced
	seen atomic.Pointer[map[outcome]prometheus.Counter]
}

func newByTier(counters *prometheus.CounterVec) *byTier {
	b := &byTier{counters: counters}
	b.seen.Store(&map[outcome]prometheus.Counter{})
	return b
}

func (b *byTier) count(o outcome) {
	if c, ok := (*b.seen.Load())[o]; ok {
		c.Inc()
		return
	}
	b.first(o).Inc()
}

// first is the counter of what has not come up before.
func (b *byTier) first(o outcome) prometheus.Counter {
	b.mu.Lock()
	defer b.mu.Unlock()
	seen := *b.seen.Load()
	if c, ok := seen[o]; ok {
		return c
	}
	if len(seen) >= maxByTier {
		// Not remembered: what it is not must not fill the memory either.
		return b.counters.WithLabelValues(otherTier, o.verdict, "")
	}
	more := maps.Clone(seen)
	more[o] = b.counters.WithLabelValues(o.tier, o.verdict, o.limit)
	b.seen.Store(&more)
	return more[o]
}
