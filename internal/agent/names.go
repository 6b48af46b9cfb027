package agent

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-qos/sluice/pkg/quota"
)

const (
	// nameSpan is how long a user whom the limit file does not name must be away, at
	// least, before another one may take the place. A window of an hour sees the places
	// taken eight times at most, which bounds what Redis holds of it.
	nameSpan = 10 * time.Minute
	// tellEvery is how often the log tells that names are beyond the quota, at most.
	tellEvery = time.Minute
)

// names are the users whom the limit file does not name exactly, as many as are counted
// each for themselves. It is safe for concurrent use.
type names struct {
	metrics *metrics

	most   int
	beyond atomic.Uint64 // questions about users beyond the quota

	mu    sync.Mutex
	quota *quota.Names

	// Of the heartbeats alone:
	told   uint64 // that the log knows of
	toldAt time.Time
}

func newNames(most int, m *metrics) *names {
	m.unknownMax.Set(float64(most))
	return &names{metrics: m, quota: quota.New(most, nameSpan), most: most}
}

func (n *names) hasPlace(now time.Time, key string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.quota.Own(now, key)
}

// takePlace is hasPlace, of a request, which is counted if it shares limits.
func (n *names) takePlace(now time.Time, key string) bool {
	if n.hasPlace(now, key) {
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
	known := n.quota.Len()
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
