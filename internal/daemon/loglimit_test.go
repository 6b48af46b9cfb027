package daemon

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var l LogLimit
		for _, tt := range []struct {
			at      time.Duration
			skipped int
			ok      bool
		}{{0, 0, true}, {time.Second, 0, false}, {9 * time.Second, 0, false}, {10 * time.Second, 2, true}, {11 * time.Second, 0, false}} {
			time.Sleep(time.Until(start.Add(tt.at)))
			if skipped, ok := l.Allow(); skipped != tt.skipped || ok != tt.ok {
				t.Errorf("Allow() after %v = %d, %v, want %d, %v", tt.at, skipped, ok, tt.skipped, tt.ok)
			}
		}
	})
}
