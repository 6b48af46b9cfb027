package schedule

import (
	stdcmp "cmp"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// A run is repeated by its seed, and each seed, store and duration has a plan of its own that keeps the rules.
func TestPlan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seed := rapid.Uint64().Draw(t, "seed")
		store := rapid.SampledFrom(Stores).Draw(t, "store")
		d := time.Duration(rapid.IntRange(60, 1800).Draw(t, "seconds")) * time.Second
		plan := Chaos(seed, store, d)
		if diff := cmp.Diff(plan, Chaos(seed, store, d)); diff != "" {
			t.Fatalf("another plan of the same seed: %s", diff)
		}
		if len(plan.Faults) == 0 || cmp.Equal(plan, Chaos(seed+1, store, d)) {
			t.Fatalf("the plan does not depend on the seed: %v", plan)
		}
		checkRules(t, plan, d)
	})
}

func checkRules(t *rapid.T, plan Plan, d time.Duration) {
	t.Helper()
	if end := plan.Quiets[len(plan.Quiets)-1].End; end > d {
		t.Errorf("the run ends at %v, want %v at most", end, d)
	}
	until := map[string]time.Duration{}
	for i, f := range plan.Faults {
		if i > 0 && f.At < plan.Faults[i-1].At {
			t.Errorf("%v comes before the one before it", f)
		}
		if f.At < until[f.Target] {
			t.Errorf("%v: its target has another fault then", f)
		}
		until[f.Target] = f.At + f.For
		for _, q := range plan.Quiets {
			if f.At < q.End && f.At+f.For > q.Begin {
				t.Errorf("%v is not over in the quiet time from %v", f, q.Begin)
			}
		}
	}
}

// Over many seeds each fault happens, to each of its targets.
func TestEachFaultIsDrawn(t *testing.T) {
	for _, store := range Stores {
		drawn := map[string][]string{}
		for seed := range uint64(300) {
			for _, f := range Chaos(seed, store, 10*time.Minute).Faults {
				drawn[f.Name] = append(drawn[f.Name], f.Target)
			}
		}
		for _, k := range kinds {
			want, got := k.targets(store), drawn[k.name]
			slices.Sort(want)
			slices.Sort(got)
			if diff := cmp.Diff(want, slices.Compact(got)); diff != "" {
				t.Errorf("%s with %s: %s", k.name, store, diff)
			}
		}
	}
}

// A plan without some of its faults has the others at their times.
func TestOnly(t *testing.T) {
	plan := Chaos(12, "single", 80*time.Second)
	var want []Fault
	for _, f := range plan.Faults {
		if f.Name == "stop" || f.Target == "redis" {
			want = append(want, f)
		}
	}
	got := plan.Only([]string{"stop ", " redis"})
	if diff := cmp.Diff(want, got.Faults); diff != "" || len(want) == 0 {
		t.Errorf("%d faults are wanted: %s", len(want), diff)
	}
	if diff := cmp.Diff(plan, plan.Only(nil)); diff != "" {
		t.Errorf("only nothing in particular: %s", diff)
	}
}

// Soak and overload end with a quiet time after their last fault.
func TestOtherPlans(t *testing.T) {
	for name, plan := range map[string]Plan{"soak": Soak(10 * time.Minute), "overload": Overload(time.Minute, 10, 20)} {
		last := plan.Quiets[len(plan.Quiets)-1]
		if len(plan.Faults) == 0 || !slices.IsSortedFunc(plan.Faults, func(a, b Fault) int { return stdcmp.Compare(a.At, b.At) }) {
			t.Errorf("%s: faults %v, want some, by time", name, plan.Faults)
		}
		for _, f := range plan.Faults {
			if f.At+f.For > last.Begin {
				t.Errorf("%s: %v ends in the last quiet time, %v", name, f, last)
			}
		}
	}
}
