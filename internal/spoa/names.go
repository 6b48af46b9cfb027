package spoa

import (
	"log/slog"
	"sync"
	"time"

	"github.com/sluice-qos/sluice/pkg/limits"
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

	mu     sync.Mutex
	quota  *quota.Names
	most   int
	beyond uint64 // questions about users beyond the quota

	// Of the heartbeats alone:
	told   uint64 // that the log knows of
	toldAt time.Time
}

func newNames(most int, m *metrics) *names {
	m.unknownMax.Set(float64(most))
	return &names{metrics: m, quota: quota.New(most, nameSpan), most: most}
}

// own reports whether the user of a key is counted for themselves. At all endpoints
// together they are one of the quota.
func (n *names) own(now time.Time, key string) bool {
	_, user := limits.SplitEndpoint(key)
	n.mu.Lock()
	own := n.quota.Own(now, user)
	if !own {
		n.beyond++
	}
	n.mu.Unlock()
	if !own {
		n.metrics.sharing.Inc()
	}
	return own
}

// tell logs now and then that users share limits.
func (n *names) tell(now time.Time, log *slog.Logger) {
	n.mu.Lock()
	beyond, known := n.beyond, n.quota.Len()
	n.mu.Unlock()
	n.metrics.unknown.Set(float64(known))
	if beyond == n.told || now.Sub(n.toldAt) < tellEvery {
		return
	}
	log.Warn("more users than the quota whom the limit file does not name: those beyond it share the limits of one",
		slog.Int("quota", n.most), slog.Uint64("requests", beyond-n.told))
	n.told, n.toldAt = beyond, now
}
