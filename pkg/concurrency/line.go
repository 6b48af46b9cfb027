package concurrency

import (
	"time"

	"github.com/sluice-qos/sluice/pkg/cause"
)

// Verdict is the answer to one request.
type Verdict struct {
	Allowed bool
	Limit   int         // the limit that refused it; 0 if allowed
	Cause   cause.Cause // who found that no slot is free; "" if allowed
}

// Waiting is a request that is not decided yet. It is decided by a later call
// of the agent's methods, which return it in Output.Decided, or by Timeout.
type Waiting struct {
	Verdict Verdict // valid once the request is decided

	owner   *user
	process int64 // that asked
	since   int64 // when it did
	counted bool  // HAProxy's count of the user, when the places are withdrawn, has it
	decided bool  // it stands in neither queue any more
}

// waits are the requests of one user that are not decided yet, each in one queue, in the
// order of arrival. While there is a line nobody is admitted before it.
type waits struct {
	queue   []*Waiting // for an answer of the pool or HAProxy
	line    []*Waiting // for a slot; Agent.inLine counts them
	unmetAt int64      // when a request was last refused or had to wait for a slot; 0: it did not come back
	busyAt  int64      // when a request was last refused, or found no place
}

func (w *waits) waiting() int { return len(w.queue) + len(w.line) }

func (w *waits) anyWaiting() bool { return w.waiting() > 0 }

func (w *waits) noteUnmet(now int64) { w.unmetAt, w.busyAt = now, now }

// uncount is for a withdrawal of which nobody knows whether its count has who waits.
func (w *waits) uncount() {
	for _, queue := range [...][]*Waiting{w.queue, w.line} {
		for _, waiting := range queue {
			waiting.counted = false
		}
	}
}

// Start decides a request of a user with a limit (> 0), given what HAProxy's
// tables said of the user when it asked. When a slot is missing that the pool may
// still have, or that HAProxy's places may free, the request waits: the Waiting is
// not nil and the verdict is not valid yet. A request that is allowed holds a slot
// until HAProxy tells of its end, or until Cancel.
func (a *Agent) Start(at time.Time, name string, limit int, seen Count, p Places) (Verdict, *Waiting) {
	now := a.coreTime(at)
	u, s := a.arrive(name, limit, seen, p, now)
	if u == nil {
		// A bound on memory refuses nobody.
		return Verdict{Allowed: true}, nil
	}
	defer a.review(u, now)
	switch {
	case a.admissible(u, s):
		return a.admitRequest(u, now, seen.Process, s), nil
	case len(u.waits.line) > 0:
		// Whoever stands in line comes first.
		return a.refuse(u, cause.LineFull, now), nil
	case len(u.waits.queue) >= u.quota.limit:
		// More than the limit cannot all be admitted, whatever the pool answers.
		return a.refuse(u, cause.QueueFull, now), nil
	case a.knownFull(u, now):
		return a.refuse(u, a.whoCounts(), now), nil
	}
	w := &Waiting{owner: u, process: seen.Process, since: now, counted: s == beside}
	u.waits.queue = append(u.waits.queue, w)
	return Verdict{}, w
}

// Hold has a request, which Start has just refused, wait for a slot in the order
// of arrival: until a slot is free, or Timeout. It is refused at once, with a nil
// Waiting, where too many wait already.
func (a *Agent) Hold(at time.Time, name string, limit int, seen Count, p Places) (Verdict, *Waiting) {
	now := a.coreTime(at)
	u, s := a.arrive(name, limit, seen, p, now)
	if u == nil {
		return Verdict{Allowed: true}, nil
	}
	defer a.review(u, now)
	if !s.admitted() && (len(u.waits.line) >= a.config.MaxLine || a.inLine >= a.config.MaxLines) {
		// A full line is what HAProxy may refuse by itself.
		u.refusal.refusals++
		return a.turnAway(u, cause.LineFull, now), nil
	}
	// HAProxy must not refuse who may wait: the line is in the agent.
	u.refusal.patientTo, u.refusal.refusals = now+int64(refreshSpan), 0
	a.endRefusal(u, now)
	if a.admissible(u, s) {
		return a.admitRequest(u, now, seen.Process, s), nil
	}
	w := &Waiting{owner: u, process: seen.Process, counted: s == beside}
	u.waits.line = append(u.waits.line, w)
	a.inLine++
	u.waits.noteUnmet(now)
	return Verdict{}, w
}

// arrive takes what HAProxy says with a question, and returns how the request stands to
// the places. The user is nil when too many are known.
func (a *Agent) arrive(name string, limit int, seen Count, p Places, now int64) (*user, standing) {
	u := a.findOrAddUser(name, limit, seen, now)
	if u == nil {
		a.overflow++
		return nil, outside
	}
	u.startedAt, u.asker = now, seen.Process
	// First: by its standing the places may be adopted, or recalled.
	a.distinguish(u, seen, p, now)
	return u, a.standingOf(u, seen.Process, p, now)
}

// admissible reports whether a request may start that nothing was decided of yet.
func (a *Agent) admissible(u *user, s standing) bool {
	return s.admitted() || len(u.waits.line) == 0 && a.freeHere(u) > 0
}

// knownFull reports whether it is known that there is no slot, so that waiting for the pool
// or for HAProxy's places is in vain.
func (a *Agent) knownFull(u *user, now int64) bool {
	return !u.places.phase.recalling() && (a.countsAlone() || u.exhausted(now))
}

// Timeout decides a request that has waited as long as it may. It is refused,
// with one exception: if the pool has answered nothing meanwhile, of whomever, and the user
// is not near their limit, as far as the agent knows, it admits up to its even part, and
// one request without a slot at least, so that a stall of the pool does not refuse users
// who are far below their limits, nor whoever's limit is smaller than the number of
// instances. A pool that answers is not silent, however late: one that takes more than half
// of the time that a request may wait would else be passed by with each ask that has to wait
// for the one before it, by all instances, for good.
//
// So while the pool is silent, all instances together run without slots at most the
// limit, or one request each if that is more.
func (a *Agent) Timeout(at time.Time, w *Waiting) Verdict {
	if w.decided {
		return w.Verdict
	}
	now, u := a.coreTime(at), w.owner
	a.changes.CatchUp(u)
	switch line := a.leaveQueues(w); {
	// It has waited for a slot and not for an answer, and there was none.
	case line:
		w.Verdict = a.turnAway(u, cause.LineTimeout, now)
	case a.farFromLimit(u, now) && a.heardAt <= w.since && (u.upperBound() < u.quota.limit/a.instances || u.upperBound() <= u.lease.held):
		w.Verdict = a.admitRequest(u, now, w.process, outside)
	case u.places.phase.recalling():
		w.Verdict = a.refuse(u, cause.CreditUnknown, now)
	case u.lease.deniedAt > w.since:
		// Redis answered in time, and other instances did not give back idle slots meanwhile.
		w.Verdict = a.refuse(u, a.whoCounts(), now)
	default:
		w.Verdict = a.refuse(u, cause.RedisLate, now)
	}
	a.review(u, now)
	return w.Verdict
}

// farFromLimit reports whether a user is far from their limit, as far as the agent knows.
func (a *Agent) farFromLimit(u *user, now int64) bool {
	// Of a limit below the number of instances, one request is so large a part that whoever
	// uses it at all is near it: there it counts that the pool last had a slot left.
	return !u.heat.hot(now) || u.quota.limit < a.instances && u.lease.left > 0
}

// admitRequest notes a request that HAProxy is about to track, and that takes a slot unless it
// has a place.
func (a *Agent) admitRequest(u *user, now, process int64, s standing) Verdict {
	u.places.since++
	switch s {
	case outside, passed:
		u.places.outside++
	case beside:
		u.places.beside++
	// It is counted already, as all places are.
	case inside:
	}
	u.progress.addAdmitted(a.askerOf(process), now)
	u.peaks.record(now, u.upperBound())
	return Verdict{Allowed: true}
}

func (a *Agent) refuse(u *user, why cause.Cause, now int64) Verdict {
	if now >= u.refusal.patientTo {
		// Who may wait in line comes back to do so, and HAProxy must let them.
		u.refusal.refusals++
	}
	return a.turnAway(u, why, now)
}

// whoCounts is the cause of a refusal of a user of whom it is known that no slot is free.
func (a *Agent) whoCounts() cause.Cause {
	switch {
	// First, for who is alone has the whole limit, with Redis or without.
	case a.alone():
		return cause.OwnCount
	case a.lost():
		return cause.RedisLost
	}
	return cause.Pool
}

// turnAway refuses a request that HAProxy had better not refuse by itself.
func (a *Agent) turnAway(u *user, why cause.Cause, now int64) Verdict {
	u.notice.refused++
	// HAProxy may have tracked it before the withdrawal read its count.
	u.places.turned++
	u.waits.noteUnmet(now)
	return Verdict{Limit: u.quota.limit, Cause: why}
}
