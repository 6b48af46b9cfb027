package bandwidth

import "time"

// Restarted says that HAProxy has begun anew, with nothing in progress: it has
// ended, or another one has taken over, and nobody tells what that one moves.
func (a *Agent) Restarted(at time.Time) {
	now := at.UnixNano()
	a.tellEverybody(func(u *user) {
		// A new HAProxy counts from 0: the old counts would look like bytes that were taken back.
		u.counts, u.counted, u.offset = [2]Count{}, [2]bool{}, [2]int64{}
		u.count, u.countAt, u.weight, u.next = Count{}, 0, 0, 0
		u.lent = [2]int64{}
		for d := range u.meters {
			u.meters[d].restart()
		}
		u.taughtAt = 0
		a.report(u)
		a.schedule(u, now)
		a.out.Urgent = true
	})
}

// Cluster tells the agent how many instances there are, itself included.
func (a *Agent) Cluster(at time.Time, instances int) {
	now := at.UnixNano()
	was := a.instances
	a.instances = max(1, instances)
	// Between several and several the default share changes with the next time it is taught; polygen
	// divides anew as soon as it has heard of the change.
	if (was == 1) == (a.instances == 1) {
		return
	}
	a.tellEverybody(func(u *user) {
		if was == 1 && u.weight > 0 {
			// It had all of it, and keeps it until polygen divides.
			u.share, u.shareAt = u.limit.Bytes, [2]int64{now, now}
		}
		a.updateTable(u, now)
		a.report(u)
		a.out.Urgent = true
	})
	a.out.Urgent = true
}

// Limits tells the agent that limits may have changed: what each known user's is
// now. A share shrinks with its limit at once, and grows when polygen says so.
func (a *Agent) Limits(at time.Time, limitOf func(user string) Limit) {
	now := at.UnixNano()
	a.tellEverybody(func(u *user) {
		limit := limitOf(u.name)
		// Most users' limits are as they were, and a report for each would be a burst of messages.
		if limit == u.limit {
			return
		}
		for _, d := range Directions {
			// At once and by itself, for polygen may know of the new limit a second later.
			if old := u.limit.Bytes[d]; limit.Bytes[d] < old {
				u.share[d] = int64(float64(u.share[d]) * float64(limit.Bytes[d]) / float64(old))
			}
		}
		u.limit = limit
		a.updateTable(u, now)
		a.report(u)
		a.out.Urgent = true
	})
}

// tellEverybody has all users hear of a change: each before anything else is done with them, and all
// within some Ticks. To look at all of them at once would hold up whoever waits for the agent's lock.
func (a *Agent) tellEverybody(change func(*user)) {
	a.changes.Announce(change)
	a.advanceChanges()
}

func (a *Agent) advanceChanges() {
	for range catchUpAtOnce {
		u, any := a.changes.First()
		if !any {
			return
		}
		a.changes.CatchUp(u)
	}
}
