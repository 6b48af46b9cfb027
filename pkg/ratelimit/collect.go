package ratelimit

import (
	"slices"
	"time"
)

// maxBatch bounds the asks that Collect returns at a time, so that nobody's
// request waits behind a large batch for longer than it may.
const maxBatch = 4096

// Collect appends what is to be sent to the pool now: asks for tokens, and,
// with flush, reports as well. What is more than a batch waits for the next
// call, for which Output is then urgent. Each Ask must be answered by one call
// of Reply or Fail, and all of a batch before the next call. A batch that failed comes
// again, as often as it fails, and nothing else before it was heard.
func (a *Agent) Collect(at time.Time, flush bool, asks []Ask) []Ask {
	if reports := slices.ContainsFunc(a.unanswered, func(ask Ask) bool { return ask.Debt+ask.Back > 0 }); reports {
		// As it was, and alone: the pool knows a batch by its number, and counts what it brings once.
		asks = append(asks, a.unanswered...)
		a.unanswered = nil
		if a.flushUrgent || len(a.tokenRequests) > 0 {
			a.out.Urgent = true
		}
		return asks
	}
	// What it wanted is asked for anew.
	a.unanswered = nil
	first := len(asks)
	asks = a.collect(at.UnixNano(), flush, asks)
	if len(asks) > first {
		a.seq++
		for i := range asks[first:] {
			asks[first+i].Seq = a.seq
		}
	}
	return asks
}

func (a *Agent) collect(now int64, flush bool, asks []Ask) []Ask {
	room := maxBatch
	send := func(ask Ask) bool {
		// It decides nothing any more, so tokens would be lost with it.
		if a.leaving {
			ask.Need, ask.Ahead = 0, 0
		}
		asks = append(asks, ask)
		return true
	}
	// Before asks of the same batch: what is left of an account's second is credit of its next.
	a.accountReports = takeBatch(a.accountReports, &room, send)
	a.tokenRequests = takeBatch(a.tokenRequests, &room, func(b *bucket) bool {
		// Before it is unmarked, for it may want again.
		a.advanceWindow(b, now)
		b.listedToAsk = false
		ask, ok := a.makeAsk(b, now)
		if ok {
			asks = append(asks, ask)
		}
		return ok
	})
	// Reports wait for each other, 5 ms at most, so that many requests are one message.
	if flush || a.flushUrgent {
		a.flushUrgent = false
		a.toReport = takeBatch(a.toReport, &room, func(b *bucket) bool {
			b.listedToReport = false
			if b.debt == 0 && b.back == 0 {
				return false
			}
			asks = append(asks, a.makeReport(b))
			return true
		})
		a.reports = takeBatch(a.reports, &room, send)
	}
	// There may be more than a batch holds: the shell is to call again at once.
	if room == 0 {
		a.flushNow()
	}
	return asks
}

func takeBatch[T any](list []T, room *int, use func(T) bool) []T {
	n := 0
	for n < len(list) && *room > 0 {
		if use(list[n]) {
			*room--
		}
		n++
	}
	left := copy(list, list[n:])
	// Else what was dropped stays reachable from the array.
	clear(list[left:])
	return list[:left]
}

func (a *Agent) makeReport(b *bucket) Ask {
	ask := a.emptyAsk(b, b.start)
	ask.Debt, ask.Back, ask.Instances = b.debt, b.back, a.sharers(b)
	b.debt, b.back = 0, 0
	return ask
}

func (a *Agent) makeAsk(b *bucket, now int64) (Ask, bool) {
	// One ask at a time: with two, the second would be for tokens that the first one brings.
	if b.asking || a.leaving || a.decidesAlone(b) {
		return Ask{}, false
	}
	need := max(0, b.waiting-b.balance)
	if b.spent || b.refusing {
		// Nobody waits for a spent key. It is asked as if somebody did, for need is granted to the last token.
		need = max(need, 1, min(b.unmet, b.target(now, a.fleet.instances)))
		b.unmet = 0
	}
	ahead := max(0, b.target(now, a.fleet.instances)-b.balance)
	if need+ahead == 0 {
		return Ask{}, false
	}
	ask := a.makeReport(b)
	ask.Need, ask.Ahead, ask.Untold = need, ahead, !b.throttle
	b.asking = true
	return ask, true
}

// requestTokens asks for tokens without delay.
func (a *Agent) requestTokens(b *bucket) {
	a.out.Urgent = true
	if !b.listedToAsk {
		b.listedToAsk = true
		a.tokenRequests = append(a.tokenRequests, b)
	}
}

// reportAtFlush notes that the bucket has something to report with the next flush.
func (a *Agent) reportAtFlush(b *bucket) {
	if !b.listedToReport {
		b.listedToReport = true
		a.toReport = append(a.toReport, b)
	}
}

// flushNow has the reports sent without waiting for the next flush.
func (a *Agent) flushNow() {
	a.out.Urgent = true
	a.flushUrgent = true
}
