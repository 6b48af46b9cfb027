package testkit

import (
	"fmt"
	"net"
	"testing"
	"time"
)

// Patience bounds every wait for something that is certain to happen. It is
// long because a test must not fail on a machine that is merely slow.
const Patience = time.Minute

// Eventually polls until check returns nil, and fails the test with its last
// error when Patience is over.
func Eventually(t testing.TB, what string, check func() error) {
	t.Helper()
	if err := Poll(Patience, check); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// Poll calls check every few milliseconds until it returns nil or the time is
// over, and returns its last error.
func Poll(limit time.Duration, check func() error) error {
	for deadline := time.Now().Add(limit); ; time.Sleep(pollEvery) {
		// Before the check: what one that took until the deadline brought about is looked at once more.
		over := time.Now().After(deadline)
		if err := check(); err == nil {
			return nil
		} else if over {
			return fmt.Errorf("not within %v: %w", limit, err)
		}
	}
}

const pollEvery = 5 * time.Millisecond

// AwaitHour is the beginning of tests that count in hours or minutes, which are those of the clock: it waits for the next hour unless a
// minute of this one is left.
func AwaitHour() {
	if left := time.Until(time.Now().Truncate(time.Hour).Add(time.Hour)); left < time.Minute {
		time.Sleep(left)
	}
}

func dial(addr string) error {
	conn, err := net.DialTimeout(networkOf(addr), addr, time.Second)
	if err != nil {
		return err
	}
	return conn.Close()
}
