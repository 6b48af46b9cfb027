package cost_test

import (
	"maps"
	"slices"
	"testing"

	"github.com/sluice-qos/sluice/pkg/cost"
	"github.com/sluice-qos/sluice/pkg/limits"
)

func TestPoolsTake(t *testing.T) {
	minute := cost.Pool{User: "alice", Unit: "tokens", Window: limits.Minute, Start: 120}
	day := cost.Pool{User: "alice", Unit: "tokens", Window: limits.Day}
	last := minute
	last.Start = 60
	entry := func(p cost.Pool, limit, change int64) cost.Entry {
		return cost.Entry{Unit: p.Unit, Window: p.Window, Start: p.Start, Before: p.Start - p.Window.Seconds(), Limit: limit, Change: change}
	}
	dry := func(e cost.Entry) cost.Entry { e.DryRun = true; return e }
	type pools = cost.Pools
	for name, c := range map[string]struct {
		before  pools
		forced  bool
		entries []cost.Entry
		granted bool
		totals  []int64
		after   pools // nil: as before
	}{
		"the first charge of a window":                       {pools{}, false, []cost.Entry{entry(minute, 10, 4)}, true, []int64{4}, pools{minute: {4, 10}}},
		"to the limit":                                       {pools{minute: {6, 10}}, false, []cost.Entry{entry(minute, 10, 4)}, true, []int64{10}, pools{minute: {10, 10}}},
		"beyond it":                                          {pools{minute: {7, 10}}, false, []cost.Entry{entry(minute, 10, 4)}, false, []int64{7}, nil},
		"nothing, with something left":                       {pools{minute: {9, 10}}, false, []cost.Entry{entry(minute, 10, 0)}, true, []int64{9}, nil},
		"nothing, with nothing left":                         {pools{minute: {10, 10}}, false, []cost.Entry{entry(minute, 10, 0)}, false, []int64{10}, nil},
		"nothing of a new window":                            {pools{}, false, []cost.Entry{entry(minute, 10, 0)}, true, []int64{0}, nil},
		"all windows":                                        {pools{}, false, []cost.Entry{entry(minute, 10, 4), entry(day, 50, 4)}, true, []int64{4, 4}, pools{minute: {4, 10}, day: {4, 50}}},
		"none, if one is full":                               {pools{day: {50, 50}}, false, []cost.Entry{entry(minute, 10, 4), entry(day, 50, 4)}, false, []int64{0, 50}, nil},
		"a dry run refuses nothing":                          {pools{minute: {9, 10}}, false, []cost.Entry{dry(entry(minute, 10, 4))}, true, []int64{13}, pools{minute: {13, 13}}},
		"a refund":                                           {pools{minute: {9, 10}}, true, []cost.Entry{entry(minute, 10, -4)}, true, []int64{5}, pools{minute: {5, 10}}},
		"a refund of more than there is":                     {pools{minute: {3, 10}}, true, []cost.Entry{entry(minute, 10, -4)}, true, []int64{0}, pools{minute: {0, 10}}},
		"a refund to a pool that is gone":                    {pools{}, true, []cost.Entry{entry(minute, 10, -4)}, true, []int64{0}, nil},
		"a refund to one that has not begun leaves its debt": {pools{last: {13, 10}}, true, []cost.Entry{entry(minute, 10, -4)}, true, []int64{3}, nil},
		"an overrun":                                         {pools{minute: {9, 10}}, true, []cost.Entry{entry(minute, 10, 4)}, true, []int64{13}, pools{minute: {13, 10}}},
		"the next window pays":                               {pools{last: {13, 10}}, false, []cost.Entry{entry(minute, 10, 4)}, true, []int64{7}, pools{last: {13, 10}, minute: {7, 10}}},
		"with one whole window at most":                      {pools{last: {99, 10}}, false, []cost.Entry{entry(minute, 10, 1)}, false, []int64{10}, nil},
		"what is lowered is no debt":                         {pools{last: {90, 100}}, false, []cost.Entry{entry(minute, 10, 1)}, true, []int64{1}, pools{last: {90, 100}, minute: {1, 10}}},
		"lowered within a window":                            {pools{minute: {90, 100}}, true, []cost.Entry{entry(minute, 10, -5)}, true, []int64{85}, pools{minute: {85, 100}}},
		"what was a dry run is no debt":                      {pools{last: {13, 13}}, false, []cost.Entry{entry(minute, 10, 4)}, true, []int64{4}, pools{last: {13, 13}, minute: {4, 10}}},
		"a window before the last one":                       {pools{{User: "alice", Unit: "tokens", Window: limits.Minute}: {99, 10}}, false, []cost.Entry{entry(minute, 10, 4)}, true, []int64{4}, pools{{User: "alice", Unit: "tokens", Window: limits.Minute}: {99, 10}, minute: {4, 10}}},
		"of somebody else":                                   {pools{{User: "bob", Unit: "tokens", Window: limits.Minute, Start: 120}: {10, 10}}, false, []cost.Entry{entry(minute, 10, 4)}, true, []int64{4}, pools{{User: "bob", Unit: "tokens", Window: limits.Minute, Start: 120}: {10, 10}, minute: {4, 10}}},
	} {
		t.Run(name, func(t *testing.T) {
			after := maps.Clone(c.before)
			g := after.Take(cost.Ask{User: "alice", Forced: c.forced, Entries: c.entries})
			if g.Granted != c.granted || !slices.Equal(g.Totals, c.totals) {
				t.Errorf("Take(%+v) = %+v, want %v and totals %d", c.entries, g, c.granted, c.totals)
			}
			want := c.after
			if want == nil {
				want = c.before
			}
			if !maps.Equal(after, want) {
				t.Errorf("Take(%+v) left %+v, want %+v", c.entries, after, want)
			}
		})
	}
}
