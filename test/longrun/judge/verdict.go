package judge

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/sluice-qos/sluice/test/longrun/history"
)

// Calm is the matrix' row of what was seen while nothing was broken.
const Calm = "nothing broken"

// maxViolations bounds the list of a report: the first ones of maxRemembered.
const (
	maxViolations = 100
	maxRemembered = 100_000
)

// A Cell is what was seen of a property under a fault.
type Cell struct {
	Worst      Observation // that which is furthest beyond, or nearest to, its bound
	Bound      float64     // that of Worst
	Seen, Bad  int         // observations, and those beyond their bounds
	Sum        float64     // of all counts
	violations bool
}

// A Violation is an observation beyond its bound.
type Violation struct {
	Observation
	Bound float64
	Row   string // the matrix' row that it is in
	Fault *history.Fault
}

// A Report is the verdict about a run.
type Report struct {
	Run        history.Run
	Requests   int // of all clients
	Admitted   int
	Cells      map[string]*[properties]Cell // by the fault and the kind of its target
	Violations []Violation                  // the first ones, by time
	Bad        int                          // all of them
	Unbounded  []string                     // faults without a row in the table of allowances
	Stalled    float64                      // the share of the time in which the machine ran not all that was ready to run
	Problems   []string
	Growth     []Series           // of a run that is judged for growth
	Counts     map[string]float64 // of clients who write no line for each request
	Lasted     time.Duration      // from the first sample to the last
}

// fault is one that happened, with what it allows.
type fault struct {
	*history.Fault
	*effect
	instance  int
	row       string
	until     time.Time     // its end and the time to recover
	recovered time.Duration // after its end, as far as was seen
}

// bench is where observations are held against what the faults of their time allow.
type bench struct {
	instances int
	faults    []*fault           // by begin
	bySecond  map[int64][]*fault // those that count in a second
	report    *Report
}

// Judge judges a run. The error is that the history is none of a run.
func Judge(h *history.History) (*Report, error) {
	if err := validate(h); err != nil {
		return nil, err
	}
	t := newTrial(h)
	b := newBench(h, t)
	t.tell, t.bound = b.weigh, b.bound
	for _, a := range t.accounts {
		t.judgeRequests(a)
		t.judgeInProgress(a)
		t.judgeBytes(a)
		t.judgeAnswers(a)
		t.judgeCosts(a)
		t.judgeRefusals(a)
		t.judgeCostRefusals(a)
		b.report.Requests += len(a.requests)
		b.report.Admitted += len(a.admitted)
	}
	for _, l := range h.Leaks {
		b.weigh(Observation{Property: Leaked, User: l.User, Instance: -1, What: fmt.Sprintf("%s in %s of %s", l.What, l.Place, l.Holder), Begin: l.At, End: l.At, Count: math.Abs(float64(l.Count))})
	}
	t.judgeMemory()
	b.weighRecovery()
	b.report.Stalled = stalled(h)
	for _, p := range h.Problems {
		b.report.Problems = append(b.report.Problems, p.What)
	}
	b.report.judgeGrowth(h)
	return b.report, nil
}

func newBench(h *history.History, t *trial) *bench {
	b := &bench{instances: t.instances, bySecond: map[int64][]*fault{}, report: &Report{Run: h.Run, Cells: map[string]*[properties]Cell{}}}
	unknown := map[string]bool{}
	for i := range h.Faults {
		f := &fault{Fault: &h.Faults[i], effect: effectOf(&h.Faults[i])}
		kind, instance := partOf(f.Target)
		f.row, f.instance = f.Name+" "+kind, instance
		if kind == f.Name || kind == "" {
			f.row = f.Name
		}
		if f.effect == nil {
			if !unknown[f.row] {
				b.report.Unbounded = append(b.report.Unbounded, f.row)
			}
			unknown[f.row], f.effect = true, &normal
		}
		if f.End.Before(f.Begin) {
			f.End = f.Begin
		}
		f.until = f.End.Add(max(f.recovery, f.drains))
		b.faults = append(b.faults, f)
		for s := f.Begin.Unix(); s <= f.until.Unix(); s++ {
			b.bySecond[s] = append(b.bySecond[s], f)
		}
	}
	slices.SortFunc(b.faults, func(a, b *fault) int { return a.Begin.Compare(b.Begin) })
	slices.Sort(b.report.Unbounded)
	return b
}

// stalled is the share of a history's time that is in faults of the machine.
func stalled(h *history.History) float64 {
	var whole, part time.Duration
	for _, q := range h.Quiets {
		whole = max(whole, q.End.Sub(h.Run.Begin))
	}
	for _, f := range h.Faults {
		if f.Name == history.Machine {
			part += f.End.Sub(f.Begin)
		}
	}
	if whole <= 0 {
		return 0
	}
	return min(1, part.Seconds()/whole.Seconds())
}

func (b *bench) active(o *Observation) (all []*fault) {
	candidates := b.faults
	if begin, end := o.Begin.Unix(), o.End.Unix(); end == begin {
		candidates = b.bySecond[begin]
	} else if end == begin+1 {
		candidates = slices.Concat(b.bySecond[begin], b.bySecond[end])
	}
	for _, f := range candidates {
		if !f.Begin.After(o.End) && !f.until.Before(o.Begin) && !slices.Contains(all, f) {
			all = append(all, f)
		}
	}
	return all
}

func (f *fault) allows(o *Observation, n int) float64 {
	switch {
	case o.Property.lowerIsWorse() && o.Begin.Before(f.Begin.Add(f.unnoticed)):
		return 0
	case o.Property != RefusedInProgress && o.Begin.After(f.End.Add(f.recovery)):
		return normal.bound(o, n, -1)
	}
	return f.bound(o, n, f.instance)
}

// place is what two faults have in common that do not allow more together than one of them.
type place struct {
	what     string
	instance int
}

func (f *fault) place() place {
	if f.Name == history.Machine || strings.Contains(f.Target, "redis") {
		return place{"redis", f.instance}
	}
	return place{f.row, f.instance}
}

// together is what faults allow that count at the same time. Each lets requests pass in its own way, and so what they
// allow beyond what always holds is added; but Redis, which a machine that stands still is, too, cannot be more than away.
func (b *bench) together(active []*fault, o *Observation, usual float64) float64 {
	if o.Property > Costs {
		bound := usual
		for _, f := range active {
			if allowed := f.allows(o, b.instances); o.Property.looser(allowed, bound) {
				bound = allowed
			}
		}
		return bound
	}
	beyond, forgotten := map[place]float64{}, map[int]bool{}
	for _, f := range active {
		at := f.place()
		beyond[at] = max(beyond[at], f.allows(o, b.instances)-usual)
		forgotten[f.instance] = forgotten[f.instance] || f.forgets
	}
	bound := usual
	for _, f := range active {
		at := f.place()
		bound += beyond[at]
		if f.alone && forgotten[f.instance] {
			bound += beyond[at]
			if o.Property == Bytes {
				return math.Inf(1)
			}
		}
		delete(beyond, at)
	}
	return bound
}

// weigh puts an observation into the row of the fault that allows most of it. If none allows more than what
// always holds, it is in the row of the one that began last.
func (b *bench) weigh(o Observation) {
	if o.Property == Leaked {
		b.record(o, 0, Calm, nil)
		return
	}
	usual := normal.bound(&o, b.instances, -1)
	most, row := usual, Calm
	var by *fault
	active := b.active(&o)
	for _, f := range active {
		allowed := f.allows(&o, b.instances)
		switch looser := o.Property.looser(allowed, most); {
		case looser:
			most, by = allowed, f
		case most == usual && (by == nil || f.Begin.After(by.Begin)):
			by = f
		}
	}
	if !o.within(usual) {
		if by == nil {
			by = b.lastEnded(o.Begin)
		}
		for _, f := range append(active, by) {
			if f != nil && (f == by || o.Property.looser(f.allows(&o, b.instances), usual)) {
				f.recovered = max(f.recovered, o.Begin.Sub(f.End))
			}
		}
	}
	if by != nil {
		row = by.row
	}
	b.record(o, b.together(active, &o, usual), row, by)
}

func (b *bench) bound(o *Observation) float64 {
	return b.together(b.active(o), o, normal.bound(o, b.instances, -1))
}

// lastEnded is the fault that ended last before a time, if that is not long ago.
func (b *bench) lastEnded(at time.Time) (last *fault) {
	for _, f := range b.faults {
		if f.End.Before(at) && f.End.After(at.Add(-aftermath)) && (last == nil || f.End.After(last.End)) {
			last = f
		}
	}
	return last
}

func (b *bench) weighRecovery() {
	for _, f := range b.faults {
		o := Observation{Property: Exact, Instance: -1, What: "until everything is exact again", Begin: f.End, End: f.End.Add(f.recovered), Count: f.recovered.Seconds()}
		b.record(o, f.until.Sub(f.End).Seconds(), f.row, f)
	}
	slices.SortStableFunc(b.report.Violations, func(a, b Violation) int {
		return cmp.Or(a.Begin.Compare(b.Begin), cmp.Compare(a.Property, b.Property), cmp.Compare(a.User, b.User))
	})
	b.report.Violations = b.report.Violations[:min(len(b.report.Violations), maxViolations)]
}

func (b *bench) record(o Observation, bound float64, row string, by *fault) {
	cells := b.report.Cells[row]
	if cells == nil {
		cells = &[properties]Cell{}
		b.report.Cells[row] = cells
	}
	c := &cells[o.Property]
	c.Seen++
	c.Sum += o.Count
	bad := !o.within(bound)
	if bad {
		c.Bad++
		b.report.Bad++
		v := Violation{Observation: o, Bound: bound, Row: row}
		if by != nil {
			v.Fault = by.Fault
		}
		if len(b.report.Violations) < maxRemembered {
			b.report.Violations = append(b.report.Violations, v)
		}
	}
	if worse := o.Property.looser(o.Value(), c.Worst.Value()); c.Seen == 1 || bad && !c.violations || bad == c.violations && worse {
		c.Worst, c.Bound, c.violations = o, bound, bad
	}
}
