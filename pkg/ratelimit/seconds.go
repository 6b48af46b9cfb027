package ratelimit

import (
	"slices"
	"time"
)

// Tick does what is due by time alone: leases that lie idle go back, spent keys
// are asked about again, the next second is asked for, and what has not been
// used for a while is forgotten. It is to be called every few milliseconds.
func (a *Agent) Tick(at time.Time) {
	now := at.UnixNano()
	a.shared, a.apart = min(a.shared, now/second+1), min(a.apart, now/second) // should the clock have been set back
	a.agenda.Take(now, func(b *bucket) {
		a.roll(b, now)
		a.serve(b.owner, now)
		if now-b.seen.last >= int64(forgetSpan) && b.waiting == 0 && !b.asking {
			a.forget(b)
			return
		}
		a.review(b, now)
		a.plan(b, now)
	})
}

// roll moves a bucket on to the current second: what is left of the old one is
// reported under the old one, and what was asked for ahead becomes the balance.
// A clock that runs back a little stays in its second; one that was set back
// begins anew.
func (a *Agent) roll(b *bucket, now int64) {
	current := now / second
	if current == b.second || current == b.second-1 {
		return
	}
	if current < b.second {
		b.seen, b.hotUntil = arrivals{last: now}, 0
	}
	if b.debt != 0 || b.balance+b.back != 0 {
		b.back += b.balance
		a.reports = append(a.reports, a.settle(b))
	}
	if current != b.second+1 {
		a.giveBack(Ask{Key: b.key, Second: b.second + 1, Limit: b.limit}, b.next)
		b.next = 0
	}
	b.second = current
	b.balance, b.next = b.next, 0
	b.admitted, b.unleased, b.total, b.spent = 0, 0, 0, false
	b.probeAt, b.probeGap, b.unmet = 0, 0, 0
	b.throttle, b.native, b.asking, b.nextAsk = false, false, false, false
	if b.waiting > b.balance {
		a.want(b)
	}
}

// review does what is due for one bucket.
func (a *Agent) review(b *bucket, now int64) {
	if a.alone(b) {
		return
	}
	if keep := a.keep(b, now); b.balance > keep {
		b.back += b.balance - keep
		b.balance = keep
		a.soil(b)
	}
	if a.probing(b) && now >= b.probeAt {
		a.want(b)
	}
	if a.nextDue(b, now) {
		b.nextAsk = true
		ask := Ask{Key: b.key, Second: b.second + 1, Limit: b.limit, Ahead: b.target(now, a.instances), Instances: a.sharers(b)}
		if ask.Ahead > 0 {
			a.reports = append(a.reports, ask)
			a.hurry()
		}
	}
}

// keep is the largest balance that is not given back.
func (a *Agent) keep(b *bucket, now int64) int {
	if b.waiting > 0 {
		return b.balance
	}
	target := b.target(now, a.instances)
	if now-b.seen.last < int64(idleSpan) {
		return 2*target + 1
	}
	return min(target, 1) // a cool key's next request need not wait; a hot one's may
}

// probing reports whether a spent key is wanted here all the same. While
// HAProxy refuses by itself, nobody here sees the demand: it is believed to last.
func (a *Agent) probing(b *bucket) bool {
	return b.balance == 0 && !b.asking && (b.native || b.spent && b.unmet > 0)
}

// nextDue reports whether the next second should be asked for now.
func (a *Agent) nextDue(b *bucket, now int64) bool {
	return !b.nextAsk && now >= (b.second+1)*second-a.lead-b.early && a.active(b, now)
}

// active reports whether requests of the key are to be expected, so that it is
// worth asking for the next second.
func (a *Agent) active(b *bucket, now int64) bool {
	return b.native || now-b.seen.last < int64(6*idleSpan)
}

// plan puts the bucket on the agenda for the next time at which something is
// due for it.
func (a *Agent) plan(b *bucket, now int64) {
	end := (b.second + 1) * second
	due := b.seen.last + int64(forgetSpan)
	if !a.alone(b) {
		if b.balance > 0 {
			due = min(due, max(now, b.seen.last)+int64(idleSpan))
		}
		if a.probing(b) {
			due = min(due, b.probeAt)
		}
		if !b.nextAsk && a.active(b, now) {
			due = min(due, end-a.lead-b.early)
		}
	}
	if b.balance+b.next+b.debt > 0 || b.spent || b.waiting > 0 {
		due = min(due, end)
	}
	a.agenda.Put(b, max(due, now))
}

// forget drops a bucket, and its user with the last one.
func (a *Agent) forget(b *bucket) {
	if b.balance+b.back+b.debt > 0 {
		b.back += b.balance
		a.reports = append(a.reports, a.settle(b))
	}
	a.giveBack(Ask{Key: b.key, Second: b.second + 1, Limit: b.limit}, b.next)
	u := b.owner
	u.buckets = slices.DeleteFunc(u.buckets, func(other *bucket) bool { return other == b })
	if len(u.buckets) == 0 && a.users[u.name] == u {
		delete(a.users, u.name)
	}
}
