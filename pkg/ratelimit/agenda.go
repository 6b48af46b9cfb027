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
	done  int64          // the last tick that was taken out
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

// take calls look for every bucket that is due.
func (g *agenda) take(now int64, look func(*bucket)) {
	last := tickOf(now)
	if last-g.done > int64(len(g.slots)) {
		g.done = last - int64(len(g.slots)) // after a long pause one round visits every slot
	}
	for g.done < last {
		g.done++
		slot := &g.slots[g.done%int64(len(g.slots))]
		for _, b := range *slot {
			if b.due == 0 || b.due > g.done {
				continue // looked at already, or moved: it stands elsewhere
			}
			b.due = 0
			look(b)
		}
		// Nothing was added meanwhile: put never reaches a whole round ahead.
		clear(*slot)
		*slot = (*slot)[:0]
	}
}
