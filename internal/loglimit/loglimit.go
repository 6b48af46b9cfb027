// Package loglimit keeps a failure that comes again and again from filling the log. Its
// counters have every case; the log has one of them at a time, and how many it left out.
package loglimit

import (
	"sync"
	"time"
)

// Interval is the least time between two lines about the same failure.
const Interval = 10 * time.Second

// A Limit lets one log line through every Interval. The zero Limit lets the first one
// through. It is safe for concurrent use.
type Limit struct {
	mu      sync.Mutex // guards what follows
	next    time.Time
	skipped int
}

// Allow reports whether to log now, and how many times it said no since the last line.
func (l *Limit) Allow() (skipped int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if now.Before(l.next) {
		l.skipped++
		return 0, false
	}
	skipped = l.skipped
	l.next, l.skipped = now.Add(Interval), 0
	return skipped, true
}
