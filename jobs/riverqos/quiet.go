package riverqos

import (
	"log/slog"
	"sync"
	"time"
)

// loud is the least time between two log lines of the same operation.
const loud = 10 * time.Second

// quiet keeps repeated failures from filling the log.
type quiet struct {
	mu   sync.Mutex
	last map[string]time.Time // by operation
}

func (q *quiet) may(op string, now time.Time) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if now.Sub(q.last[op]) < loud {
		return false
	}
	if q.last == nil {
		q.last = map[string]time.Time{}
	}
	q.last[op] = now
	return true
}

// failed counts a failure, and logs it once in a while.
func (f *Fairness) failed(op, message string, err error) {
	f.metrics.Errors.WithLabelValues(op).Inc()
	if f.quiet.may(op, time.Now()) {
		f.log.Warn(message, slog.Any("error", err)) //nolint:sloglint // constant at all its callers
	}
}
