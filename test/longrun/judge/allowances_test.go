package judge

import (
	"testing"
	"time"

	"github.com/sluice-qos/sluice/test/longrun/history"
	"github.com/sluice-qos/sluice/test/longrun/schedule"
)

// Each fault of a part has one row, and words in a report.
func TestAllowances(t *testing.T) {
	seen := map[string]bool{}
	for _, a := range allowances {
		for _, fault := range a.faults {
			name := fault + " " + a.part
			if seen[name] {
				t.Errorf("%s is there twice", name)
			}
			seen[name] = true
			if participles[fault] == "" {
				t.Errorf("%s: a report has no words for it", name)
			}
		}
	}
}

// Each fault of a schedule has a bound.
func TestEveryFaultOfTheScheduleIsBounded(t *testing.T) {
	seen := map[string]bool{}
	for _, store := range schedule.Stores {
		for seed := range uint64(300) {
			for _, f := range schedule.Chaos(seed, store, 20*time.Minute).Faults {
				kind, _ := partOf(f.Target)
				if name := f.Name + " " + kind; !seen[name] && effectOf(&history.Fault{Name: f.Name, Target: f.Target}) == nil {
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

// The part of a fault decides.
func TestEffectOf(t *testing.T) {
	for _, tt := range []struct {
		name, target string
		recovery     time.Duration
	}{
		{history.Kill, "agent-0", 5 * time.Second}, {history.FullDisk, "redis-1", 2 * time.Second}, {history.ClockStep, "redis", 6 * time.Second},
		{history.Slow, "all→redis-2", 5 * time.Second}, {history.Slow, "agent-0→redis", time.Second},
	} {
		if e := effectOf(&history.Fault{Name: tt.name, Target: tt.target}); e == nil || e.recovery != tt.recovery {
			t.Errorf("effectOf(%s, %s) = %+v, want a recovery of %v", tt.name, tt.target, e, tt.recovery)
		}
	}
	if e := effectOf(&history.Fault{Name: history.Kill, Target: "cat-1"}); e != nil {
		t.Errorf("killing a cat allows %+v", e)
	}
}
