package agent

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/quota"
)

// tellEvery is how often the log tells that names are beyond the quota, at most.
const tellEvery = time.Minute

// nameSpan is how long a user whom the limit file does not name must be away, at least, before
// another one may take the place: ten minutes, or a sixth of the longest window of the user's
// limits. A window sees the places taken eight times at most, which bounds what Redis holds of it.
func nameSpan(longest limits.Window) time.Duration {
	return time.Duration(max(limits.Hour, longest).Seconds()) * time.Second / 6
}

// names are the users whom the limit file does not name exactly, as many as are counted
// each for themselves. It is safe for concurrent use.
type names struct {
	metrics *metrics

	most   int
	beyond atomic.Uint64 // questions about users beyond the quota

	mu     sync.Mutex
	quotas [len(limits.Windows)]*quota.Names // by the longest window of a user's limits, from an hour on

	// Of the heartbeats alone:
	told   uint64 // that the log knows of
	toldAt time.Time
}

func newNames(most int, m *metrics) *names {
	m.unknownMax.Set(float64(most))
	n := &names{metrics: m, most: most}
	for w := limits.Hour; int(w) < len(n.quotas); w++ {
		n.quotas[w] = quota.New(most, nameSpan(w))
	}
	return n
}

func (n *names) hasPlace(now time.Time, key string, of *limits.Limits) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.quotas[max(limits.Hour, of.Longest())].Own(now, key)
}

// takePlace is hasPlace, of a request, which is counted if it shares limits.
func (n *names) takePlace(now time.Time, key string, of *limits.Limits) bool {
	if n.hasPlace(now, key, of) {
		return true
	}
	// Beyond the quota the request is judged all the same, by limits that all such users share.
	n.metrics.sharing.Inc()
	n.beyond.Add(1)
	return false
}

func (n *names) logShared(now time.Time, log *slog.Logger) {
	beyond := n.beyond.Load()
	n.mu.Lock()
	known := 0
	for _, q := range n.quotas[limits.Hour:] {
		known += q.Len()
	}
	n.mu.Unlock()
	n.metrics.unknown.Set(float64(known))
	// Somebody who makes up names must not be able to fill the log as well.
	if beyond == n.told || now.Sub(n.toldAt) < tellEvery {
		return
	}
	log.Warn("more users than the quota whom the limit file does not name: those beyond it share the limits of one",
		slog.Int("quota", n.most), slog.Uint64("requests", beyond-n.told))
	n.told, n.toldAt = beyond, now
}
