package jobs

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// An account is what there is of one user's jobs. Its zero value is that of a user
// who has none. It is pure: it is told the time, and the caller owns the lock.
type account struct {
	slots  map[string]*slot  // by job
	used   map[string]int    // slots by queue; none is 0
	places map[string]place  // of the parked jobs
	lines  map[string][]spot // by queue, in order; none is empty
	count  uint64            // spots and reservations so far
	ends   time.Time         // no slot ends earlier; this may be too early
}

// A slot is one that is not free.
type slot struct {
	holder string // "" if it is reserved
	queue  string
	until  time.Time
	order  uint64 // of the reservation
}

// A place tells where in which line a parked job stands.
type place struct {
	queue string
	order uint64
}

// A spot is one in a line.
type spot struct {
	order uint64
	job   string
}

func (a *account) isEmpty() bool { return len(a.slots) == 0 && len(a.places) == 0 }
func (a *account) waiting() bool { return len(a.places) > 0 || len(a.reserved()) > 0 }

func (a *account) acquire(now time.Time, c Claim, l Limits, lease time.Duration, park bool) Verdict {
	a.expire(now)
	if s := a.slots[c.ID]; s != nil {
		// It is reserved for the job, or an earlier attempt holds it. The attempt that asks last has the slot, so that
		// a job which runs twice takes one slot and not two.
		s.holder, s.until = c.Holder, now.Add(lease)
		a.endsBy(s.until)
		return a.verdict(true, s.queue)
	}
	p, parked := a.places[c.ID]
	if !parked { // a newcomer is behind everybody
		p = place{c.Queue, math.MaxUint64}
	}
	// Who is parked in a full queue is passed by, for a free slot is of no use to them. Of those who could
	// use it the first one has it, also if another asks first.
	if a.hasRoom(l, p.queue) && !a.isOvertaking(l, p.order) {
		if parked {
			a.unparkJob(c.ID)
		}
		a.takeSlot(c.ID, &slot{holder: c.Holder, queue: p.queue, until: now.Add(lease)})
		return a.verdict(true, p.queue)
	}
	if !parked && park && len(a.places) < MaxParked {
		p, parked = a.parkJob(c.Job), true
	}
	v := a.verdict(false, p.queue)
	if parked {
		v.Place = a.countBefore(p.order) + 1
	}
	return v
}

// renewLease reports whether the claim's lease could be begun anew.
func (a *account) renewLease(now time.Time, c Claim, lease time.Duration) bool {
	a.expire(now)
	s := a.slots[c.ID]
	if s == nil || s.holder != c.Holder {
		return false // another attempt took it over, or it lapsed and may be another job's by now: this one has to stop
	}
	s.until = now.Add(lease)
	a.endsBy(s.until)
	return true
}

func (a *account) release(now time.Time, c Claim) {
	a.expire(now)
	// A release that comes late must not free the slot of the attempt that has taken over.
	if s := a.slots[c.ID]; s != nil && s.holder == c.Holder {
		a.freeSlot(c.ID, s)
	}
}

// reserveFree reserves free slots, each for the first in the user's line whose queue has room.
func (a *account) reserveFree(now time.Time, user string, l Limits, reserve time.Duration) (reserved []Job) {
	a.expire(now)
	// The queues are looked at anew for each slot: the last one may have filled its queue, whose
	// line then must not hold up the others.
	for len(a.slots) < l.Total {
		queue, first := "", spot{order: math.MaxUint64}
		for q, line := range a.lines {
			if line[0].order < first.order && a.used[q] < l.Of(q) {
				queue, first = q, line[0]
			}
		}
		if first.job == "" {
			break
		}
		a.unparkJob(first.job)
		a.count++
		a.takeSlot(first.job, &slot{queue: queue, until: now.Add(reserve), order: a.count})
		reserved = append(reserved, Job{user, first.job, queue})
	}
	return reserved
}

func (a *account) forget(now time.Time, job string) {
	a.expire(now)
	if s := a.slots[job]; s != nil && s.holder == "" { // a slot that is held is its worker's to give back
		a.freeSlot(job, s)
	}
	if _, parked := a.places[job]; parked {
		a.unparkJob(job)
	}
}

// reserved are the jobs with a reservation, the oldest first.
func (a *account) reserved() []string {
	var jobs []string
	for job, s := range a.slots {
		if s.holder == "" {
			jobs = append(jobs, job)
		}
	}
	slices.SortFunc(jobs, func(x, y string) int { return cmp.Compare(a.slots[x].order, a.slots[y].order) })
	return jobs
}

func (a *account) usageAt(now time.Time, user string) Usage {
	var u Usage
	for job, s := range a.slots {
		if s.holder != "" {
			u.Held = append(u.Held, a.slotAt(now, user, job))
		}
	}
	slices.SortFunc(u.Held, func(x, y Slot) int { return cmp.Compare(x.ID, y.ID) })
	for _, job := range a.reserved() {
		u.Reserved = append(u.Reserved, a.slotAt(now, user, job))
	}
	for job, p := range a.places {
		u.Parked = append(u.Parked, Job{user, job, p.queue})
	}
	slices.SortFunc(u.Parked, func(x, y Job) int { return cmp.Compare(a.places[x.ID].order, a.places[y.ID].order) })
	return u
}

func (a *account) slotAt(now time.Time, user, job string) Slot {
	s := a.slots[job]
	return Slot{Job: Job{user, job, s.queue}, Holder: s.holder, Left: s.until.Sub(now)}
}

func (a *account) verdict(granted bool, queue string) Verdict {
	return Verdict{Granted: granted, Running: len(a.slots), InQueue: a.used[queue]}
}

func (a *account) hasRoom(l Limits, queue string) bool {
	return len(a.slots) < l.Total && a.used[queue] < l.Of(queue)
}

// isOvertaking reports whether somebody is parked before a spot who could use a free slot.
func (a *account) isOvertaking(l Limits, order uint64) bool {
	for q, line := range a.lines {
		if line[0].order < order && a.used[q] < l.Of(q) {
			return true
		}
	}
	return false
}

// countBefore returns how many are parked before a spot.
func (a *account) countBefore(order uint64) int {
	n := 0
	for _, line := range a.lines {
		n += positionIn(line, order)
	}
	return n
}

// positionIn returns how many of a line are before a spot.
func positionIn(line []spot, order uint64) int {
	i, _ := slices.BinarySearchFunc(line, order, func(s spot, order uint64) int { return cmp.Compare(s.order, order) })
	return i
}

func (a *account) parkJob(j Job) place {
	if a.places == nil {
		a.places, a.lines = map[string]place{}, map[string][]spot{}
	}
	a.count++
	p := place{j.Queue, a.count}
	a.places[j.ID] = p
	a.lines[j.Queue] = append(a.lines[j.Queue], spot{a.count, j.ID})
	return p
}

func (a *account) unparkJob(job string) {
	p := a.places[job]
	delete(a.places, job)
	line := a.lines[p.queue]
	switch i := positionIn(line, p.order); {
	case len(line) == 1:
		delete(a.lines, p.queue)
	case i == 0: // by far the most frequent: do not move the others
		line[0] = spot{}
		a.lines[p.queue] = line[1:]
	default:
		a.lines[p.queue] = slices.Delete(line, i, i+1)
	}
}

func (a *account) takeSlot(job string, s *slot) {
	if len(a.slots) == 0 {
		if a.slots == nil {
			a.slots, a.used = map[string]*slot{}, map[string]int{}
		}
		a.ends = s.until // what it was is of slots that are not there any more
	}
	a.slots[job] = s
	a.used[s.queue]++
	a.endsBy(s.until)
}

func (a *account) freeSlot(job string, s *slot) {
	delete(a.slots, job)
	if a.used[s.queue]--; a.used[s.queue] == 0 { // or a user of many queues would keep them all
		delete(a.used, s.queue)
	}
}

func (a *account) endsBy(until time.Time) {
	if until.Before(a.ends) {
		a.ends = until
	}
}

// expire frees the slots whose lease or reservation is over.
func (a *account) expire(now time.Time) {
	if len(a.slots) == 0 || now.Before(a.ends) {
		return
	}
	first := true // only here is a.ends exact: slots that are freed or renewed leave it too early
	for job, s := range a.slots {
		switch {
		case !now.Before(s.until):
			a.freeSlot(job, s)
		case first || s.until.Before(a.ends):
			a.ends, first = s.until, false
		}
	}
}
