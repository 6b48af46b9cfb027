package ratelimit

import "time"

// agendaTick is the resolution of the agenda, and the rhythm in which an
// agent's owner is expected to call Tick.
const agendaTick = 5 * time.Millisecond

// agenda is a timer wheel: which buckets want to be looked at when. It makes a
// Tick cost what is due in it, not what the agent knows. A bucket stands in it
// at most once; only an earlier time moves it.
type agenda struct {
	slots [512][]*bucket // 2.56 s; later times come round and are put off again
	done  int64          // the last tick that was begun
	today []*bucket      // what is left of it
}

func tickOf(ns int64) int64 { return ns / int64(agendaTick) }

// put asks for the bucket to be looked at, at or shortly after a time.
func (g *agenda) put(b *bucket, at int64) {
	tick := max(tickOf(at)+1, g.done+1)
	if b.due != 0 && b.due <= tick {
		return
	}
	tick = min(tick, g.done+int64(len(g.slots))-1)
	b.due = tick
	slot := &g.slots[tick%int64(len(g.slots))]
	*slot = append(*slot, b)
}

// maxLooks bounds what one call of take looks at: at the end of a second all that
// is known is due at once, and nobody's request should wait for all of it.
const maxLooks = 4096

// take calls look for every bucket that is due, or for maxLooks of them.
func (g *agenda) take(now int64, look func(*bucket)) {
	last := tickOf(now)
	if last+int64(len(g.slots)) < g.done {
		g.rewind(last) // the clock was set back
	}
	if last-g.done > int64(len(g.slots)) {
		g.done = last - int64(len(g.slots)) // after a long pause one round visits every slot
	}
	for looks := 0; looks < maxLooks; looks++ {
		b := g.next(last)
		if b == nil {
			return
		}
		b.due = 0
		look(b)
	}
}

// next takes out a bucket that is due, or returns nil.
func (g *agenda) next(last int64) *bucket {
	for {
		for len(g.today) > 0 {
			b := g.today[len(g.today)-1]
			g.today[len(g.today)-1] = nil
			g.today = g.today[:len(g.today)-1]
			if b.due != 0 && b.due <= g.done {
				return b
			}
			// It was looked at already, or moved: then it stands elsewhere.
		}
		if g.done >= last {
			return nil
		}
		g.done++
		slot := &g.slots[g.done%int64(len(g.slots))]
		g.today, *slot = *slot, g.today[:0] // nothing is put into today's slot meanwhile
	}
}

// rewind makes everything due at once, after a tick in the past.
func (g *agenda) rewind(tick int64) {
	all := g.today
	g.today = nil
	for _, b := range all {
		b.due = 0
	}
	for i := range g.slots {
		for _, b := range g.slots[i] {
			if b.due != 0 {
				b.due = 0
				all = append(all, b)
			}
		}
		g.slots[i] = nil
	}
	g.done = tick - 2
	for _, b := range all {
		g.put(b, 0)
	}
}
