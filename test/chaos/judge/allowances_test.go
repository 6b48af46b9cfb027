package judge

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/test/chaos/history"
	"github.com/sluice-qos/sluice/test/chaos/schedule"
)

// What a fault allows is what a row of the table of failures says, or not Sluice's.
func TestAllowancesAreRowsOfTheTableOfFailures(t *testing.T) {
	text, err := os.ReadFile("../../../docs/failures.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		if cells := strings.Split(line, " | "); len(cells) == 5 {
			rows[strings.TrimPrefix(cells[0], "| ")] = true
		}
	}
	seen := map[string]bool{}
	for _, a := range allowances {
		name := a.fault + " " + a.part
		if seen[name] {
			t.Errorf("%s is there twice", name)
		}
		seen[name] = true
		if (len(a.rows) == 0) != (a.because != "") {
			t.Errorf("%s: rows %q because %q, want one of them", name, a.rows, a.because)
		}
		for _, row := range a.rows {
			if !rows[row] {
				t.Errorf("%s: docs/failures.md has no row %q", name, row)
			}
		}
		if participles[a.fault] == "" {
			t.Errorf("%s: a report has no words for it", name)
		}
	}
}

// Nothing is broken for which there is no bound.
func TestEveryFaultOfTheScheduleIsBounded(t *testing.T) {
	seen := map[string]bool{}
	for _, store := range schedule.Stores {
		for seed := range uint64(300) {
			for _, f := range schedule.Make(seed, store, 20*time.Minute).Faults {
				kind, _ := partOf(f.Target)
				if name := f.Name + " " + kind; !seen[name] && allowanceOf(&history.Fault{Name: f.Name, Target: f.Target}) == nil {
					t.Errorf("%s, seed %d: %s has no bound", store, seed, name)
				}
				seen[f.Name+" "+kind] = true
			}
		}
	}
	if len(seen) < 50 {
		t.Errorf("%d kinds of faults were drawn, want all of them", len(seen))
	}
}

// The kind of a target, and whose requests it concerns.
func TestPartOf(t *testing.T) {
	for target, want := range map[string]struct {
		kind     string
		instance int
	}{
		"agent-1": {"agent", 1}, "redis": {"redis", -1}, "redis-3": {"redis", -1}, "polygen-0→redis-1": {"polygen→redis", -1},
		"agent-2→haproxy-2 peers": {"agent→haproxy peers", 2}, "haproxy-0→origin": {"haproxy→origin", 0}, "all→sentinel-1": {"all→sentinel", -1},
		"": {"", -1},
	} {
		if kind, instance := partOf(target); kind != want.kind || instance != want.instance {
			t.Errorf("partOf(%q) = %q, %d; want %q, %d", target, kind, instance, want.kind, want.instance)
		}
	}
}

// The part of a fault decides, and what is about any part comes last.
func TestAllowanceOf(t *testing.T) {
	for _, tt := range []struct{ name, target, row string }{
		{history.Kill, "agent-0", agentDead}, {history.FullDisk, "redis-1", redisFull}, {history.FullDisk, "polygen-1", limitsBroken},
		{history.ClockStep, "redis", redisClock}, {history.Partition, "agent-0→redis", redisDead}, {history.Slow, "all→redis-2", redisSlow},
	} {
		if a := allowanceOf(&history.Fault{Name: tt.name, Target: tt.target}); a == nil || a.rows[0] != tt.row {
			t.Errorf("allowanceOf(%s, %s) = %+v, want %s", tt.name, tt.target, a, tt.row)
		}
	}
	if a := allowanceOf(&history.Fault{Name: history.Kill, Target: "cat-1"}); a != nil {
		t.Errorf("killing a cat allows %+v", a)
	}
}
