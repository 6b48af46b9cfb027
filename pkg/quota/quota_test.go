package quota

import (
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestNames(t *testing.T) {
	start := time.Unix(1_760_000_000, 0)
	n := New(2, time.Minute)
	for i, step := range []struct {
		at   time.Duration
		name string
		own  bool
		len  int
	}{
		{0, "alice", true, 1},
		{0, "bob", true, 2},
		{0, "carol", false, 2},
		{0, "alice", true, 2},
		{59 * time.Second, "alice", true, 2},
		{61 * time.Second, "alice", true, 2}, // alice is of the new generation, bob still remembered
		{61 * time.Second, "carol", false, 2},
		{119 * time.Second, "carol", false, 2},
		{121 * time.Second, "carol", true, 2}, // bob did not come back for a minute
		{121 * time.Second, "bob", false, 2},
		{122 * time.Second, "alice", true, 2},
		{9 * time.Second, "alice", true, 2}, // the clock was set back
		{9 * time.Second, "bob", false, 2},
		{time.Hour, "bob", true, 1}, // all others are long forgotten
	} {
		if got := n.Own(start.Add(step.at), step.name); got != step.own {
			t.Errorf("step %d: Own(%v, %s) = %v, want %v", i, step.at, step.name, got, step.own)
		}
		if got := n.Len(); got != step.len {
			t.Errorf("step %d: Len() = %d, want %d", i, got, step.len)
		}
	}
}

// Whatever happens, no more names than the quota have counts of their own; one that
// has, and comes back within the span, keeps them; and few begin to have them.
func TestNamesProperties(t *testing.T) {
	const span = 100
	rapid.Check(t, func(t *rapid.T) {
		most := rapid.IntRange(0, 6).Draw(t, "most")
		n := New(most, span)
		now := time.Unix(1_760_000_000, 0)
		used := map[string]time.Time{} // names that have counts of their own
		var begun []time.Time
		t.Repeat(map[string]func(*rapid.T){
			"pass time": func(t *rapid.T) { now = now.Add(time.Duration(rapid.IntRange(0, 3*span/2).Draw(t, "time"))) },
			"use": func(t *rapid.T) {
				name := strconv.Itoa(rapid.IntRange(0, 20).Draw(t, "name"))
				last, had := used[name]
				own := n.Own(now, name)
				if had && now.Sub(last) < span && !own {
					t.Fatalf("Own(%s) = false, but %v ago it was true", name, now.Sub(last))
				}
				if had && now.Sub(last) >= 2*span {
					had = false // forgotten
				}
				delete(used, name)
				if own {
					used[name] = now
					if !had {
						begun = append(begun, now)
					}
				}
			},
			"": func(t *rapid.T) {
				if n.Len() > most {
					t.Fatalf("Len() = %d, want %d at most", n.Len(), most)
				}
				for spans := 1; spans <= 4; spans++ {
					within := 0
					for _, at := range begun {
						if now.Sub(at) < time.Duration(spans*span) {
							within++
						}
					}
					if within > (spans+2)*most {
						t.Fatalf("%d names began within %d spans, want %d at most", within, spans, (spans+2)*most)
					}
				}
			},
		})
	})
}

func TestOwnDoesNotAllocate(t *testing.T) {
	n, at := New(10, time.Minute), time.Unix(1_760_000_000, 0)
	n.Own(at, "alice")
	if got := testing.AllocsPerRun(100, func() { n.Own(at, "alice") }); got != 0 {
		t.Errorf("Own allocates %v times, want 0", got)
	}
}
