package judge

import (
	"maps"
	"math"
	"slices"
	"time"

	"github.com/sluice-qos/sluice/bench/load"
)

// maxCrowd bounds one record, whatever the file says.
const maxCrowd = 1_000_000

func (t *trial) judgeRequests(a *account) {
	for _, r := range rates(a.versions) {
		var spans []load.Span
		for _, x := range a.admitted {
			if r.counts(x.method) {
				spans = append(spans, load.Span{First: r.index(x.sent.Add(-slack)), Last: r.index(x.at.Add(slack))})
			}
		}
		for _, c := range a.crowd {
			if r.counts(c.Method) {
				span := load.Span{First: r.index(time.Unix(c.Sent, 0)), Last: r.index(time.Unix(c.At, 0))}
				spans = append(spans, slices.Repeat([]load.Span{span}, min(c.Requests, maxCrowd))...)
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

func (t *trial) judgeBurst(a *account, r rate) {
	if !slices.ContainsFunc(a.versions, func(v version) bool { return v.burst[r] > 0 }) {
		return
	}
	certain := map[int64]float64{}
	for _, x := range a.admitted {
		if i := r.index(x.sent.Add(-slack)); r.counts(x.method) && i == r.index(x.at.Add(slack)) {
			certain[i]++
		}
	}
	o := Observation{Property: Requests, User: a.user, What: r.class + " requests in seconds with a burst"}
	t.judgeRows(a, r, o, certain, requestsOf(r), withBurst(r))
}

// judgeRows compares what windows in a row certainly had with the sum of their limits and what one window may have besides: a burst,
// or a debt. For each window it tells of the row that ends there and is furthest beyond its limits.
func (t *trial) judgeRows(a *account, r rate, o Observation, certain map[int64]float64, limitOf, wholeOf func(version) int64) {
	o.Instance, o.Default = -1, math.Inf(1)
	all := slices.Sorted(maps.Keys(certain))
	if len(all) == 0 {
		return
	}
	row := o // its Limit is without what one window may have besides
	for i := all[0]; i <= all[len(all)-1]; i++ {
		versions := inForce(a.versions, r.begin(i), r.begin(i+1))
		limit, whole := most(versions, limitOf), most(versions, wholeOf)
		if row.Count <= row.Limit {
			row = o
			row.Begin = r.begin(i)
		}
		row.End, row.Count, row.Limit = r.begin(i+1), row.Count+certain[i], row.Limit+limit
		if !math.IsInf(limit, 1) && row.Count > 0 {
			o := row
			o.Limit += whole - limit
			t.tell(o)
		}
	}
}

// mostOf is the most that a limit may be in a window.
func (t *trial) mostOf(versions []version, r rate, index int64) float64 {
	return most(inForce(versions, r.begin(index), r.begin(index+1)), withBurst(r))
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
	var begins, ends []time.Time
	for _, x := range a.admitted {
		if x.over.After(x.at) {
			begins, ends = append(begins, x.at), append(ends, x.over)
		}
	}
	sortTimes(ends)
	for _, x := range a.admitted {
		if !x.over.After(x.at) {
			continue
		}
		limit := most(inForce(a.versions, x.sent, x.at), concurrentOf)
		if math.IsInf(limit, 1) {
			continue
		}
		o := Observation{
			Property: InProgress, User: a.user, Instance: -1, What: "requests in progress",
			Begin: x.at, End: x.at, Count: float64(until(begins, x.at) - until(ends, x.at)), Limit: limit,
			Default: most(inForce(t.defaults, x.sent, x.at), concurrentOf),
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
