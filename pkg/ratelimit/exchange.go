package ratelimit

import (
	"time"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// Reply takes the pool's answer to one Ask. A grant for a window that is over
// changes nothing but what is reported of that window.
func (a *Agent) Reply(at time.Time, ask Ask, g Grant) {
	a.heard++
	now := at.UnixNano()
	b := a.findBucket(&ask.Key)
	if b == nil || a.leaving || (ask.Burst > 0) != (b.rate.Burst > 0) {
		// They are nobody's, or from another pool than the bucket's.
		a.giveBack(ask, g.Tokens)
		return
	}
	a.advanceWindow(b, now)
	// A report alone is no answer to an ask for tokens, which may still be on its way.
	wanted := ask.Need+ask.Ahead > 0
	switch {
	case ask.WindowStart == b.start:
		if wanted {
			b.asking = false
		}
		// What was admitted without a token while this answer was late has one now: the
		// pool must not count both.
		paid := min(b.debt, g.Tokens)
		b.debt -= paid
		// Some of the debt may be HAProxy's, which is in neither of these.
		b.owed, b.unleased = max(0, b.owed-paid), max(0, b.unleased-paid)
		b.balance += g.Tokens - paid
		b.total = g.Total
		b.owed = max(0, b.owed-ask.Debt)
		if b.pooled() {
			a.learnFromPool(b, ask, g, now)
		}
		// Less than was needed: whatever was wanted ahead, the pool has nothing for requests that exist.
		if g.Tokens < ask.Need || g.Total >= b.limit {
			a.markSpent(b, now)
		} else if wanted {
			b.spent = false
		}
		if b.pooled() && (wanted || b.spent) {
			// Nobody needs polygen's word who asks the pool in any case.
			b.throttle = b.spent
		}
		if g.Tokens > 0 {
			b.probeGap = int64(firstProbe)
			if b.refusing {
				a.liftRefusal(b)
			}
		}
	// The answer to what nextAsk asked for: the bucket has not advanced yet.
	case ask.WindowStart == b.ends && wanted:
		b.next += g.Tokens
	default:
		a.giveBack(ask, g.Tokens)
		return
	}
	a.serveQueue(b.owner, now)
	// Of pooled ones the refusals tell HAProxy.
	if wanted && b.spent && !b.pooled() {
		a.applyThrottle(b, now)
	}
	a.schedule(b, now)
}

// learnFromPool takes what only pools that every agent asks say.
func (a *Agent) learnFromPool(b *bucket, ask Ask, g Grant, now int64) {
	if ask.Burst > 0 {
		b.limit = g.Limit
	}
	if 100*g.Total >= selfHot*b.limit {
		b.hotUntil = max(b.hotUntil, now+int64(hotSpan))
	}
}

// Fail takes back an Ask that got no answer. Tokens that it may have been granted are
// never used. What it reported is sent again under the number of its batch, which the
// pool counts once, whether it has heard it, or hears it yet, or never does.
func (a *Agent) Fail(at time.Time, ask Ask) {
	// What it wanted is not sent again: by then something else may be needed.
	again := ask.reportOnly(ask.Debt, ask.Back)
	again.Seq, again.Instances = ask.Seq, ask.Instances
	// All of them and in their order, for the pool knows batches.
	a.unanswered = append(a.unanswered, again)
	b := a.findBucket(&ask.Key)
	if b == nil {
		return
	}
	a.advanceWindow(b, at.UnixNano())
	// The window has begun anew, and has asked for itself.
	if ask.WindowStart != b.start {
		return
	}
	if ask.Need+ask.Ahead > 0 {
		b.asking = false
	}
	if b.waiting > 0 {
		a.requestTokens(b)
	}
}

func (a Ask) reportOnly(debt, back int) Ask {
	return Ask{Key: a.Key, WindowStart: a.WindowStart, Limit: a.Limit, Burst: a.Burst, Reserve: a.Reserve, Debt: debt, Back: back}
}

func (a *Agent) giveBack(ask Ask, tokens int) {
	if tokens > 0 {
		a.report(ask.reportOnly(0, tokens))
	}
}

// report has an Ask without a bucket sent with the next flush, and one of an account
// before anything is asked: what is left of a second there is credit of the next.
func (a *Agent) report(ask Ask) {
	switch {
	// Bounded, because reports pile up while the pool is lost.
	case ask.Burst > 0 && len(a.accountReports) < maxReports:
		a.accountReports = append(a.accountReports, ask)
		a.flushNow()
	case ask.Burst > 0: // the account believes a little more or less of the past than was
	case len(a.reports) < maxReports || ask.Key.Window != limits.Second:
		a.reports = append(a.reports, ask)
	}
}

// findBucket returns a key's bucket, or nil. It takes a pointer because a copy of so
// large a struct, just written, costs an agent with many reports a tenth of its time.
func (a *Agent) findBucket(k *Key) *bucket {
	u := a.users[k.User]
	if u == nil {
		return nil
	}
	return u.findBucket(k.Class, k.Window)
}

// maxReports bounds the reports of seconds that wait for a lost pool, and those of
// accounts apart from them. What is dropped beyond it would only have corrected totals
// of past seconds, which nobody uses, and the credit of users who burst.
const maxReports = 100_000
