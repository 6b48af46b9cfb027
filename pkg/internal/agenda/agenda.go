// Package agenda is the timer wheel of the cores: it says which of many things
// want to be looked at when, and makes each look at the clock cost what is due,
// not what there is. It has no clock; every call takes the time.
package agenda

import "time"

// Tick is the resolution, and the rhythm in which Take is expected to be called.
const Tick = 5 * time.Millisecond

// A Place is where a thing stands in its agenda. Embed it. The zero Place stands
// nowhere.
type Place struct{ due int64 } // tick, 0 if it stands nowhere

func (p *Place) place() *Place { return p }

// An Agenda holds things of one type that embed a Place, each at most once. The
// zero Agenda is empty and ready. It is not safe for concurrent use.
type Agenda[T interface{ place() *Place }] struct {
	slots [512][]T // 2.56 s; later times come round and are put off again
	done  int64    // the last tick that was begun
	today []T      // what is left of it
	next  int64    // no later than the first tick in which anything is due; 0: nothing stands here
}

func tickOf(ns int64) int64 { return ns / int64(Tick) }

// Put asks for a thing to be looked at, at or shortly after a time in
// nanoseconds, or 2.5 s from now if that is earlier. Only an earlier time moves
// what stands in the agenda already.
func (g *Agenda[T]) Put(thing T, at int64) {
	p := thing.place()
	// The tick after: what is due within a tick must not be looked at before its time.
	tick := max(tickOf(at)+1, g.done+1)
	if p.due != 0 && p.due <= tick {
		return
	}
	tick = min(tick, g.done+int64(len(g.slots))-1)
	p.due = tick
	if g.next == 0 || tick < g.next {
		g.next = tick
	}
	slot := &g.slots[tick%int64(len(g.slots))]
	*slot = append(*slot, thing)
}

// Next is the time in nanoseconds before which Take finds nothing, and false if it never
// will. Something that was moved to an earlier time leaves its former one behind, at which
// Take may find nothing either.
func (g *Agenda[T]) Next() (at int64, any bool) { return g.next * int64(Tick), g.next != 0 }

// maxLooks bounds what one call of Take looks at: many things may be due at
// once, and nobody should wait for all of them.
const maxLooks = 4096

// Take calls look for everything that is due, or for the first 4096 of it. What
// it looks at stands in the agenda no more, unless look puts it there again.
func (g *Agenda[T]) Take(now int64, look func(T)) {
	last := tickOf(now)
	if last+int64(len(g.slots)) < g.done {
		g.rewind(last) // the clock was set back
	}
	if last-g.done > int64(len(g.slots)) {
		g.done = last - int64(len(g.slots)) // after a long pause one round visits every slot
	}
	// Once a call, not with each thing that is taken: it walks through the slots.
	defer g.findNext()
	// The caller holds a lock that requests wait for.
	for looks := 0; looks < maxLooks; looks++ {
		thing, ok := g.take(last)
		if !ok {
			return
		}
		thing.place().due = 0
		look(thing)
	}
}

func (g *Agenda[T]) findNext() {
	if g.next == 0 || g.next > g.done || len(g.today) > 0 {
		return
	}
	for ahead := range int64(len(g.slots)) {
		tick := g.done + 1 + ahead
		if len(g.slots[tick%int64(len(g.slots))]) > 0 {
			g.next = tick
			return
		}
	}
	g.next = 0
}

// take takes out one thing that is due, if there is one.
func (g *Agenda[T]) take(last int64) (thing T, ok bool) {
	var none T
	for {
		for len(g.today) > 0 {
			end := len(g.today) - 1
			thing, g.today[end] = g.today[end], none
			g.today = g.today[:end]
			if due := thing.place().due; due != 0 && due <= g.done {
				return thing, true
			}
			// It was looked at already, or moved: then it stands elsewhere.
		}
		if g.done >= last {
			return none, false
		}
		g.done++
		slot := &g.slots[g.done%int64(len(g.slots))]
		g.today, *slot = *slot, g.today[:0] // nothing is put into today's slot meanwhile
	}
}

// rewind makes everything due at once, after a tick in the past.
func (g *Agenda[T]) rewind(tick int64) {
	all := g.today
	g.today = nil
	for _, thing := range all {
		thing.place().due = 0
	}
	for i := range g.slots {
		for _, thing := range g.slots[i] {
			if p := thing.place(); p.due != 0 {
				p.due = 0
				all = append(all, thing)
			}
		}
		g.slots[i] = nil
	}
	g.done, g.next = tick-2, 0
	for _, thing := range all {
		g.Put(thing, 0)
	}
}
