package testkit

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
