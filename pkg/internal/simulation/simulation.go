// Package simulation runs histories of events in simulated time, for tests that
// want a whole cluster and the same result every time.
package simulation

import (
	"container/heap"
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
	heap.Push(&r.events, event{t, r.seq, do})
}

// After has something done a while from now.
func (r *Run) After(d time.Duration, do func()) { r.At(r.Now.Add(d), do) }

// Until lets everything happen that happens before an instant.
func (r *Run) Until(end time.Time) {
	for r.events.Len() > 0 && r.events[0].at.Before(end) {
		e := heap.Pop(&r.events).(event)
		r.Now = e.at
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
	at  time.Time
	seq int
	do  func()
}

type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	if !e[i].at.Equal(e[j].at) {
		return e[i].at.Before(e[j].at)
	}
	return e[i].seq < e[j].seq
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	old := *e
	x := old[len(old)-1]
	*e = old[:len(old)-1]
	return x
}
