package judge

import (
	"maps"
	"math"
	"slices"
	"time"

	"github.com/sluice-qos/sluice/test/longrun/history"
)

// windows are the lengths of the windows in which requests are limited.
var windows = map[string]time.Duration{"second": time.Second, "minute": time.Minute, "hour": time.Hour}

type rate struct{ class, window string }

// counts reports whether a request with this method counts against the limit.
func (r rate) counts(method string) bool { return r.class == "*" || r.class == method }

// index numbers the windows since 1970.
func (r rate) index(at time.Time) int64 { return at.UnixNano() / int64(windows[r.window]) }

func (r rate) begin(index int64) time.Time {
	return time.Unix(0, index*int64(windows[r.window])).UTC()
}

// version is what the limit file said of a user from a time on.
type version struct {
	from       time.Time
	requests   map[rate]int
	burst      map[rate]int
	concurrent int
	down, up   int64
	costs      map[string]int // by window
	debt       bool           // requests may cost more than they say
}

// versionsOf brings a user's records together, in the order of their times.
func versionsOf(records []history.Limit) []version {
	var all []version
	slices.SortStableFunc(records, func(a, b history.Limit) int { return a.From.Compare(b.From) })
	for _, r := range records {
		if len(all) == 0 || !all[len(all)-1].from.Equal(r.From) {
			all = append(all, version{from: r.From, requests: map[rate]int{}, burst: map[rate]int{}, costs: map[string]int{}})
		}
		v := &all[len(all)-1]
		for window, limit := range r.Requests {
			if limit > 0 && windows[window] > 0 {
				v.requests[rate{r.Class, window}] = limit
			}
		}
		if r.Burst > 0 {
			v.burst[rate{r.Class, "second"}] = r.Burst
		}
		for window, limit := range r.Costs {
			if limit > 0 && windows[window] > 0 {
				v.costs[window] = limit
			}
		}
		v.debt = v.debt || r.Debt
		v.concurrent, v.down, v.up = max(v.concurrent, r.Concurrent), max(v.down, r.Down), max(v.up, r.Up)
	}
	return all
}

// inForce are the versions that an instance may have judged by between two times: those of before are followed for a
// while, until every instance has read the new ones.
func inForce(all []version, from, to time.Time) []version {
	first, last := 0, 0
	for i, v := range all {
		if !v.from.After(from.Add(-follow)) {
			first = i
		}
		if !v.from.After(to) {
			last = i + 1
		}
	}
	if first >= last {
		return nil
	}
	return all[first:last]
}

// most is the most that any of the versions allows; +Inf if one has no such limit, or there is none.
func most(all []version, of func(version) int64) float64 {
	most := math.Inf(-1)
	for _, v := range all {
		if of(v) == 0 {
			return math.Inf(1)
		}
		most = max(most, float64(of(v)))
	}
	if len(all) == 0 {
		return math.Inf(1)
	}
	return most
}

// least is the least that any of the versions allows; +Inf if none has such a limit.
func least(all []version, of func(version) int64) float64 {
	least := math.Inf(1)
	for _, v := range all {
		if of(v) > 0 {
			least = min(least, float64(of(v)))
		}
	}
	return least
}

func requestsOf(r rate) func(version) int64 {
	return func(v version) int64 { return int64(v.requests[r]) }
}

// withBurst is what one window may have at most.
func withBurst(r rate) func(version) int64 {
	return func(v version) int64 {
		if v.requests[r] == 0 {
			return 0
		}
		return int64(v.requests[r] + v.burst[r])
	}
}

func concurrentOf(v version) int64 { return int64(v.concurrent) }

// rates are all limits of requests that any of the versions has, sorted.
func rates(all []version) []rate {
	set := map[rate]bool{}
	for _, v := range all {
		for r := range v.requests {
			set[r] = true
		}
	}
	return slices.SortedFunc(maps.Keys(set), func(a, b rate) int {
		if a.class != b.class {
			if a.class < b.class {
				return -1
			}
			return 1
		}
		return int(windows[a.window] - windows[b.window])
	})
}
