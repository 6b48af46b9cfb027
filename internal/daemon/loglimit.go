package daemon

import (
	"sync"
	"time"
)

// LogInterval is the least time between two lines about the same failure.
const LogInterval = 10 * time.Second

// A LogLimit lets one log line through every LogInterval, so that a failure that comes again and again does not fill the
// log. The zero LogLimit lets the first one
// through. It is safe for concurrent use.
type LogLimit struct {
	mu      sync.Mutex // guards what follows
	next    time.Time
	skipped int
}

// Allow reports whether to log now, and how many times it said no since the last line.
func (l *LogLimit) Allow() (skipped int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if now.Before(l.next) {
		l.skipped++
		return 0, false
	}
	skipped = l.skipped
	l.next, l.skipped = now.Add(LogInterval), 0
	return skipped, true
}
