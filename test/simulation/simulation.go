// Package simulation runs histories of events in simulated time, for tests that
// want a whole cluster and the same result every time.
package simulation

import (
	"math/rand/v2"
	"time"
)

// Start is the instant at which every simulation begins.
var Start = time.Unix(1_700_000_000, 0)

// A Run is one history. Events at the same instant happen in the order in which
// they were put on the agenda.
type Run struct {
	Now  time.Time
	Rand *rand.Rand

	events events
	seq    int
}

// New returns a run that knows of no event. Equal seeds make equal histories.
func New(seed uint64) *Run {
	return &Run{Now: Start, Rand: rand.New(rand.NewPCG(seed, 1))}
}

// At has something done at an instant.
func (r *Run) At(t time.Time, do func()) {
	r.seq++
	r.events.push(event{t.Sub(Start), r.seq, do})
}

// After has something done a while from now.
func (r *Run) After(d time.Duration, do func()) { r.At(r.Now.Add(d), do) }

// Until lets everything happen that happens before an instant.
func (r *Run) Until(end time.Time) {
	last := end.Sub(Start)
	for len(r.events) > 0 && r.events[0].after < last {
		e := r.events.pop()
		r.Now = Start.Add(e.after)
		e.do()
	}
}

// Link is a way that messages take. The zero Link is instant and loses nothing.
type Link struct {
	RTT   time.Duration // mean time there and back
	Stall float64       // chance that a way takes 50 times as long
	Loss  float64       // chance that a message, or its answer, is lost
}

// Delay is how long one message takes one way.
func (r *Run) Delay(l Link) time.Duration {
	d := time.Duration((0.5 + r.Rand.ExpFloat64()/2) * float64(l.RTT) / 2)
	if r.Rand.Float64() < l.Stall {
		d *= 50
	}
	return d
}

type event struct {
	after time.Duration // Start
	seq   int
	do    func()
}

func (e event) before(f event) bool {
	return e.after < f.after || e.after == f.after && e.seq < f.seq
}

// events is a heap, the next event first. It is written out because most of a
// simulation's time goes into it: with container/heap they took twice as long.
type events []event

func (e *events) push(add event) {
	*e = append(*e, add)
	h := *e
	i := len(h) - 1
	for i > 0 {
		parent := (i - 1) / 2
		if h[parent].before(add) {
			break
		}
		h[i] = h[parent]
		i = parent
	}
	h[i] = add
}

func (e *events) pop() event {
	h := *e
	first, last := h[0], h[len(h)-1]
	h[len(h)-1] = event{} // so that what it does can be collected
	h = h[:len(h)-1]
	*e = h
	if len(h) == 0 {
		return first
	}
	i := 0
	for {
		child := 2*i + 1
		if child >= len(h) {
			break
		}
		if child+1 < len(h) && h[child+1].before(h[child]) {
			child++
		}
		if last.before(h[child]) {
			break
		}
		h[i] = h[child]
		i = child
	}
	h[i] = last
	return first
}
