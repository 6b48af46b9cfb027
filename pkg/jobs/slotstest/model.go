package slotstest

import (
	"slices"
	"time"

	"github.com/sluice-qos/sluice/pkg/jobs"
)

// A model is what Slots are meant to do, in the simplest way there is: lists that it
// goes through from the beginning. It knows nothing that a back end does.
type model struct {
	now      time.Duration
	held     []modelSlot
	reserved []modelSlot // in the order of their reservation
	parked   []jobs.Job  // in the order of their coming
}

type modelSlot struct {
	jobs.Claim
	until time.Duration
}

// expire drops what is over. What is left may be counted.
func (m *model) expire() {
	over := func(s modelSlot) bool { return s.until <= m.now }
	m.held = slices.DeleteFunc(m.held, over)
	m.reserved = slices.DeleteFunc(m.reserved, over)
}

func (m *model) running(user string) (n int) {
	for _, s := range slices.Concat(m.held, m.reserved) {
		if s.User == user {
			n++
		}
	}
	return n
}

func (m *model) inQueue(user, queue string) (n int) {
	for _, s := range slices.Concat(m.held, m.reserved) {
		if s.User == user && s.Queue == queue {
			n++
		}
	}
	return n
}

func (m *model) hasRoom(user, queue string, l jobs.Limits) bool {
	limit := l.Total
	if n, ok := l.Queues[queue]; ok && n < limit {
		limit = n
	}
	return m.running(user) < l.Total && m.inQueue(user, queue) < limit
}

// indexOf is where a job is in a list, or -1.
func indexOf(list []modelSlot, j jobs.Job) int {
	return slices.IndexFunc(list, func(s modelSlot) bool { return s.User == j.User && s.ID == j.ID })
}

func (m *model) acquire(c jobs.Claim, l jobs.Limits, lease time.Duration, park bool) jobs.Verdict {
	m.expire()
	until := m.now + lease
	give := func(queue string) jobs.Verdict {
		c.Queue = queue
		m.held = append(m.held, modelSlot{c, until})
		return jobs.Verdict{Granted: true, Running: m.running(c.User), InQueue: m.inQueue(c.User, queue)}
	}
	if i := indexOf(m.held, c.Job); i >= 0 {
		queue := m.held[i].Queue
		m.held = slices.Delete(m.held, i, i+1)
		return give(queue)
	}
	if i := indexOf(m.reserved, c.Job); i >= 0 {
		queue := m.reserved[i].Queue
		m.reserved = slices.Delete(m.reserved, i, i+1)
		return give(queue)
	}
	place, overtakes := 0, false
	queue := c.Queue
	var line []jobs.Job // the user's
	for _, j := range m.parked {
		if j.User == c.User {
			line = append(line, j)
		}
	}
	for i, j := range line {
		if j.ID == c.ID {
			place, queue = i+1, j.Queue
			break
		}
		overtakes = overtakes || m.hasRoom(c.User, j.Queue, l)
	}
	if m.hasRoom(c.User, queue, l) && !overtakes {
		m.unpark(c.Job)
		return give(queue)
	}
	if place == 0 && park && len(line) < jobs.MaxParked {
		m.parked = append(m.parked, c.Job)
		place = len(line) + 1
	}
	return jobs.Verdict{Running: m.running(c.User), InQueue: m.inQueue(c.User, queue), Place: place}
}

func (m *model) unpark(j jobs.Job) {
	m.parked = slices.DeleteFunc(m.parked, func(p jobs.Job) bool { return p.User == j.User && p.ID == j.ID })
}

func (m *model) renewLeases(claims []jobs.Claim, lease time.Duration) (lost []jobs.Claim) {
	m.expire()
	for _, c := range claims {
		if i := indexOf(m.held, c.Job); i >= 0 && m.held[i].Holder == c.Holder {
			m.held[i].until = m.now + lease
		} else {
			lost = append(lost, c)
		}
	}
	return lost
}

func (m *model) release(c jobs.Claim, l jobs.Limits, reserve time.Duration) []jobs.Job {
	m.expire()
	if i := indexOf(m.held, c.Job); i >= 0 && m.held[i].Holder == c.Holder {
		m.held = slices.Delete(m.held, i, i+1)
	}
	return m.reserveFree(c.User, l, reserve)
}

func (m *model) reserveFree(user string, l jobs.Limits, reserve time.Duration) (reserved []jobs.Job) {
	m.expire()
	for _, j := range slices.Clone(m.parked) {
		if j.User == user && m.hasRoom(user, j.Queue, l) {
			m.unpark(j)
			m.reserved = append(m.reserved, modelSlot{jobs.Claim{Job: j}, m.now + reserve})
			reserved = append(reserved, j)
		}
	}
	return reserved
}

func (m *model) forget(j jobs.Job) {
	m.expire()
	m.unpark(j)
	if i := indexOf(m.reserved, j); i >= 0 {
		m.reserved = slices.Delete(m.reserved, i, i+1)
	}
}

func (m *model) reservedOf(user string) (list []jobs.Job) {
	m.expire()
	for _, s := range m.reserved {
		if s.User == user {
			list = append(list, s.Job)
		}
	}
	return list
}

func (m *model) waiting(after string, n int) []string {
	m.expire()
	var users []string
	add := func(user string) {
		if user > after {
			users = append(users, user)
		}
	}
	for _, s := range m.reserved {
		add(s.User)
	}
	for _, j := range m.parked {
		add(j.User)
	}
	slices.Sort(users)
	users = slices.Compact(users)
	return users[:min(n, len(users))]
}

func (m *model) usageOf(user string) (u jobs.Usage) {
	m.expire()
	for _, s := range m.held {
		if s.User == user {
			u.Held = append(u.Held, jobs.Slot{Job: s.Job, Holder: s.Holder, Left: s.until - m.now})
		}
	}
	for _, s := range m.reserved {
		if s.User == user {
			u.Reserved = append(u.Reserved, jobs.Slot{Job: s.Job, Left: s.until - m.now})
		}
	}
	for _, j := range m.parked {
		if j.User == user {
			u.Parked = append(u.Parked, j)
		}
	}
	return u
}
