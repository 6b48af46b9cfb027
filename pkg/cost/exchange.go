package cost

import (
	"slices"
	"time"

	"github.com/sluice-qos/sluice/pkg/cause"
	"github.com/sluice-qos/sluice/pkg/limits"
)

// MaxBatch bounds the asks that Collect returns at a time: they are one call of a script, and
// Redis serves nobody else while it runs.
const MaxBatch = 128

// Collect appends what is to be sent to the pools now. Corrections wait for a flush, or for the
// next request that has to ask, so that many are one message. What is more than a batch waits
// for the next call, for which Output is urgent if requests are left; requests and corrections
// each have half of a batch at least, if they need it. Each Ask must be answered by one call of
// Reply or Fail, and all of a batch before the next call. A batch that failed comes again, as
// it was and under its number, and nothing else before it was heard.
func (a *Agent) Collect(at time.Time, flush bool, asks []Ask) []Ask {
	if len(a.unanswered) > 0 {
		asks = append(asks, a.unanswered...)
		a.unanswered = nil
		a.out.Urgent = a.out.Urgent || len(a.toAsk) > 0
		return asks
	}
	first, now := len(asks), at.UnixNano()
	sec := a.second(now)
	// Requests are refused if they wait for too long. Half of the batch is theirs, however many corrections there are.
	requests := a.nextRequests(now, MaxBatch-min(a.corrections.length(), MaxBatch/2))
	if flush || len(requests) > 0 {
		room := MaxBatch - len(requests)
		send := func(c *correction, change int64) { asks = append(asks, c.ask(sec, change)) }
		// Before the charges: what goes back may be what a request needs.
		if a.corrections.length() > room {
			for _, w := range requests {
				room = a.corrections.takeOf(w.owner.name, w.needs, sec, room, send)
			}
		}
		a.corrections.take(room, send)
	}
	for _, w := range requests {
		asks = append(asks, w.ask(sec))
		w.owner.asking++
	}
	a.out.Urgent = a.out.Urgent || len(a.toAsk) > 0
	if len(asks) > first {
		a.seq++
		for i := range asks[first:] {
			asks[first+i].Seq = a.seq
		}
	}
	return asks
}

// nextRequests takes the requests that the pools are to be asked about next, at most so many,
// out of those that wait.
func (a *Agent) nextRequests(now int64, most int) (requests []*Waiting) {
	n := 0
	for ; n < len(a.toAsk) && len(requests) < most; n++ {
		w := a.toAsk[n]
		if w.decided {
			continue
		}
		// The pools may have refused as much since it began to wait.
		if v, refused := a.refusedBefore(w.owner, w.needs, now); refused {
			a.decided(w, v)
			continue
		}
		requests = append(requests, w)
	}
	left := copy(a.toAsk, a.toAsk[n:])
	clear(a.toAsk[left:])
	a.toAsk = a.toAsk[:left]
	return requests
}

func (c *correction) ask(sec, change int64) Ask {
	if c.second != presentSecond {
		sec = c.second
	}
	ask := Ask{User: c.user, Forced: true, Second: sec, Entries: make([]Entry, len(c.costs))}
	for i, cost := range c.costs {
		ask.Entries[i] = Need{cost, change}.entry(sec)
	}
	return ask
}

func (w *Waiting) ask(sec int64) Ask {
	ask := Ask{User: w.owner.name, Second: sec, Entries: make([]Entry, len(w.needs)), waits: w}
	for i, n := range w.needs {
		ask.Entries[i] = n.entry(sec)
	}
	return ask
}

// Reply takes the pools' answer to an Ask.
func (a *Agent) Reply(at time.Time, ask Ask, g Grant) {
	a.heard++
	now := at.UnixNano()
	u := a.users[ask.User]
	if u != nil {
		for i, e := range ask.Entries {
			if p := u.findPool(e.Unit, e.Window); p != nil && p.Start == e.Start {
				p.total = g.Totals[i]
				// A request that was refused before it went back may have room now.
				if ask.Forced && e.Change < 0 {
					p.until = 0
				}
			}
		}
	}
	w := ask.waits
	if w == nil {
		return
	}
	w.owner.asking--
	switch {
	case w.decided && g.Granted:
		// It has been refused for waiting too long, or was charged without the pools: nobody uses this charge.
		a.giveBack(now, ask.User, w.needs, ask.Second)
	case w.decided:
	case g.Granted:
		a.decided(w, a.granted(w, ask, g))
	default:
		a.decided(w, a.refused(w, ask, g, now))
	}
}

func (a *Agent) granted(w *Waiting, ask Ask, g Grant) Verdict {
	v := Verdict{Allowed: true, Charged: true, Second: ask.Second}
	for i, n := range w.needs {
		if p := w.owner.findPool(n.Cost.Unit, n.Cost.Window); p != nil && p.Start == ask.Entries[i].Start {
			p.own += n.Amount
		}
		if !enforced(n) && g.Totals[i] > n.Cost.Max {
			v.WouldRefuse = n.Cost
		}
	}
	return v
}

// refused is the verdict about a request that the pools have refused. It remembers how
// much they refused.
func (a *Agent) refused(w *Waiting, ask Ask, g Grant, now int64) (v Verdict) {
	for i, n := range w.needs {
		if ask.Entries[i].Fits(g.Totals[i]) {
			continue
		}
		if p := w.owner.findPool(n.Cost.Unit, n.Cost.Window); p != nil && p.Start == ask.Entries[i].Start {
			if now >= p.until || n.Amount < p.refused {
				p.refused = n.Amount
			}
			p.until = now + int64(askAgain)
		}
		if by := refuse(n.Cost, cause.Pool, ask.Second); v.Limit == (limits.Cost{}) || by.End() > v.End() {
			v = by
		}
	}
	// The answer to an ask that was repeated tells the totals of now, in which there may be room again.
	if v.Limit == (limits.Cost{}) {
		v = refuse(w.needs[slices.IndexFunc(w.needs, enforced)].Cost, cause.Pool, ask.Second)
	}
	return v
}

// Fail takes back an Ask that got no answer. It is sent again under the number of its batch,
// which the pools count once, whether they have heard it, or hear it yet, or never do.
func (a *Agent) Fail(_ time.Time, ask Ask) {
	a.unanswered = append(a.unanswered, ask)
}
