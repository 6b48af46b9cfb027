package testkit

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestOutputKeepsTheEnd(t *testing.T) {
	var o output
	for range 3 {
		_, _ = o.Write([]byte(strings.Repeat("a", maxOutput/2)))
	}
	_, _ = o.Write([]byte("end"))
	if got := o.String(); len(got) != maxOutput || !strings.HasSuffix(got, "end") {
		t.Errorf("kept %d bytes ending in %q, want %d ending in \"end\"", len(got), got[len(got)-3:], maxOutput)
	}
}

// The longest time for which a process stood still is remembered.
func TestStalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s Stalls
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		s.Watch(ctx)
		if got := s.Longest(); got != 0 {
			t.Errorf("Longest() = %v where every nap ends in time, want 0", got)
		}
		for _, late := range []time.Duration{time.Second, 2 * time.Second, time.Millisecond} {
			s.note(late)
		}
		if got := s.Longest(); got != 2*time.Second {
			t.Errorf("Longest() = %v, want the longest of three, 2s", got)
		}
	})
}
