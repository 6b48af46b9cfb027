package jobs

import (
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// logInterval is the least time between two log lines of the same operation.
const logInterval = 10 * time.Second

// failureLog counts failures, and keeps those that repeat from filling the log.
type failureLog struct {
	log    *slog.Logger
	errors *prometheus.CounterVec // by operation

	mu   sync.Mutex
	last map[string]time.Time // when one was logged, by operation
}

// report counts a failure, and logs it once in a while.
func (l *failureLog) report(operation, message string, err error) {
	l.errors.WithLabelValues(operation).Inc()
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	// An outage fails many calls a second, all for the same reason.
	if now.Sub(l.last[operation]) < logInterval {
		return
	}
	if l.last == nil {
		l.last = map[string]time.Time{}
	}
	l.last[operation] = now
	l.log.Warn(message, slog.Any("error", err)) //nolint:sloglint // constant at all its callers
}
