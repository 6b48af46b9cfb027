package agent

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

// series are the values of a counter's labels, of which the first is the tier; "" of those that it does not have.
type series [3]string

func outcome(tier, verdict, limit string) series { return series{tier, verdict, limit} }

// byTier counts requests, or what they cost, by their user's tier. It remembers the counters, because
// every request looks for one.
type byTier struct {
	counters *prometheus.CounterVec
	labels   int // that it has, as many of series

	mu   sync.Mutex // held while seen is replaced
	seen atomic.Pointer[map[series]*tierCounter]
}

type tierCounter struct {
	prometheus.Counter
	since atomic.Int64 // what was counted since the last take
}

func newByTier(counters *prometheus.CounterVec, labels int) *byTier {
	b := &byTier{counters: counters, labels: labels}
	b.seen.Store(&map[series]*tierCounter{})
	return b
}

func (b *byTier) count(of series) { b.add(of, 1) }

// add counts n requests, or so much of what they cost.
func (b *byTier) add(of series, n int64) { b.addTo(nil, of, n) }

// addTo counts n requests that are of counts, which were taken before, if these are not nil.
func (b *byTier) addTo(counts map[series]int64, of series, n int64) {
	// Without a lock: every request comes here, and hardly any is the first of its series.
	c, ok := (*b.seen.Load())[of]
	if !ok {
		c = b.firstCounter(of)
	}
	c.Add(float64(n))
	if counts == nil {
		c.since.Add(n)
	} else {
		counts[of] += n
	}
}

// takeCounts is what was counted since the last call, of each of the series.
func (b *byTier) takeCounts() map[series]int64 {
	counts := map[series]int64{}
	for of, c := range *b.seen.Load() {
		// What is counted meanwhile is of the next call: nothing is lost, and nothing counted twice.
		if n := c.since.Swap(0); n > 0 {
			counts[of] = n
		}
	}
	return counts
}

// firstCounter is the counter of what has not come up before.
func (b *byTier) firstCounter(of series) *tierCounter {
	b.mu.Lock()
	defer b.mu.Unlock()
	seen := *b.seen.Load()
	// The bound is of what a limit file can make up. All that is beyond it still counts, in one series.
	if _, known := seen[of]; !known && len(seen) >= maxByTier {
		of = series{otherTier, of[1], ""}
	}
	// Another request may have been first while this one waited for the lock.
	if c, ok := seen[of]; ok {
		return c
	}
	// Whoever reads the old map goes on with it: it never changes.
	more := maps.Clone(seen)
	more[of] = &tierCounter{Counter: b.counters.WithLabelValues(of[:b.labels]...)}
	b.seen.Store(&more)
	return more[of]
}
