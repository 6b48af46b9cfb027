package judge

import (
	"math"
	"time"

	"github.com/sluice-qos/sluice/bench/load"
)

// judgeRequests compares what was admitted in each window with the limit.
func (t *trial) judgeRequests(a *account) {
	for _, r := range rates(a.versions) {
		var spans []load.Span
		for _, x := range a.admitted {
			if r.counts(x.method) {
				spans = append(spans, load.Span{First: r.index(x.sent.Add(-t.Slack)), Last: r.index(x.at.Add(t.Slack))})
			}
		}
		observe := func(index int64, n int) Observation {
			return Observation{
				Property: Requests, User: a.user, Instance: -1, What: r.class + " requests in a " + r.window,
				Begin: r.begin(index), End: r.begin(index + 1),
				Count: float64(n), Limit: t.mostOf(a.versions, r, index), Default: t.mostByDefault(r, index),
			}
		}
		for _, o := range t.attribute(spans, observe) {
			if o.Count > 0 && !math.IsInf(o.Limit, 1) {
				t.tell(o)
			}
		}
		t.judgeBurst(a, r)
	}
}

// attribute counts requests in the windows in which they were decided: so that none has more than the limit if that can
// be, and otherwise so that none has more than faults allow in it. A request that was decided while much was allowed may
// have come to the origin long after.
func (t *trial) attribute(spans []load.Span, observe func(index int64, n int) Observation) (all []Observation) {
	for _, bound := range []func(*Observation) float64{func(*Observation) float64 { return 1 }, t.bound} {
		within := true
		counts := load.Attribute(spans, func(index int64) int {
			o := observe(index, 0)
			return int(min(math.Ceil(o.Limit*bound(&o)), math.MaxInt32))
		})
		all = all[:0]
		for i, n := range counts.Counts {
			o := observe(counts.First+int64(i), n)
			all, within = append(all, o), within && o.within(t.bound(&o))
		}
		if within {
			break
		}
	}
	return all
}

// judgeBurst compares, of a limit with a burst, what was certainly admitted in some seconds in a row with their limits and one
// burst: for each second, of all rows that end with it, the one that has most beyond its limits.
func (t *trial) judgeBurst(a *account, r rate) {
	bursting := false
	for _, v := range a.versions {
		bursting = bursting || v.burst[r] > 0
	}
	if !bursting {
		return
	}
	certain := map[int64]int{}
	var first, last int64
	for _, x := range a.admitted {
		if from, to := r.index(x.sent.Add(-t.Slack)), r.index(x.at.Add(t.Slack)); r.counts(x.method) && from == to {
			if certain[from]++; len(certain) == 1 {
				first = from
			}
			first, last = min(first, from), max(last, from)
		}
	}
	var row Observation // Limit is without the burst
	for i := first; i <= last && len(certain) > 0; i++ {
		versions := inForce(a.versions, r.begin(i), r.begin(i+1), t.Follow)
		limit, whole := most(versions, requestsOf(r)), most(versions, withBurst(r))
		if row.Count <= row.Limit {
			row = Observation{Property: Requests, User: a.user, Instance: -1, What: r.class + " requests in seconds with a burst", Begin: r.begin(i), Default: math.Inf(1)}
		}
		row.End, row.Count, row.Limit = r.begin(i+1), row.Count+float64(certain[i]), row.Limit+limit
		if !math.IsInf(limit, 1) && row.Count > 0 {
			o := row
			o.Limit += whole - limit
			t.tell(o)
		}
	}
}

// mostOf is the most that a limit may be in a window.
func (t *trial) mostOf(versions []version, r rate, index int64) float64 {
	return most(inForce(versions, r.begin(index), r.begin(index+1), t.Follow), withBurst(r))
}

// mostByDefault is what the default tier may have in a window. Without a limit of all its requests, those of the classes together.
func (t *trial) mostByDefault(r rate, index int64) float64 {
	limit := t.mostOf(t.defaults, r, index)
	if !math.IsInf(limit, 1) || r.class != "*" {
		return limit
	}
	sum := 0.0
	for _, other := range rates(t.defaults) {
		if other.window == r.window {
			sum += t.mostOf(t.defaults, other, index)
		}
	}
	if sum == 0 {
		return limit
	}
	return sum
}

// judgeInProgress compares what was certainly in progress whenever a request was admitted with the limit. If a
// limit is lowered, who is above it may go on; so only those who come are judged.
func (t *trial) judgeInProgress(a *account) {
	var worst Observation
	flush := func() {
		if worst.Count > 0 {
			t.tell(worst)
		}
		worst = Observation{}
	}
	var ends instants
	for _, x := range a.admitted {
		if !x.over.After(x.at) {
			continue
		}
		ends.popUntil(x.at)
		ends.push(x.over)
		limit := most(inForce(a.versions, x.sent, x.at, t.Follow), concurrentOf)
		if math.IsInf(limit, 1) {
			continue
		}
		o := Observation{
			Property: InProgress, User: a.user, Instance: -1, What: "requests in progress",
			Begin: x.at, End: x.at, Count: float64(len(ends)), Limit: limit,
			Default: most(inForce(t.defaults, x.sent, x.at, t.Follow), concurrentOf),
		}
		if worst.Begin.Truncate(time.Second) != x.at.Truncate(time.Second) {
			flush()
		}
		if o.Count*max(worst.Limit, 1) > worst.Count*o.Limit {
			worst = o
		}
	}
	flush()
}
