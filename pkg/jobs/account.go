package jobs

import (
	"slices"
	"time"
)

// account is what there is of one user's jobs, in the simplest form: lists that are gone
// through from the beginning. So it is also what other back ends are compared with. It is
// told the time, and the caller owns the lock.
type account struct {
	slots  []takenSlot // those that are not free; of the reserved ones the oldest first
	parked []Job       // in the order of their line
}

// takenSlot is one that is held, or reserved, and then has no holder.
type takenSlot struct {
	Claim
	until time.Time
}

func (s takenSlot) isReserved() bool { return s.Holder == "" }

func (a *account) acquire(now time.Time, c Claim, l Limits, lease time.Duration, park bool) Verdict {
	if s := a.slotOf(c.ID); s != nil {
		// It is reserved for the job, or an earlier attempt holds it. The attempt that asks last has the slot, so that
		// a job which runs twice takes one slot and not two.
		s.Holder, s.until = c.Holder, now.Add(lease)
		return a.verdict(true, s.Queue)
	}
	place, before := a.placeOf(c.ID), a.parked
	if place >= 0 {
		// The queue of its first Acquire: it stands in the line for a slot of that one.
		c.Queue, before = a.parked[place].Queue, a.parked[:place]
	}
	// Who is parked in a full queue is passed by, for a free slot is of no use to them. Of those who could
	// use it the first one has it, also if another asks first.
	overtakes := func() bool { return slices.ContainsFunc(before, func(j Job) bool { return a.hasRoom(l, j.Queue) }) }
	if a.hasRoom(l, c.Queue) && !overtakes() {
		if place >= 0 {
			a.parked = slices.Delete(a.parked, place, place+1)
		}
		a.slots = append(a.slots, takenSlot{c, now.Add(lease)})
		return a.verdict(true, c.Queue)
	}
	// Bounded, for no limit bounds how many jobs a user inserts.
	if place < 0 && park && len(a.parked) < MaxParked {
		place, a.parked = len(a.parked), append(a.parked, c.Job)
	}
	v := a.verdict(false, c.Queue)
	v.Place = place + 1
	return v
}

func (a *account) renewLease(now time.Time, c Claim, lease time.Duration) bool {
	s := a.slotOf(c.ID)
	if s == nil || s.Holder != c.Holder {
		// Another attempt took it over, or it lapsed and may be another job's by now: this one has to stop.
		return false
	}
	s.until = now.Add(lease)
	return true
}

func (a *account) release(c Claim) {
	// A release that comes late must not free the slot of the attempt that has taken over.
	a.freeSlots(func(s takenSlot) bool { return s.ID == c.ID && s.Holder == c.Holder })
}

// reserveFree reserves free slots, each for the first in the user's line whose queue has room.
func (a *account) reserveFree(now time.Time, l Limits, reserve time.Duration) (reserved []Job) {
	// One pass is enough: a slot that is taken in it makes no room for those who were passed by.
	a.parked = slices.DeleteFunc(a.parked, func(j Job) bool {
		if !a.hasRoom(l, j.Queue) {
			return false
		}
		a.slots = append(a.slots, takenSlot{Claim{Job: j}, now.Add(reserve)})
		reserved = append(reserved, j)
		return true
	})
	return reserved
}

func (a *account) forget(job string) {
	// A slot that is held is its worker's to give back.
	a.freeSlots(func(s takenSlot) bool { return s.ID == job && s.isReserved() })
	a.parked = slices.DeleteFunc(a.parked, func(j Job) bool { return j.ID == job })
}

// usageAt is what the user has. The lists are the caller's.
func (a *account) usageAt(now time.Time) (u Usage) {
	for _, slot := range a.takenAt(now) {
		if slot.Holder == "" {
			u.Reserved = append(u.Reserved, slot)
		} else {
			u.Held = append(u.Held, slot)
		}
	}
	u.Parked = slices.Clone(a.parked)
	return u
}

// takenAt is the slots that are held or reserved. The list is the caller's.
func (a *account) takenAt(now time.Time) (all []Slot) {
	for _, s := range a.slots {
		all = append(all, Slot{Job: s.Job, Holder: s.Holder, Left: s.until.Sub(now)})
	}
	return all
}

// expire frees the slots whose lease or reservation is over.
func (a *account) expire(now time.Time) {
	a.freeSlots(func(s takenSlot) bool { return !now.Before(s.until) })
}

func (a *account) freeSlots(free func(takenSlot) bool) { a.slots = slices.DeleteFunc(a.slots, free) }

func (a *account) isEmpty() bool { return len(a.slots)+len(a.parked) == 0 }

func (a *account) waiting() bool {
	return len(a.parked) > 0 || slices.ContainsFunc(a.slots, takenSlot.isReserved)
}

func (a *account) verdict(granted bool, queue string) Verdict {
	return Verdict{Granted: granted, Running: len(a.slots), InQueue: a.usedIn(queue)}
}

func (a *account) hasRoom(l Limits, queue string) bool {
	return len(a.slots) < l.Total && a.usedIn(queue) < l.Of(queue)
}

func (a *account) usedIn(queue string) (n int) {
	for i := range a.slots {
		if a.slots[i].Queue == queue {
			n++
		}
	}
	return n
}

// slotOf is the slot that a job has, or that is reserved for it, or nil.
func (a *account) slotOf(job string) *takenSlot {
	if i := slices.IndexFunc(a.slots, func(s takenSlot) bool { return s.ID == job }); i >= 0 {
		return &a.slots[i]
	}
	return nil
}

// placeOf is how many are parked before a job, or -1 if it is not parked.
func (a *account) placeOf(job string) int {
	return slices.IndexFunc(a.parked, func(j Job) bool { return j.ID == job })
}
