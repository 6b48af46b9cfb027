package limits_test

import (
	"testing"
	"time"

	"github.com/sluice-qos/sluice/pkg/limits"
)

func TestCostWindowStart(t *testing.T) {
	noon := time.Date(2026, 3, 1, 12, 34, 56, 0, time.UTC)
	for name, c := range map[string]struct {
		cost limits.Cost
		at   time.Time
		want time.Time
	}{
		"a second":                         {limits.Cost{}, noon, noon},
		"a minute":                         {limits.Cost{Window: limits.Minute}, noon, noon.Truncate(time.Minute)},
		"an hour":                          {limits.Cost{Window: limits.Hour}, noon, noon.Truncate(time.Hour)},
		"a day":                            {limits.Cost{Window: limits.Day}, noon, time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)},
		"a day that began this morning":    {limits.Cost{Window: limits.Day, Calendar: limits.NewCalendar(time.UTC, 6*time.Hour, 1)}, noon, time.Date(2026, 3, 1, 6, 0, 0, 0, time.UTC)},
		"a day that began yesterday":       {limits.Cost{Window: limits.Day, Calendar: limits.NewCalendar(time.UTC, 13*time.Hour, 1)}, noon, time.Date(2026, 2, 28, 13, 0, 0, 0, time.UTC)},
		"the first instant of a day":       {limits.Cost{Window: limits.Day, Calendar: limits.NewCalendar(time.UTC, 6*time.Hour, 1)}, time.Date(2026, 3, 1, 6, 0, 0, 0, time.UTC), time.Date(2026, 3, 1, 6, 0, 0, 0, time.UTC)},
		"before the epoch, by a bad clock": {limits.Cost{Window: limits.Minute}, time.Unix(-1, 0), time.Unix(-60, 0)},
	} {
		t.Run(name, func(t *testing.T) {
			if got := c.cost.WindowStart(c.at.Unix()); got != c.want.Unix() {
				t.Errorf("WindowStart(%v) = %v, want %v", c.at, time.Unix(got, 0).UTC(), c.want)
			}
		})
	}
}

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
