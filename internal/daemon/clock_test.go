package daemon

import (
	"testing"
	"time"
)

func TestClockFollowsTheShortestRoundTrip(t *testing.T) {
	const ms = time.Millisecond
	t0 := time.Now()
	type step struct {
		roundTrip time.Duration
		remote    time.Duration // Redis' time in the answer; the question left at t0
		want      time.Duration // Offset afterwards
	}
	tests := []struct {
		name  string
		steps []step
	}{
		{"one sample", []step{{2 * ms, 51 * ms, 50 * ms}}},
		{"a slow answer does not disturb", []step{{2 * ms, 51 * ms, 50 * ms}, {100 * ms, 140 * ms, 50 * ms}}},
		{"a faster one corrects", []step{{100 * ms, 140 * ms, 90 * ms}, {2 * ms, 51 * ms, 50 * ms}}},
		{"a clock that was set is followed at once", []step{{2 * ms, 51 * ms, 50 * ms}, {2 * ms, 5001 * ms, 5000 * ms}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var c Clock
			for i, s := range tt.steps {
				c.Sample(t0, t0.Add(s.roundTrip), t0.Add(s.remote))
				// The machine's clock and its monotonic one may differ by nanoseconds.
				if got := c.Offset(); (got - s.want).Abs() > ms/10 {
					t.Errorf("step %d: Offset() = %v, want %v", i, got, s.want)
				}
			}
		})
	}
}

func TestZeroClockIsTheMachines(t *testing.T) {
	var c Clock
	before := time.Now()
	now := c.Now()
	if now.Before(before.Add(-time.Second)) || now.After(time.Now().Add(time.Second)) {
		t.Errorf("the zero Clock says %v after %v", now, before)
	}
}
