package jobs

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

const (
	// forgottenSweeps is how many sweeps there are between two searches for jobs that the Slots
	// forgot.
	forgottenSweeps = 10
	// scanFactor is how many times as long as another call a search of a queue's parked jobs may take.
	scanFactor = 6
	// usersPerPage is how many users are looked at together.
	usersPerPage = 1000
	// maxUserFailures is for how many users in a row a sweep may fail before it ends. One
	// failure may be about that user alone, so the sweep goes on with the others; so many in
	// a row mean that the Slots or the queue itself fail.
	maxUserFailures = 3
	// tiersInterval is the time between two looks whether the tiers are others. By those of a
	// raised limit jobs start with the next sweep, which an operator should not wait for.
	tiersInterval = time.Second / 10
)

// sweeper repairs what crashes and lost messages left behind. One process of a queue sweeps at
// a time: see turn.go.
type sweeper struct {
	*runnerParts
	waker   *waker
	process string
	inForce string // the tiers by which it sweeps, or swept last
}

// runSweeps sweeps whenever it is this process's turn, until the context ends.
func (s *sweeper) runSweeps(ctx context.Context) {
	for ctx.Err() == nil {
		// What fails with the end of Run is no failure.
		if err := s.takeTurn(ctx); err != nil && ctx.Err() == nil {
			s.metrics.Sweeps.WithLabelValues("error").Inc()
			s.failures.report("sweep", "a sweep failed", err)
		}
		s.waitForNext(ctx)
	}
}

// waitForNext waits for about the time between two sweeps, or until the tiers are others. It
// differs, so that workers that started together do not all ask for their turn at once.
func (s *sweeper) waitForNext(ctx context.Context) {
	next := time.NewTimer(s.cfg.SweepInterval - rand.N(s.cfg.SweepInterval/4+1))
	defer next.Stop()
	look := time.NewTicker(tiersInterval)
	defer look.Stop()
	for s.tiersInForce() == s.inForce {
		select {
		case <-ctx.Done():
			return
		case <-next.C:
			return
		case <-look.C:
		}
	}
}

// takeTurn sweeps for as long as it is this process's turn.
func (s *sweeper) takeTurn(ctx context.Context) error {
	// Also where another process sweeps, or each look would find the change anew.
	s.inForce = s.tiersInForce()
	turn := s.turn()
	// Another process sweeps, for all.
	if granted, err := turn.take(ctx); err != nil || !granted {
		return err
	}
	// After the last renewal, which would begin the turn anew.
	defer turn.end()
	if s.cfg.AfterSweeps != nil {
		defer s.cfg.AfterSweeps()
	}
	ctx, lose := context.WithCancelCause(ctx)
	var keeping sync.WaitGroup
	defer keeping.Wait()
	defer lose(nil)
	keeping.Go(func() { lose(turn.keep(ctx)) })
	err := s.sweepAgain(ctx)
	if ctx.Err() != nil {
		// Why the turn was lost, rather than the sweep's "context canceled".
		return context.Cause(ctx)
	}
	return err
}

// sweepAgain sweeps until the context ends or a sweep fails. Each call has a time-out of its
// own, so that a sweep over many users does not fail for its length.
func (s *sweeper) sweepAgain(ctx context.Context) error {
	for n := 0; ctx.Err() == nil; n++ {
		// Before it asks for any tier: a change in the course of the sweep is for the next one.
		s.inForce = s.tiersInForce()
		// With an error the turn is given up: another process may reach what this one cannot.
		if err := s.reserveFreeSlots(ctx); err != nil {
			return err
		}
		if s.cfg.Sweep != nil {
			if err := s.cfg.Sweep(ctx); err != nil {
				return err
			}
		}
		if n%forgottenSweeps == 0 {
			if err := s.wakeForgotten(ctx); err != nil {
				return err
			}
		}
		s.metrics.Sweeps.WithLabelValues("done").Inc()
		s.waitForNext(ctx)
	}
	return nil
}

// reserveFreeSlots reserves slots that nobody gave back, or that a raised limit made, and
// wakes all jobs for which slots are reserved.
func (s *sweeper) reserveFreeSlots(ctx context.Context) error {
	failures := UserFailures{runner: s.runnerParts}
	for after := ""; ; {
		users, err := within(ctx, s.cfg.AnswerTimeout, func(ctx context.Context) ([]string, error) { return s.cfg.Slots.Waiting(ctx, after, usersPerPage) })
		if err != nil {
			return fmt.Errorf("users who wait: %w", err)
		}
		// Nearly all who wait have no free slot: one call finds them, and spares two for each.
		taken, err := s.Taken(ctx, users)
		// It may be for one user of them. Each is asked for alone then.
		if err := failures.Add(ctx, err); err != nil {
			return err
		}
		budget := s.Budget()
		for _, user := range users {
			// By the tier of now: a limit that was raised lets more in, although no slot became free.
			reserved, err := s.reserveAll(ctx, user, budget.Tier(ctx, user).Limits, taken[user])
			if err := failures.Add(ctx, err); err != nil {
				return err
			}
			// Not only the jobs that ReserveFree returned: the worker that was to wake the others may
			// be dead.
			s.waker.wakeReserved(ctx, reserved)
		}
		// By name and not by number: users come and go between two pages.
		if len(users) < usersPerPage {
			return nil
		}
		after = users[len(users)-1]
	}
}

// Taken returns users' slots that are held or reserved, by user.
func (r *runnerParts) Taken(ctx context.Context, users []string) (map[string][]Slot, error) {
	all, err := within(ctx, r.cfg.AnswerTimeout, func(ctx context.Context) ([]Slot, error) { return r.cfg.Slots.Taken(ctx, users) })
	byUser := map[string][]Slot{}
	for _, slot := range all {
		byUser[slot.User] = append(byUser[slot.User], slot)
	}
	return byUser, err
}

// reserveAll reserves a user's free slots, and returns all jobs of the user for which slots
// are reserved. Some of the user's slots are known to be taken.
func (s *sweeper) reserveAll(ctx context.Context, user string, limits Limits, taken []Slot) (reserved []Job, err error) {
	// None is free.
	if len(taken) >= limits.Total {
		for _, slot := range taken {
			if slot.Holder == "" {
				reserved = append(reserved, slot.Job)
			}
		}
		return reserved, nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.AnswerTimeout)
	defer cancel()
	if _, err := s.reserveFree(ctx, user, limits); err != nil {
		return nil, err
	}
	return s.cfg.Slots.Reserved(ctx, user)
}

// wakeForgotten makes parked jobs available that are in no line any more, so that they try
// again. There are such jobs when the Slots have lost their memory, or when a reservation
// ended before the queue had written that the job was parked.
func (s *sweeper) wakeForgotten(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, scanFactor*s.cfg.AnswerTimeout)
	defer cancel()
	err := s.cfg.Queue.Parked(ctx, s.cfg.Reserve, func(parked []Job) error {
		// Not those that hold a slot either: such a job runs, though the queue does not say so yet.
		forgotten, err := s.unknown(ctx, parked)
		if err != nil || len(forgotten) == 0 {
			return err
		}
		results, err := s.cfg.Queue.Wake(ctx, forgotten)
		if err != nil {
			return fmt.Errorf("wake jobs: %w", err)
		}
		for _, result := range results {
			s.countWake(result)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("parked jobs: %w", err)
	}
	return nil
}

// unknown returns the ids of those of the jobs that Slots do not know: that have no slot, no reservation and no
// place in the line.
func (r *runnerParts) unknown(ctx context.Context, jobs []Job) (ids []string, err error) {
	known := map[string]map[string]bool{} // jobs by user
	for _, job := range jobs {
		// It has lost its user while it waited. Slots know no such job, and refuse the question.
		if job.User == "" {
			ids = append(ids, job.ID)
			continue
		}
		// Once for each user, however many of their jobs are looked at.
		if known[job.User] == nil {
			usage, err := within(ctx, r.cfg.AnswerTimeout, func(ctx context.Context) (Usage, error) { return r.cfg.Slots.User(ctx, job.User) })
			if err != nil {
				return nil, fmt.Errorf("slots of a user: %w", err)
			}
			known[job.User] = usage.ids()
		}
		if !known[job.User][job.ID] {
			ids = append(ids, job.ID)
		}
	}
	return ids, nil
}

// ids are those of all jobs.
func (u Usage) ids() map[string]bool {
	ids := map[string]bool{}
	for _, slot := range slices.Concat(u.Held, u.Reserved) {
		ids[slot.ID] = true
	}
	for _, job := range u.Parked {
		ids[job.ID] = true
	}
	return ids
}

// UserFailures counts the users in a row for whom a sweep has failed.
type UserFailures struct {
	runner *runnerParts
	inRow  int
}

// UserFailures are those of one sweep of an adapter.
func (r *Runner) UserFailures() *UserFailures { return &UserFailures{runner: r.runnerParts} }

// Add takes the result of a user, and returns the error if the sweep has to end with it.
func (f *UserFailures) Add(ctx context.Context, err error) error {
	// What failed before was about single users.
	if err == nil {
		f.inRow = 0
		return nil
	}
	// With the context's end every call fails, whoever it is for.
	if f.inRow++; f.inRow >= maxUserFailures || ctx.Err() != nil {
		return err
	}
	f.runner.failures.report("sweep", "a sweep failed for a user", err)
	return nil
}
