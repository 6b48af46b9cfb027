package judge

import (
	"math"
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/sluice-qos/sluice/test/longrun/history"
)

// part is a part of a limit, of n instances: whole + even/n + each·n.
type part struct{ whole, even, each float64 }

func (p part) of(n int) float64 { return p.whole + p.even/float64(n) + p.each*float64(n) }

var (
	whole     = part{whole: 1}
	double    = part{whole: 2}
	perEach   = part{each: 1} // the limit once at each instance
	unbounded = part{whole: math.Inf(1)}
)

func plus(even float64) part { return part{whole: 1, even: even} }

type victims int

const (
	nobodys victims = iota
	itsOwn          // those through the instance that it is about
	everybodys
)

// An effect is what a fault allows while it lasts and for recovery after its end. A field that is zero is as without a fault.
type effect struct {
	requests, inProgress, bytes, costs part // the most of a limit that is admitted, in progress, moved, spent
	waits                              part // the longest wait, as a multiple of the wait without faults
	// HAProxy admits its part of the default tier, whose limit may be larger than the user's own.
	byDefault bool
	fails     victims
	// Users who had this part of their limit may be refused.
	refusedRate, refusedInProgress, refusedCost *part
	// Time until any part notices the fault. Until then users may be refused whatever they had.
	unnoticed time.Duration
	recovery  time.Duration
	// Time after the end in which refusedInProgress holds, if longer than recovery.
	drains time.Duration
	// alone: a HAProxy decides without its agent. forgets: it lost its counts. Both together double what it
	// admits, and it limits no bytes.
	alone, forgets bool
}

func (e effect) noticed() effect { e.unnoticed = 0; return e }

func (e effect) recovers(d time.Duration) effect { e.recovery = d; return e }

type allowance struct {
	faults []string
	part   string
	effect
}

// normal holds without faults. Refusals below 0.6 of a limit are too early: HAProxies have a quarter of the limit as credit, and agents
// lease some of the rest ahead. An agent that counted each request twice would refuse at half. Costs are never leased ahead, but a correction
// is sent once, and a few of a burst may be lost. An agent without corrections would refuse users at half if they announce twice the cost.
var normal = effect{
	requests: whole, inProgress: whole, bytes: whole, costs: whole, waits: whole,
	refusedRate: &part{whole: 0.6}, refusedInProgress: &part{whole: 0.6}, refusedCost: &part{whole: 0.8},
}

// firstSecond is how much of the limit the first second of a transfer may move (test/integration/bandwidth_test.go).
const firstSecond = 1.15

// bound is what an effect allows of an observation, in its property's values.
func (e *effect) bound(o *Observation, n int, instance int) float64 {
	switch o.Property {
	case Requests:
		return e.ofLimit(e.requests, o, n)
	case InProgress:
		return e.ofLimit(e.inProgress, o, n)
	case Bytes:
		return max(1, e.bytes.of(n)) * firstSecond
	case Costs:
		return max(1, e.costs.of(n))
	case Waited:
		return max(1, e.waits.of(n))
	case Memory:
		return 1
	case Failed:
		if e.mayFail(o, instance) {
			return math.Inf(1)
		}
	case RefusedRate:
		return e.refusal(e.refusedRate, normal.refusedRate, o, n, instance)
	case RefusedInProgress:
		return e.refusal(e.refusedInProgress, normal.refusedInProgress, o, n, instance)
	case RefusedCost:
		return e.refusal(e.refusedCost, normal.refusedCost, o, n, instance)
	case Exact:
		return e.recovery.Seconds()
	}
	return 0
}

func (e *effect) ofLimit(p part, o *Observation, n int) float64 {
	bound := max(1, p.of(n))
	if e.byDefault && o.Default > o.Limit {
		bound = max(bound, 1+o.Default/o.Limit/float64(n))
	}
	return bound
}

// mayFail reports whether a fault of an instance, -1 if of none, may fail the request of an observation.
func (e *effect) mayFail(o *Observation, instance int) bool {
	return e.fails == everybodys || e.fails == itsOwn && (instance == o.Instance || instance < 0)
}

// refusal is the part of a limit that a refused user must have had: p, if that is less than otherwise.
func (e *effect) refusal(p, otherwise *part, o *Observation, n, instance int) float64 {
	switch {
	case e.mayFail(o, instance):
		return 0 // a verdict that came too late is a refusal, too
	case e.byDefault && math.IsInf(o.Limit, 1):
		return 0 // without an agent users without a limit have the default tier's
	case p == nil:
		return otherwise.of(n)
	}
	return min(p.of(n), otherwise.of(n))
}

// effectOf finds what a fault allows: the first row of the table that is about it. Nil if there is none.
func effectOf(f *history.Fault) *effect {
	kind, _ := partOf(f.Target)
	for i := range allowances {
		if a := &allowances[i]; slices.Contains(a.faults, f.Name) && (a.part == kind || a.part == "") {
			return &a.effect
		}
	}
	return nil
}

// partOf is the kind of a fault's target, such as "agent", or "agent→haproxy peers" of a link, and the number of the first
// instance that it names, or -1.
func partOf(target string) (kind string, instance int) {
	var first string
	kind = numbers.ReplaceAllString(target, "")
	for _, m := range ofInstance.FindAllStringSubmatch(target, 1) {
		first = m[1]
	}
	if n, err := strconv.Atoi(first); err == nil {
		return kind, n
	}
	return kind, -1
}

var (
	numbers    = regexp.MustCompile(`-[0-9]+\b`)
	ofInstance = regexp.MustCompile(`\b(?:agent|haproxy)-([0-9]+)\b`)
)
