package view

import (
	"slices"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/pkg/limits"
)

func TestBudgets(t *testing.T) {
	perMinute := limits.Cost{Unit: "tokens", Window: limits.Minute, Max: 100}
	perDay := limits.Cost{Unit: "tokens", Window: limits.Day, Max: 5000, DayStart: 6 * time.Hour}
	none := limits.NewLimits(limits.Limits{}, nil, nil, nil, nil)
	set := func(costs ...limits.Cost) *limits.Set {
		free := limits.NewLimits(limits.Limits{Tier: "free"}, nil, costs, nil, nil)
		return limits.NewSet(limits.Content{DefaultTier: "free", Tiers: map[string]*limits.Entry{"free": {Limits: free, Together: none}}})
	}
	v := New(set(perMinute, perDay), 10, 10)
	now := time.Date(2026, 3, 1, 5, 59, 30, 0, time.UTC)
	minute, day := now.Truncate(time.Minute), time.Date(2026, 2, 28, 6, 0, 0, 0, time.UTC)
	want := func(what string, at time.Time, want ...Budget) {
		t.Helper()
		if got := v.Budgets(at, "alice"); !slices.Equal(got, want) {
			t.Errorf("%s: %+v, want %+v", what, got, want)
		}
	}
	ends := minute.Add(time.Minute) // of the day as well
	want("of whom there was no report", now, Budget{perMinute, 0, ends}, Budget{perDay, 0, ends})
	charge := func(c limits.Cost, begin time.Time, total int64) {
		v.Charged(now, "alice", c.Unit, c.Window, begin.Unix(), total)
	}
	charge(perMinute, minute, 40)
	charge(perDay, day, 4000)
	charge(perMinute, minute.Add(-time.Minute), 90)                                // of the minute before
	charge(limits.Cost{Unit: "tokens", Window: limits.Hour}, minute, 7)            // no such limit
	charge(limits.Cost{Unit: "euros", Window: limits.Minute, Max: 100}, minute, 7) // nor such a unit
	want("what was charged", now, Budget{perMinute, 40, ends}, Budget{perDay, 4000, ends})
	want("a minute later", ends, Budget{perMinute, 0, ends.Add(time.Minute)}, Budget{perDay, 0, ends.Add(24 * time.Hour)})
	v.Limits(set(perDay))
	charge(perDay, day, 4100)
	v.Limits(set(perMinute, perDay))
	want("a limit that was gone for a while", now, Budget{perMinute, 0, ends}, Budget{perDay, 4100, ends})
}
