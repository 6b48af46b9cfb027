package judge

import (
	"maps"
	"math"
	"slices"
	"time"

	"github.com/sluice-qos/sluice/bench/load"
	"github.com/sluice-qos/sluice/test/longrun/history"
)

// costWindows are the windows in which any of the versions limits costs, sorted.
func costWindows(all []version) []string {
	set := map[string]bool{}
	for _, v := range all {
		for window := range v.costs {
			set[window] = true
		}
	}
	return slices.Sorted(maps.Keys(set))
}

func costsOf(window string) func(version) int64 {
	return func(v version) int64 { return int64(v.costs[window]) }
}

// withDebt is what the requests of one window may cost at most: those that cost more than they said owe it to the next one.
func withDebt(window string) func(version) int64 {
	return func(v version) int64 {
		if v.debt {
			return 2 * int64(v.costs[window])
		}
		return int64(v.costs[window])
	}
}

// judgeCosts compares what the admitted requests of each window cost with the limit.
func (t *trial) judgeCosts(a *account) {
	for _, window := range costWindows(a.versions) {
		r := rate{window: window}
		var spans []load.Span // one of each unit that was spent
		for _, x := range a.admitted {
			span := load.Span{First: r.index(x.sent.Add(-slack)), Last: r.index(x.at.Add(slack))}
			spans = append(spans, slices.Repeat([]load.Span{span}, int(min(x.cost, maxCost)))...)
		}
		observe := func(index int64, n int) Observation {
			from, to := r.begin(index), r.begin(index+1)
			return Observation{
				Property: Costs, User: a.user, Instance: -1, What: "in a " + window, Begin: from, End: to,
				Count: float64(n), Limit: most(inForce(a.versions, from, to), withDebt(window)), Default: math.Inf(1),
			}
		}
		for _, o := range t.attribute(spans, observe) {
			if o.Count > 0 && !math.IsInf(o.Limit, 1) {
				t.tell(o)
			}
		}
		t.judgeDebt(a, r)
	}
}

// maxCost bounds what one request of a history costs, whatever the file says.
const maxCost = 10_000

// judgeDebt judges the windows in a row of a user whose requests cost more than they announce: the last window may owe one limit.
func (t *trial) judgeDebt(a *account, r rate) {
	if !slices.ContainsFunc(a.versions, func(v version) bool { return v.debt }) {
		return
	}
	certain := map[int64]float64{}
	for _, x := range a.admitted {
		if i := r.index(x.sent.Add(-slack)); x.cost > 0 && i == r.index(x.at.Add(slack)) {
			certain[i] += float64(min(x.cost, maxCost))
		}
	}
	o := Observation{Property: Costs, User: a.user, What: "in windows of a " + r.window + " in a row"}
	t.judgeRows(a, r, o, certain, costsOf(r.window), withDebt(r.window))
}

// A charge is what a request may have been charged: its estimate, until a while after its answer said what it cost.
type charge struct {
	sent, decided, settled time.Time // settled is zero if its answer said no cost
	estimate, cost         int64
}

// at is the most that it may have been charged at a time.
func (c *charge) at(at time.Time) int64 {
	if c.settled.IsZero() || c.settled.After(at) {
		return max(c.estimate, c.cost)
	}
	return c.cost
}

// chargesOf are those of all requests of a user but refused ones, also of those that failed, by sent.
func (t *trial) chargesOf(a *account) (all []charge) {
	costs := map[string]admission{}
	for _, x := range a.admitted {
		costs[x.id] = x
	}
	for _, r := range a.requests {
		if _, yes := refused(r); yes || r.Estimate == 0 {
			continue
		}
		c := charge{sent: r.Sent, decided: r.Done, estimate: r.Estimate}
		if x, came := costs[r.ID]; came {
			c.decided, c.cost = x.at, x.cost
			if x.cost > 0 {
				c.settled = x.over.Add(correct)
			}
		}
		all = append(all, c)
	}
	return all
}

// judgeCostRefusals tells of each refusal for its cost how much of the limit may have been charged, with what it would have been itself. An agent
// that kept charges of finished requests would refuse users who spent hardly anything.
func (t *trial) judgeCostRefusals(a *account) {
	charges := t.chargesOf(a)
	for _, q := range a.requests {
		if by, yes := refused(q); !yes || by != RefusedCost {
			continue
		}
		o := Observation{Property: RefusedCost, User: a.user, Instance: q.Instance, Begin: q.Sent, End: q.Done, Limit: math.Inf(1)}
		versions := inForce(a.versions, q.Sent, q.Done)
		for _, window := range costWindows(versions) {
			t.nearestCost(&o, charges, q, rate{window: window}, versions)
		}
		t.tell(o)
	}
}

// nearestCost takes the window with the highest charge when a request was refused.
func (t *trial) nearestCost(o *Observation, charges []charge, q *history.Request, r rate, versions []version) {
	limit := least(versions, costsOf(r.window))
	for i := r.index(q.Sent.Add(-slack)); i <= r.index(q.Done.Add(slack)); i++ {
		charged := q.Estimate
		if slices.ContainsFunc(versions, func(v version) bool { return v.debt }) {
			charged += int64(limit) // of the window before, whatever that was
		}
		first, _ := slices.BinarySearchFunc(charges, r.begin(i).Add(-longestWait), func(c charge, at time.Time) int { return c.sent.Compare(at) })
		for _, c := range charges[first:] {
			if c.sent.After(q.Done.Add(slack)) {
				break
			}
			if r.index(c.sent.Add(-slack)) <= i && i <= r.index(c.decided.Add(slack)) {
				charged += c.at(q.Sent)
			}
		}
		if value := float64(charged) / limit; value >= o.Value() {
			// A lost correction stays charged until the window ends. Requests that passed uncharged in the window before, as without an
			// agent, are charged later and may be a debt to this window.
			o.Count, o.Limit, o.What, o.Begin = float64(charged), limit, "charged in the "+r.window+" after the one", r.begin(i-1)
		}
	}
}

// longestWait is for how long a request may be on its way to a verdict: the patience of clients.
const longestWait = 15 * time.Second
