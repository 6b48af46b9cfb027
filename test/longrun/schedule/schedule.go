// Package schedule plans the faults of a run: a pure function of the seed, the store and the duration, so that the seed repeats a run.
package schedule

import (
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/sluice-qos/sluice/test/longrun/history"
)

// Instances and Polygens are how many there are of each.
const (
	Instances = 3
	Polygens  = 2
)

// Stores are the kinds of Redis, in the order in which a run has them in turn.
var Stores = []string{"single", "sentinel", "cluster"}

// Nodes is how many servers of Redis a store has, and Sentinels how many watch them.
func Nodes(store string) int { return map[string]int{"single": 1, "sentinel": 2, "cluster": 6}[store] }

// Sentinels is how many Sentinels a store has.
func Sentinels(store string) int { return map[string]int{"sentinel": 3}[store] }

// Fault is one that begins at a time after the run's begin, and lasts.
type Fault struct {
	At, For      time.Duration
	Name, Target string
	Variant      string // which of the ways in which the fault can be, "" if there is one only
	Amount       int64  // milliseconds, bytes per second or what else the fault says
}

// Parameter is how the history has the variant and the amount.
func (f Fault) Parameter() string {
	if !strings.Contains(f.Variant, "%") {
		return f.Variant
	}
	return fmt.Sprintf(f.Variant, f.Amount)
}

func (f Fault) String() string {
	s := fmt.Sprintf("%6.1fs  %s %s", f.At.Seconds(), f.Name, f.Target)
	if p := f.Parameter(); p != "" {
		s += " (" + p + ")"
	}
	return s + fmt.Sprintf(" for %.1fs", f.For.Seconds())
}

// Quiet is a time without faults: with load until Rest, and without any until End.
type Quiet struct{ Begin, Rest, End time.Duration }

// Plan is a run's.
type Plan struct {
	Faults []Fault // by time
	Quiets []Quiet // by time; the last one ends with the run
}

const (
	calmAtFirst = 8 * time.Second  // until the first fault
	round       = 45 * time.Second // in which faults begin
	recovery    = 4 * time.Second  // in which a target has no other fault after one
	quietLoad   = 18 * time.Second // in which all must become exact
	quietRest   = 6 * time.Second
)

// Print writes the plan for people.
func (p Plan) Print(w io.Writer) {
	quiets := p.Quiets
	for _, f := range p.Faults {
		for len(quiets) > 0 && quiets[0].Begin <= f.At {
			fmt.Fprintf(w, "%6.1fs  quiet until %v\n", quiets[0].Begin.Seconds(), quiets[0].End)
			quiets = quiets[1:]
		}
		fmt.Fprintln(w, f)
	}
}

// Soak returns the plan of a run under steady load: each minute other limits, and each HAProxy reloaded.
func Soak(d time.Duration) (p Plan) {
	for minute := time.Minute; minute < d; minute += time.Minute {
		if minute/time.Minute%2 == 1 {
			p.Faults = append(p.Faults, Fault{At: minute, For: min(time.Minute, d-minute), Name: history.Replace, Target: "limits"})
		}
		for i, target := range haproxies("") {
			if at := minute + time.Duration(i+1)*10*time.Second; at < d {
				p.Faults = append(p.Faults, Fault{At: at, Name: history.Reload, Target: target})
			}
		}
	}
	p.Quiets = []Quiet{{d, d, d + quietRest}}
	return p
}

// Overload returns the plan of a flood on conns connections to each HAProxy, and of a storm of connections after it.
func Overload(d time.Duration, conns, storm int) Plan {
	const calm, stormFor = 5 * time.Second, 5 * time.Second
	second := calm + d + quietLoad + quietRest
	return Plan{
		Faults: []Fault{
			{At: calm, For: d, Name: history.Overload, Target: "all", Variant: "%d connections", Amount: int64(conns)},
			{At: second + calm, For: stormFor, Name: history.Storm, Target: "all", Variant: "%d connections", Amount: int64(storm)},
		},
		Quiets: []Quiet{
			{calm + d, calm + d + quietLoad, second},
			{second + calm + stormFor, second + calm + stormFor + quietLoad, second + calm + stormFor + quietLoad + quietRest},
		},
	}
}

// Chaos returns the plan of faults of a seed. It has one quiet time at least, so it may take longer than a short duration.
func Chaos(seed uint64, store string, d time.Duration) Plan {
	h := fnv.New64a()
	_, _ = h.Write([]byte(store))
	p := planner{random: rand.New(rand.NewPCG(seed, h.Sum64())), store: store, busy: map[string]time.Duration{}}
	for at := calmAtFirst; ; {
		end := min(at+round, d-quietLoad-quietRest)
		p.round(at, end)
		at = max(at, end)
		q := Quiet{at, at + quietLoad, at + quietLoad + quietRest}
		p.plan.Quiets = append(p.plan.Quiets, q)
		if at = q.End; at+quietLoad+quietRest+recovery > d {
			return p.plan
		}
	}
}

// Only leaves faults out that none of these is part of, as "stop haproxy-1" or "slow": to find out which of them a failure
// needs.
func (p Plan) Only(some []string) Plan {
	if len(some) == 0 {
		return p
	}
	p.Faults = slices.DeleteFunc(slices.Clone(p.Faults), func(f Fault) bool {
		return !slices.ContainsFunc(some, func(s string) bool { return strings.Contains(f.Name+" "+f.Target, s) })
	})
	return p
}

type planner struct {
	random *rand.Rand
	store  string
	plan   Plan
	busy   map[string]time.Duration // until when a target has no other fault
}

// round draws the faults that begin from a time on, and have ended at another one.
func (p *planner) round(from, to time.Duration) {
	for at := from; at < to-recovery; at += p.between(2*time.Second, 7*time.Second) {
		faults := 1 + p.random.IntN(3)/2 // a third of them are pairs
		for range faults {
			p.draw(at, to)
		}
	}
}

func (p *planner) draw(at, to time.Duration) {
	kind := kinds[p.pick()]
	targets := kind.targets(p.store)
	if len(targets) == 0 {
		return
	}
	f := Fault{At: at, Name: kind.name, Target: targets[p.random.IntN(len(targets))]}
	shape := kind.shapes[p.random.IntN(len(kind.shapes))]
	f.Variant = shape.variant
	if shape.least < shape.most {
		f.Amount = shape.least + p.random.Int64N(shape.most-shape.least+1)
	}
	f.For = min(p.between(kind.least, kind.most), to-at).Round(time.Millisecond)
	if p.busy[f.Target] > at {
		return
	}
	p.busy[f.Target] = at + f.For + recovery
	p.plan.Faults = append(p.plan.Faults, f)
}

// between draws short times more often than long ones.
func (p *planner) between(least, most time.Duration) time.Duration {
	x := p.random.Float64()
	return least + time.Duration(x*x*float64(most-least)).Round(time.Millisecond)
}

func (p *planner) pick() int {
	all := 0
	for _, k := range kinds {
		all += k.weight
	}
	n := p.random.IntN(all)
	for i, k := range kinds {
		if n -= k.weight; n < 0 {
			return i
		}
	}
	panic("schedule: weights do not add up")
}
