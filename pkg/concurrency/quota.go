package concurrency

import (
	"time"

	"github.com/sluice-qos/sluice/pkg/credit"
)

type quota struct {
	limit      int  // > 0; of a user who is not limited any more, what it was
	unlimited  bool // what runs counts until it has ended, and nobody is refused
	creditable bool // HAProxy may have credit for the user, as the limit file says
}

func (a *Agent) quotaOf(name string) quota {
	if a.config.Lookup == nil {
		return quota{unlimited: true}
	}
	limit, creditable := a.config.Lookup(name)
	return quota{limit: limit, unlimited: limit <= 0, creditable: creditable}
}

// allowance is how many places the HAProxy of one of so many instances may have.
func (q quota) allowance(instances int) int {
	if !q.creditable || q.unlimited {
		return 0
	}
	return credit.Portion(q.limit, instances)
}

// portion is how many slots the pool takes one of so many instances to hold that it has not
// heard of.
func (q quota) portion(instances int) int {
	if instances <= 1 {
		return 0 // no pool is asked
	}
	return q.allowance(instances)
}

// evenPart is this instance's even part of the slots; the odd ones go to the first.
func (a *Agent) evenPart(q quota) int {
	part := q.limit / a.instances
	if a.rank < q.limit%a.instances {
		part++
	}
	return part
}

// Limits tells the agent that limits may have changed: what each known user's is
// now (0: not limited). Otherwise it would hear of it only with the next request,
// which a block may refuse. What HAProxy's table has of a user is written once more.
func (a *Agent) Limits(at time.Time, limit func(user string) int) {
	now := a.coreTime(at)
	// Other agents may hear of it later.
	a.settleAt = now + int64(settleSpan)
	instances := a.instances
	// Other limits may come before everybody has heard of these.
	quotaOf := func(name string) quota {
		n := limit(name)
		return quota{limit: n, unlimited: n <= 0, creditable: a.quotaOf(name).creditable}
	}
	a.tellPlaces(func(u *user) {
		u.quota.creditable = a.quotaOf(u.name).creditable
		another := a.setLimit(u, limit(u.name), instances, a.now)
		a.setPortion(u, instances, a.now)
		// Whether HAProxy is to refuse by the limit at all may be another matter now, as in a dry run.
		if !another && u.refusal.taughtAt > 0 {
			a.updateTable(u, a.now)
		}
		a.review(u, a.now)
	}, quotaOf)
}

// setLimit takes a user's limit (0: not limited), while there are so many instances, and reports whether
// it is another one.
func (a *Agent) setLimit(u *user, limit, instances int, now int64) bool {
	// Of a user whose limit is lifted the last limit stays: what runs is still counted, and told.
	unlimited := limit <= 0
	if unlimited == u.quota.unlimited && (unlimited || limit == u.quota.limit) {
		return false
	}
	u.quota.unlimited = unlimited
	// There may be more slots than when the pool had none.
	u.lease.retryNow()
	if !unlimited {
		u.refusal.release = max(0, u.refusal.release+limit-u.quota.limit) // until polygen knows
		u.quota.limit = limit
	}
	a.setPortion(u, instances, now)
	// HAProxy's table has an entry with the old limit.
	if u.refusal.taughtAt > 0 {
		a.updateTable(u, now)
	}
	return true
}

// setPortion is for a user whose limit, or the number of instances, has changed.
func (a *Agent) setPortion(u *user, instances int, now int64) {
	l := &u.lease
	before := l.portion
	l.portion = u.quota.portion(instances)
	if l.portion != before && l.pool == unheard {
		// What the pool has not been asked for grows only when it is: others may hold it.
		l.held = min(l.held, l.portion)
		l.told = l.held
		l.doubtful = l.doubtful || u.upperBound() > l.held
	}
	// As long as they fit what the pool takes for held, they do no harm.
	if u.places.inside > u.quota.allowance(instances) {
		a.recall(u, now)
	}
}
