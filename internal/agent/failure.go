package agent

import "time"

// failureTimes decides when the log hears of something that is tried again and again. The
// metrics have every failure. It is for one goroutine. The zero one warns at once.
type failureTimes struct {
	quiet   time.Time // until when failures are not logged
	failing bool      // one was logged, and nothing has gone well since
}

// afterStart warns of nothing before HAProxy has had time to start.
func afterStart() failureTimes { return failureTimes{quiet: time.Now().Add(startGrace)} }

// note takes how a try went, and reports whether to warn of it, or that it goes well again.
func (f *failureTimes) note(err error) (warn, again bool) {
	now := time.Now()
	// Only a failure that the log has heard of has an end that it must hear of.
	if err == nil {
		again, f.failing = f.failing, false
		return false, again
	}
	// What is tried again within a second mostly fails for the same reason.
	if now.Before(f.quiet) {
		return false, false
	}
	f.quiet, f.failing = now.Add(logGap), true
	return true, false
}
