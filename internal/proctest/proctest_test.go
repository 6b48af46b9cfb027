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
