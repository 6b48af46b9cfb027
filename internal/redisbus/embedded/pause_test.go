package embedded

import (
	"testing"
	"time"
)

func TestPauseAfter(t *testing.T) {
	for _, tt := range []struct{ pass, pause time.Duration }{
		{0, 20 * time.Millisecond},
		{time.Millisecond, 20 * time.Millisecond},
		{10 * time.Millisecond, 200 * time.Millisecond},
		// A pass that had to wait for a processor: pools that live for 12 s would be gone as soon as they are written.
		{time.Second, time.Second},
	} {
		if got := pauseAfter(tt.pass); got != tt.pause {
			t.Errorf("pauseAfter(%v) = %v, want %v", tt.pass, got, tt.pause)
		}
	}
}
