package ratelimit

import (
	"time"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// Cluster tells the agent how many agents there are, itself included, and its
// own place among them (0 for the first). An agent that is not alone any more
// leases from now on; one that has become alone counts by itself from the
// second after the next on, and one that was never told before, from the next.
func (a *Agent) Cluster(at time.Time, instances, rank int) {
	a.fleet.become(at.Unix(), instances, rank)
}

// RoundTrip tells the agent how long the pool takes to answer, so that it asks
// for the next second in time.
func (a *Agent) RoundTrip(d time.Duration) {
	// Twice, for an answer may be slower than the mean. A quarter of a second bounds how long tokens of the
	// next second are held in vain.
	a.lead = max(int64(nextLead), min(2*int64(d), second/4))
}

// Lost tells the agent whether the pool cannot be asked, or not in the time a
// request may wait. Without it nothing waits: tokens in hand are used, and
// beyond them a key's part of its limit. When the pool is back, that goes on
// until the second ends, for others may still have to report what they admitted;
// of longer windows tokens are leased again at once.
func (a *Agent) Lost(at time.Time, lost bool) {
	if a.lost == lost {
		return
	}
	a.lost = lost
	now := at.UnixNano()
	if !lost {
		// Others may have admitted requests in this second that the pool has not heard of.
		a.apartThrough = now / second
		return
	}
	a.lostAt = now
	for _, b := range a.toReport {
		// What was about to go back would be lost until the window ends.
		if b.longWindow() {
			b.reclaim()
		}
	}
	// Whoever waits for an answer would wait in vain.
	for u := range a.queues {
		a.serveQueue(u, now)
	}
}

// MarkHot takes polygen's hint that a key comes near its limit: leases become small
// until the given time. Keys without requests here need no hint.
func (a *Agent) MarkHot(at time.Time, k Key, until time.Time, sharers int) {
	b := a.findBucket(&k)
	if b == nil {
		return
	}
	now := at.UnixNano()
	a.advanceWindow(b, now)
	// Never for longer than 3 s, which is polygen's hint: its clock may be ahead.
	b.hotUntil = max(b.hotUntil, min(until.UnixNano(), now+3*second))
	if !a.cutOff(b) {
		// Just after a loss polygen has not heard of all of them.
		b.sharers = max(0, min(sharers, a.fleet.instances))
	}
	a.review(b, now)
	a.schedule(b, now)
}

// Throttle takes polygen's word that a key's window is spent, which begins at
// second sec. HAProxy is told to refuse by itself as soon as this agent's own tokens
// are spent, those that are on their way to it included; of keys without requests here
// at once, if the window is a second.
func (a *Agent) Throttle(at time.Time, k Key, sec int64, limit int) {
	now := at.UnixNano()
	b := a.findBucket(&k)
	if b == nil {
		// HAProxy may admit requests of users whom nobody asks about here: without an entry it would go on. Of longer
		// windows the pool says so itself, should there be requests.
		if k.Window == limits.Second && sec == now/second {
			a.out.TableEntries = append(a.out.TableEntries, TableEntry{Key: k, End: sec + 1, Limit: limit})
		}
		return
	}
	a.advanceWindow(b, now)
	if sec != b.start {
		// It came too late, or by another clock.
		return
	}
	// Noted here and acted on by applyThrottle: tokens that are in hand or on their way are still used.
	b.throttle = true
	b.reclaim()
	a.applyThrottle(b, now)
	a.schedule(b, now)
}

// applyThrottle takes polygen's word, unless the agent has tokens, or the pool may have given it
// the last ones: its answer may be later than polygen's word of it.
func (a *Agent) applyThrottle(b *bucket, now int64) {
	if b.throttle && !b.refusing && !b.asking && !a.available(b) {
		a.throttleNow(b, now)
		a.serveQueue(b.owner, now)
	}
}

// Away tells the agent which instances are away, instead of what it was told before. What their HAProxies admit by
// themselves it leaves to them. It keeps the slice.
func (a *Agent) Away(instances []Away) { a.fleet.away = instances }

// Leave gives back the tokens in hand that others may still use, those of windows
// longer than a second and of bursts, and asks for nothing from now on. It is for an
// agent that decides no more requests; what it has to say is then collected as ever.
func (a *Agent) Leave() {
	a.leaving = true
	for _, u := range a.users {
		for _, b := range u.buckets {
			// Tokens of a plain second are worthless in a moment, and nobody could ask for them in time.
			if b.pooled() {
				a.closeWindow(b)
				b.clearWindow()
			}
		}
	}
	a.flushNow()
}
