package proctest

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestRedisAnswersAndEndsWithItsProcess(t *testing.T) {
	p, addr := Redis(t)
	if err := dial(addr); err != nil {
		t.Fatalf("dial(%s) = %v", addr, err)
	}
	if used, err := p.CPU(); used <= 0 || err != nil { // hundredths of a second would still be 0
		t.Errorf("CPU() = %v, %v, want what the start took", used, err)
	}
	p.Kill()
	if p.Running() {
		t.Error("Running() after Kill() = true")
	}
	if err := dial(addr); err == nil {
		t.Error("the address still answers after Kill()")
	}
}

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

// What a stall makes worthless ends with it, and with nothing else before its time.
func TestStallsBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, tt := range []struct {
			name    string
			most    time.Duration
			end     bool // the context above
			stalled bool
		}{
			{"every nap ends in time", 0, false, false},
			{"the one who asked has ended", 0, true, false},
			{"a nap is late", -1, false, true},
		} {
			var s Stalls
			above, end := context.WithCancel(t.Context())
			ctx, cancel := s.Bound(above, tt.most)
			if tt.end {
				end()
			}
			time.Sleep(time.Second)
			if ended := ctx.Err() != nil; ended != (tt.end || tt.stalled) || Stalled(ctx) != tt.stalled {
				t.Errorf("%s: a second later it has ended: %v, by a stall: %v, want %v, %v", tt.name, ended, Stalled(ctx), tt.end || tt.stalled, tt.stalled)
			}
			cancel()
			end()
			if ctx.Err() == nil || Stalled(ctx) != tt.stalled {
				t.Errorf("%s: cancelled, it goes on, or has stalled: %v, want %v", tt.name, Stalled(ctx), tt.stalled)
			}
		}
	})
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

func TestRedisClusterServes(t *testing.T) {
	addrs, _ := RedisCluster(t)
	for i, addr := range addrs {
		role, _, _ := strings.Cut(RedisCommand(t, addr, "ROLE"), "\n")
		if want := map[bool]string{true: "master", false: "slave"}[i < 3]; role != want {
			t.Errorf("role of node %d of %d = %q, want %q", i, len(addrs), role, want)
		}
	}
	if len(addrs) != 6 {
		t.Errorf("RedisCluster() = %q, want six addresses", addrs)
	}
}
