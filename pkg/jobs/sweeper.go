package jobs

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

const (
	// forgottenSweeps is how many sweeps there are between two searches for jobs that the Slots
	// forgot.
	forgottenSweeps = 10
	// scanFactor is how many times as long as another call a page of users, or a search of a queue's parked jobs, may take.
	scanFactor = 6
	// usersPerPage is how many users are looked at together.
	usersPerPage = 1000
	// tiersInterval is the time between two looks whether the tiers are others. By those of a
	// raised limit jobs start with the next sweep, which an operator should not wait for.
	tiersInterval = time.Second / 10
	// turnLease is how long the turn of a process lasts that has died. It is shorter than
	// reservations are, so that the next process still wakes the jobs which that one was to wake.
	turnLease = 3 * time.Second
)

// sweeper repairs what crashes and lost messages left behind. One process of a queue sweeps at
// a time. If a sweep takes longer than its turn, another process sweeps too: each step of a sweep is atomic by itself.
type sweeper struct {
	*runnerParts
	waker   *waker
	turn    Claim  // a slot, like that of a job, of a user who cannot be (no UserKey begins so)
	inForce string // the tiers by which it sweeps, or swept last
	sweeps  int    // in a row; 0 if another process sweeps
}

var oneTurn = Limits{Total: 1}

func newSweeper(shared *runnerParts, waker *waker, process string) *sweeper {
	job := Job{User: "~sweep." + shared.cfg.Name, ID: "sweep." + process, Queue: "sweep"}
	return &sweeper{runnerParts: shared, waker: waker, turn: Claim{Job: job, Holder: process}}
}

// turnLease of a process is shorter with a short lease: slots are free soon then, and are to be handed on as soon.
func (s *sweeper) turnLease() time.Duration { return min(turnLease, s.cfg.Lease/2) }

// runSweeps sweeps whenever it is this process's turn, until the context ends.
func (s *sweeper) runSweeps(ctx context.Context) {
	for ctx.Err() == nil {
		// Before it asks for any tier: a change in the course of the sweep is for the next one.
		s.inForce = s.tiersInForce()
		// What fails with the end of Run is no failure.
		if err := s.sweepInTurn(ctx); err != nil && ctx.Err() == nil {
			s.metrics.Sweeps.WithLabelValues("error").Inc()
			s.failures.report("sweep", "a sweep failed", err)
			// Another process may reach what this one cannot.
			s.endTurn()
		}
		s.waitForNext(ctx)
	}
	s.endTurn()
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

func (s *sweeper) sweepInTurn(ctx context.Context) error {
	verdict, err := within(ctx, s.cfg.AnswerTimeout, func(ctx context.Context) (Verdict, error) {
		return s.cfg.Slots.Acquire(ctx, s.turn, oneTurn, s.turnLease(), false)
	})
	if err != nil {
		return fmt.Errorf("take the turn to sweep: %w", err)
	}
	if !verdict.Granted {
		s.endTurn()
		return nil
	}
	s.sweeps++
	if err := s.reserveFreeSlots(ctx); err != nil {
		return err
	}
	if s.cfg.Sweep != nil {
		if err := s.cfg.Sweep(ctx); err != nil {
			return err
		}
	}
	if s.sweeps%forgottenSweeps == 1 {
		if err := s.wakeForgotten(ctx); err != nil {
			return err
		}
	}
	s.metrics.Sweeps.WithLabelValues("done").Inc()
	return nil
}

func (s *sweeper) endTurn() {
	if s.sweeps == 0 {
		return
	}
	s.sweeps = 0
	if s.cfg.AfterSweeps != nil {
		s.cfg.AfterSweeps()
	}
	ctx, cancel := context.WithTimeout(context.Background(), lastReleaseTimeout)
	defer cancel()
	_, _ = s.cfg.Slots.Release(ctx, s.turn, oneTurn, s.turnLease()) // its lease ends all the same
}

// reserveFreeSlots reserves slots that nobody gave back, or that a raised limit made, and
// wakes all jobs for which slots are reserved.
func (s *sweeper) reserveFreeSlots(ctx context.Context) error {
	for after := ""; ; {
		users, err := within(ctx, s.cfg.AnswerTimeout, func(ctx context.Context) ([]string, error) { return s.cfg.Slots.Waiting(ctx, after, usersPerPage) })
		if err != nil {
			return fmt.Errorf("users who wait: %w", err)
		}
		if err := s.reserveForUsers(ctx, users); err != nil {
			return err
		}
		// By name and not by number: users come and go between two pages.
		if len(users) < usersPerPage {
			return nil
		}
		after = users[len(users)-1]
	}
}

// reserveForUsers is reserveFreeSlots for a page of users. A failure for one of them is reported, and may be about that user
// alone.
func (s *sweeper) reserveForUsers(ctx context.Context, users []string) error {
	// Nearly all who wait have no free slot: one call finds them, and spares one for each.
	taken, err := s.Taken(ctx, users)
	if err != nil {
		return fmt.Errorf("slots of users who wait: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, scanFactor*s.cfg.AnswerTimeout)
	defer cancel()
	budget := s.Budget()
	for _, user := range users {
		// Not only the jobs that are reserved now: the worker that was to wake the others may be dead.
		var reserved []Job
		for _, slot := range taken[user] {
			if slot.Holder == "" {
				reserved = append(reserved, slot.Job)
			}
		}
		// By the tier of now: a limit that was raised lets more in, although no slot became free.
		if limits := budget.Tier(ctx, user).Limits; len(taken[user]) < limits.Total {
			more, err := within(ctx, s.cfg.AnswerTimeout, func(ctx context.Context) ([]Job, error) { return s.reserveFree(ctx, user, limits) })
			if err != nil {
				s.failures.report("sweep", "a sweep failed for a user", err)
			}
			reserved = append(reserved, more...)
		}
		s.waker.wakeReserved(ctx, reserved)
	}
	return ctx.Err()
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

// wakeForgotten makes parked jobs available that are in no line any more, so that they try
// again. There are such jobs when the Slots have lost their memory, or when a reservation
// ended before the queue had written that the job was parked.
func (s *sweeper) wakeForgotten(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, scanFactor*s.cfg.AnswerTimeout)
	defer cancel()
	err := s.cfg.Queue.Parked(ctx, s.cfg.Reserve, func(parked []Job) error {
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
// place in the line. A job with a slot runs, though the queue does not say so yet.
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
