package concurrency

import "time"

const (
	// calmSpan is for how long nobody may have been refused before places are lent, and
	// how long after a user was near the limit an instance holds its portion again.
	calmSpan = 5 * time.Second
	burst    = 6 // requests that a browser sends at a time
)

// Lendable reports whether HAProxy may be given places for a user, with the answer to the
// request that was just admitted.
func (a *Agent) Lendable(at time.Time, name string) bool {
	u := a.known(name)
	if u == nil {
		return false
	}
	now := a.coreTime(at)
	switch {
	case a.lost() || u.quota.unlimited || u.heat.hot(now):
		// Others may need the slots, or cannot be told that they are in use.
		return false
	case a.askerOf(u.asker) != present || a.changing(now) || a.justReplaced(now):
		// A withdrawal might reach another process than the answer.
		return false
	case u.places.phase == placesLent:
		// HAProxy renews them by itself, unless they are of another generation.
		return u.places.inside <= u.quota.allowance(a.instances) && now-u.places.lentAt >= 2*second
	case u.places.phase != placesNone:
		// What is being withdrawn has to come to an end first.
		return false
	case u.waits.anyWaiting() || u.waits.busyAt != 0 && now-u.waits.busyAt < int64(calmSpan):
		// They would be withdrawn at once.
		return false
	}
	n := a.lendable(u)
	return n > 0 && u.progress.totalAsked() <= max(1, n/2) && len(a.users) <= max(1, a.config.MaxUsers/2)
}

func (a *Agent) lendable(u *user) int {
	// HAProxy tracks the request that it is told so with: that one is inside.
	taken := max(0, u.progress.totalAsked()-1) + u.places.former
	if !a.alone() {
		return min(u.quota.allowance(a.instances), u.lease.held) - taken
	}
	// Some slots are kept: a burst for requests that were asked about before the answer was
	// there, and a quarter for the time after a reload, in which the places of the old
	// HAProxy count until it has ended.
	free := u.quota.allowance(a.instances) - taken
	return free - min(free/2, max(burst, free/4))
}

// Lend says that HAProxy is given places with the answer to the request that was just
// admitted, and returns how many: 0 if it is not Lendable. Given again, they are as many
// as before.
func (a *Agent) Lend(at time.Time, name string) int {
	if !a.Lendable(at, name) {
		return 0
	}
	u, now := a.known(name), a.now
	if u.places.phase == placesNone {
		u.places.inside, u.places.outside, u.places.beside = a.lendable(u), max(0, u.progress.totalAsked()-1), 0
		u.places.phase = placesLent
	}
	u.places.lentAt = now
	a.review(u, now)
	return u.places.inside
}
