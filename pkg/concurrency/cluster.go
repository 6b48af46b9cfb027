package concurrency

import "time"

// settleSpan is how long after the instances or the limits have changed an agent asks
// the pool before it uses its portion: until then others may hold all slots, as they
// could while there were fewer instances. It is also as long as fields of the pool live.
const settleSpan = 30 * time.Second

type membership struct {
	instances int   // this one included; > 0
	rank      int   // this one's place among them
	settleAt  int64 // when the pool has known the instances and the limits for settleSpan
	lostAt    int64 // since when the pool cannot be asked; 0: it can
}

func (m *membership) alone() bool { return m.instances <= 1 }

func (m *membership) lost() bool { return m.lostAt != 0 }

// countsAlone reports whether the pool need not, or cannot, be asked.
func (m *membership) countsAlone() bool { return m.lost() || m.alone() }

// settled reports whether the pool has counted the portions of all instances for long.
func (m *membership) settled(now int64) bool { return now >= m.settleAt }

// Cluster tells the agent how many instances there are, itself included, and its
// own place among them (0 for the first). One that was alone registers what it
// has in progress.
func (a *Agent) Cluster(at time.Time, instances, rank int) {
	now := a.coreTime(at)
	before, alone := a.instances, a.alone()
	a.instances, a.rank = max(1, instances), max(0, rank)
	if before == a.instances {
		return
	}
	// Others hear of it sooner or later than this one.
	a.settleAt = now + int64(settleSpan)
	flipped, among := alone != a.alone(), a.instances
	a.tellPlaces(func(u *user) {
		if flipped {
			// Alone it holds nothing, and together nothing yet.
			u.lease.held = 0
			// A Holding that the pool has stays until it is told otherwise.
			if u.lease.pool == unheard {
				u.lease.told = 0
			}
		}
		// By what they were then: whatever others were given while it was the smaller portion, they may still have.
		a.setPortion(u, among, a.now)
		if u.places.phase.recalling() {
			// The pool needs not hear of places that are over at once.
			u.lease.retryAt = max(u.lease.retryAt, now+int64(applySpan))
		}
		a.reconsider(u, flipped)
	}, a.quotaOf)
}

// Lost tells the agent whether the pool cannot be asked, or not in the time a
// request may wait. Without it nothing waits: of users near their limits the
// agent admits what it holds, after a second its part, and of others the limit.
// When the pool is back it hears what is in progress.
func (a *Agent) Lost(at time.Time, lost bool) {
	if a.lost() == lost {
		return
	}
	now := a.coreTime(at)
	a.lostAt = 0
	if lost {
		a.lostAt = now
	}
	a.tellEverybody(func(u *user) {
		if u.resting == nil {
			a.reconsider(u, !lost)
		}
	})
}

// reconsider is for what happens rarely and concerns everybody; with register for a pool
// that may not know what is in progress.
func (a *Agent) reconsider(u *user, register bool) {
	l := &u.lease
	// Only a portion is held without a word of the pool's.
	granted := l.portion > 0 && l.pool == unheard && u.upperBound() <= l.held
	if register && !granted && (u.upperBound() > 0 || l.told > 0) {
		l.doubtful = true
	}
	a.review(u, a.now)
}
