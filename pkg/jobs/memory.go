package jobs

import (
	"context"
	"slices"
	"sync"
	"time"
)

// NewMemory returns Slots for the workers of one process: nothing of it is shared, or
// kept when the process ends. The time is now's; nil means time.Now.
func NewMemory(now func() time.Time) Slots {
	// Other back ends are compared with this one in a time that tests make.
	if now == nil {
		now = time.Now
	}
	return Checked(&memory{now: now, accounts: map[string]*account{}})
}

type memory struct {
	now      func() time.Time
	mu       sync.Mutex
	accounts map[string]*account // by user; those of users who have nothing are deleted
}

// withAccount runs f on a user's account, at a time that does not go back between calls.
func (m *memory) withAccount(user string, f func(a *account, now time.Time)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	a := m.accounts[user]
	if a == nil {
		a = &account{}
		m.accounts[user] = a
	}
	// With the lock held: a time that was read before it could be older than what is stored.
	now := m.now()
	a.expire(now)
	f(a, now)
	// Memory is that of users who have jobs, not of all who ever had.
	if a.isEmpty() {
		delete(m.accounts, user)
	}
}

func (m *memory) Acquire(_ context.Context, c Claim, l Limits, lease time.Duration, park bool) (v Verdict, _ error) {
	m.withAccount(c.User, func(a *account, now time.Time) { v = a.acquire(now, c, l, lease, park) })
	return v, nil
}

func (m *memory) Renew(_ context.Context, claims []Claim, lease time.Duration) (lost []Claim, _ error) {
	// One by one: claims of one call are of many users, whose slots have nothing to do with each other.
	for _, c := range claims {
		m.withAccount(c.User, func(a *account, now time.Time) {
			if !a.renewLease(now, c, lease) {
				lost = append(lost, c)
			}
		})
	}
	return lost, nil
}

func (m *memory) Release(_ context.Context, c Claim, l Limits, reserve time.Duration) (reserved []Job, _ error) {
	m.withAccount(c.User, func(a *account, now time.Time) {
		a.release(c)
		reserved = a.reserveFree(now, l, reserve)
	})
	return reserved, nil
}

func (m *memory) ReserveFree(_ context.Context, user string, l Limits, reserve time.Duration) (reserved []Job, _ error) {
	m.withAccount(user, func(a *account, now time.Time) { reserved = a.reserveFree(now, l, reserve) })
	return reserved, nil
}

func (m *memory) Forget(_ context.Context, j Job) error {
	m.withAccount(j.User, func(a *account, _ time.Time) { a.forget(j.ID) })
	return nil
}

// Waiting goes through all users that have anything, and forgets those whose leases
// are over: workers that died did not.
func (m *memory) Waiting(_ context.Context, after string, n int) (users []string, _ error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	for user, a := range m.accounts {
		switch a.expire(now); {
		case a.isEmpty():
			delete(m.accounts, user)
		case user > after && a.waiting():
			users = append(users, user)
		}
	}
	slices.Sort(users)
	return users[:min(n, len(users))], nil
}

func (m *memory) User(_ context.Context, user string) (u Usage, _ error) {
	m.withAccount(user, func(a *account, now time.Time) { u = a.usageAt(now) })
	return u, nil
}

func (m *memory) Taken(_ context.Context, users []string) (all []Slot, _ error) {
	for _, user := range users {
		m.withAccount(user, func(a *account, now time.Time) { all = append(all, a.takenAt(now)...) })
	}
	return all, nil
}
