package proctest

import (
	"strings"
	"testing"
)

func TestRedisAnswersAndEndsWithItsProcess(t *testing.T) {
	p, addr := Redis(t)
	if err := dial(addr); err != nil {
		t.Fatalf("dial(%s) = %v", addr, err)
	}
	if _, err := p.CPU(); err != nil {
		t.Errorf("CPU() = %v", err)
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
