package jobs

import (
	"context"
	"hash/maphash"
	"slices"
	"sync"
	"time"
)

// NewMemory returns Slots for the workers of one process: nothing of it is shared, or
// kept when the process ends. The time is now's; nil means time.Now.
func NewMemory(now func() time.Time) Slots {
	if now == nil {
		now = time.Now
	}
	m := &memory{now: now, seed: maphash.MakeSeed()}
	for i := range m.shards {
		m.shards[i].accounts = map[string]*account{}
	}
	return Checked(m)
}

// memory divides the users into shards, each with a lock of its own.
type memory struct {
	now    func() time.Time
	seed   maphash.Seed
	shards [64]shard
}

type shard struct {
	mu       sync.Mutex
	accounts map[string]*account // by user; none is empty
	_        [48]byte            // a cache line each
}

// withAccount runs f on a user's account, at a time that does not go back between calls.
func (m *memory) withAccount(user string, f func(a *account, now time.Time)) {
	s := &m.shards[maphash.String(m.seed, user)%uint64(len(m.shards))]
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.accounts[user]
	if a == nil {
		a = &account{}
	}
	f(a, m.now())
	if a.isEmpty() { // memory is that of users who have jobs, not of all who ever had
		delete(s.accounts, user)
	} else {
		s.accounts[user] = a
	}
}

func (m *memory) Acquire(_ context.Context, c Claim, l Limits, lease time.Duration, park bool) (v Verdict, _ error) {
	m.withAccount(c.User, func(a *account, now time.Time) { v = a.acquire(now, c, l, lease, park) })
	return v, nil
}

func (m *memory) Renew(_ context.Context, claims []Claim, lease time.Duration) (lost []Claim, _ error) {
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
		a.release(now, c)
		reserved = a.reserveFree(now, c.User, l, reserve)
	})
	return reserved, nil
}

func (m *memory) ReserveFree(_ context.Context, user string, l Limits, reserve time.Duration) (reserved []Job, _ error) {
	m.withAccount(user, func(a *account, now time.Time) { reserved = a.reserveFree(now, user, l, reserve) })
	return reserved, nil
}

func (m *memory) Reserved(_ context.Context, user string) (jobs []Job, _ error) {
	m.withAccount(user, func(a *account, now time.Time) {
		a.expire(now)
		for _, job := range a.reserved() {
			jobs = append(jobs, Job{user, job, a.slots[job].queue})
		}
	})
	return jobs, nil
}

func (m *memory) Forget(_ context.Context, j Job) error {
	m.withAccount(j.User, func(a *account, now time.Time) { a.forget(now, j.ID) })
	return nil
}

// Waiting goes through all users that have anything, and forgets those whose leases
// are over: workers that died did not.
func (m *memory) Waiting(_ context.Context, after string, n int) ([]string, error) {
	var users []string
	for i := range m.shards {
		users = append(users, m.shards[i].waiting(m.now, after)...)
	}
	slices.Sort(users)
	return users[:min(n, len(users))], nil
}

func (s *shard) waiting(now func() time.Time, after string) (users []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := now()
	for user, a := range s.accounts {
		switch a.expire(at); {
		case a.isEmpty():
			delete(s.accounts, user)
		case user > after && a.waiting():
			users = append(users, user)
		}
	}
	return users
}

func (m *memory) User(_ context.Context, user string) (u Usage, _ error) {
	m.withAccount(user, func(a *account, now time.Time) {
		a.expire(now)
		u = a.usageAt(now, user)
	})
	return u, nil
}
