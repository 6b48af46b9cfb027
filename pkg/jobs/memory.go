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
	return m
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
func (m *memory) withAccount(ctx context.Context, user string, f func(a *account, now time.Time)) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s := &m.shards[maphash.String(m.seed, user)%uint64(len(m.shards))]
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.accounts[user]
	if a == nil {
		a = &account{}
	}
	f(a, m.now())
	if a.isEmpty() {
		delete(s.accounts, user)
	} else {
		s.accounts[user] = a
	}
	return nil
}

func (m *memory) Acquire(ctx context.Context, c Claim, l Limits, lease time.Duration, park bool) (v Verdict, err error) {
	if err := validate(c.Validate(), l.Validate(), ValidateSpan(lease)); err != nil {
		return Verdict{}, err
	}
	err = m.withAccount(ctx, c.User, func(a *account, now time.Time) { v = a.acquire(now, c, l, lease, park) })
	return v, err
}

func (m *memory) Renew(ctx context.Context, claims []Claim, lease time.Duration) (lost []Claim, err error) {
	for _, c := range claims {
		if err := c.Validate(); err != nil {
			return nil, err
		}
	}
	if err := ValidateSpan(lease); err != nil {
		return nil, err
	}
	for _, c := range claims {
		err := m.withAccount(ctx, c.User, func(a *account, now time.Time) {
			if !a.renewLease(now, c, lease) {
				lost = append(lost, c)
			}
		})
		if err != nil {
			return nil, err
		}
	}
	return lost, nil
}

func (m *memory) Release(ctx context.Context, c Claim, l Limits, reserve time.Duration) (reserved []Job, err error) {
	if err := validate(c.Validate(), l.Validate(), ValidateSpan(reserve)); err != nil {
		return nil, err
	}
	err = m.withAccount(ctx, c.User, func(a *account, now time.Time) {
		a.release(now, c)
		reserved = a.reserveFree(now, c.User, l, reserve)
	})
	return reserved, err
}

func (m *memory) ReserveFree(ctx context.Context, user string, l Limits, reserve time.Duration) (reserved []Job, err error) {
	if err := validate(ValidateUser(user), l.Validate(), ValidateSpan(reserve)); err != nil {
		return nil, err
	}
	err = m.withAccount(ctx, user, func(a *account, now time.Time) { reserved = a.reserveFree(now, user, l, reserve) })
	return reserved, err
}

func (m *memory) Reserved(ctx context.Context, user string) (jobs []Job, err error) {
	if err := ValidateUser(user); err != nil {
		return nil, err
	}
	err = m.withAccount(ctx, user, func(a *account, now time.Time) {
		a.expire(now)
		for _, job := range a.reserved() {
			jobs = append(jobs, Job{user, job, a.slots[job].queue})
		}
	})
	return jobs, err
}

func (m *memory) Forget(ctx context.Context, j Job) error {
	if err := j.Validate(); err != nil {
		return err
	}
	return m.withAccount(ctx, j.User, func(a *account, now time.Time) { a.forget(now, j.ID) })
}

// Waiting goes through all users that have anything, and forgets those whose leases
// are over: workers that died did not.
func (m *memory) Waiting(ctx context.Context, after string, n int) ([]string, error) {
	if err := validate(ctx.Err(), ValidatePage(after, n)); err != nil {
		return nil, err
	}
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

func (m *memory) User(ctx context.Context, user string) (u Usage, err error) {
	if err := ValidateUser(user); err != nil {
		return Usage{}, err
	}
	err = m.withAccount(ctx, user, func(a *account, now time.Time) {
		a.expire(now)
		u = a.usageAt(now, user)
	})
	return u, err
}

// validate returns the first error.
func validate(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
