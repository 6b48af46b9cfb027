package limits_test

import (
	"testing"

	"github.com/sluice-qos/sluice/pkg/limits"
)

func TestCostUnitEstimateOf(t *testing.T) {
	u := limits.CostUnit{Default: 10, ByClass: map[string]int64{"POST": 50, "CHAT": 1000}, Classes: []string{"CHAT", "GET"}}
	for _, c := range []struct {
		verb, op string
		want     int64
		charges  bool
	}{
		{"GET", "", 10, true},
		{"POST", "", 50, false},
		{"POST", "CHAT", 1000, true},
		{"POST", "LIST", 50, false},
	} {
		if got := u.EstimateOf(c.verb, c.op); got != c.want {
			t.Errorf("EstimateOf(%q, %q) = %d, want %d", c.verb, c.op, got, c.want)
		}
		if got := u.Charges(c.verb, c.op); got != c.charges {
			t.Errorf("Charges(%q, %q) = %v, want %v", c.verb, c.op, got, c.charges)
		}
	}
	if all := (limits.CostUnit{}); !all.Charges("GET", "") {
		t.Error("a unit without classes does not charge GET")
	}
}

func TestParseCostName(t *testing.T) {
	for _, w := range limits.Windows {
		c := limits.Cost{Unit: "tokens", Window: w}
		if unit, window := limits.ParseCostName(c.Name()); unit != "tokens" || window != w {
			t.Errorf("ParseCostName(%q) = %q, %v", c.Name(), unit, window)
		}
	}
	for _, name := range []string{"tokens", "tokens/week", "tokens/day/hour", ""} {
		if unit, window := limits.ParseCostName(name); unit != name || window != limits.Second {
			t.Errorf("ParseCostName(%q) = %q, %v, want all of it", name, unit, window)
		}
	}
}
