package riverqos

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"
)

const (
	// depthInterval is the time between two counts of all jobs, which take the longer the more
	// there are: after one nobody counts for depthRest times as long as it has taken.
	depthInterval = 10 * time.Second
	depthRest     = 100
	// straySweeps is how many sweeps there are between two searches for jobs that the Slots
	// forgot.
	straySweeps = 10
	// postponeFraction of Config.GateFor is the time between two times that gated jobs are put
	// off, which are those whose time has come to half of GateFor.
	postponeFraction = 20
	// maxUserFailures is for how many users in a row a sweep may fail before it ends. One
	// failure may be about that user alone, so the sweep goes on with the others; so many in
	// a row mean that PostgreSQL or Redis itself fails.
	maxUserFailures = 3
	// tiersInterval is the time between two looks whether the tiers are others. By those of a
	// raised limit jobs start with the next sweep, which an operator should not wait for.
	tiersInterval = time.Second / 10
)

// sweeper repairs what crashes and lost messages left behind. One worker process at a time
// sweeps: see sweep_lock.go. What it repairs is in repair.go.
type sweeper struct {
	*resources
	waker       *waker
	gate        *gate
	lockTimeout time.Duration // the constant of this name, but in tests
	inForce     string        // the tiers by which it sweeps, or swept last
}

// runSweeps sweeps whenever it has the lock, until the context ends.
func (s *sweeper) runSweeps(ctx context.Context) {
	for ctx.Err() == nil {
		// What fails with the end of Run is no failure.
		if err := s.sweepWithLock(ctx); err != nil && ctx.Err() == nil {
			s.metrics.Sweeps.WithLabelValues("error").Inc()
			s.failures.report("sweep", "a sweep failed", err)
		}
		// The process that sweeps now has these series: two of them would be added up.
		s.metrics.Depth.Reset()
		s.waitForNext(ctx)
	}
}

// waitForNext waits for about the time between two sweeps, or until the tiers are others. It
// differs, so that workers that started together do not all ask for the lock at once.
func (s *sweeper) waitForNext(ctx context.Context) {
	next := time.NewTimer(s.cfg.sweep - rand.N(s.cfg.sweep/4+1))
	defer next.Stop()
	look := time.NewTicker(tiersInterval)
	defer look.Stop()
	for s.tiers.inForce() == s.inForce {
		select {
		case <-ctx.Done():
			return
		case <-next.C:
			return
		case <-look.C:
		}
	}
}

// sweepWithLock sweeps for as long as it has the lock.
func (s *sweeper) sweepWithLock(ctx context.Context) error {
	// Also where another process sweeps, or each look would find the change anew.
	s.inForce = s.tiers.inForce()
	lock, err := s.store.lockSweeps(ctx, s.cfg.Schema, s.lockTimeout)
	// Another process sweeps, for all.
	if err != nil || lock == nil {
		return err
	}
	// After the beats have ended, for one connection serves one call at a time.
	defer lock.release()
	ctx, lose := context.WithCancelCause(ctx)
	var keeping sync.WaitGroup
	defer keeping.Wait()
	defer lose(nil)
	keeping.Go(func() { lose(lock.keepAlive(ctx)) })
	err = s.sweepAgain(ctx)
	if ctx.Err() != nil {
		// Why the lock was lost, rather than the sweep's "context canceled".
		return context.Cause(ctx)
	}
	return err
}

// sweepAgain sweeps until the context ends or a sweep fails. Each statement has a time-out
// of its own, so that a sweep over many users does not fail for its length.
func (s *sweeper) sweepAgain(ctx context.Context) error {
	chores := []struct {
		interval time.Duration
		do       func(context.Context) error
		rest     time.Duration // how many times as long as it took nobody does it again
		last     time.Time
		took     time.Duration
	}{
		{interval: depthInterval, do: s.countDepth, rest: depthRest},
		{interval: straySweeps * s.cfg.sweep, do: s.wakeStrays},
		{interval: s.cfg.GateFor / postponeFraction, do: s.postponeGated},
	}
	for ctx.Err() == nil {
		// With an error the lock is given up: another process may reach what this one cannot.
		if err := s.sweepOnce(ctx); err != nil {
			return err
		}
		now := time.Now()
		for i := range chores {
			if chore := &chores[i]; now.Sub(chore.last) >= max(chore.interval, chore.rest*chore.took) {
				began := time.Now()
				if err := chore.do(ctx); err != nil {
					return err
				}
				chore.last, chore.took = now, time.Since(began)
			}
		}
		s.metrics.Sweeps.WithLabelValues("done").Inc()
		s.waitForNext(ctx)
	}
	return nil
}

func (s *sweeper) sweepOnce(ctx context.Context) error {
	// Before it asks for any tier: a change in the course of the sweep is for the next one.
	s.inForce = s.tiers.inForce()
	if err := s.reserveFreeSlots(ctx); err != nil {
		return err
	}
	if s.cfg.Ungated {
		return nil
	}
	// Opened before it is closed: what is closed then does not come back in the same sweep.
	if err := s.openGate(ctx); err != nil {
		return err
	}
	return s.closeGate(ctx)
}

// userFailures counts the users in a row for whom a sweep has failed.
type userFailures struct {
	log   *failureLog
	inRow int
}

// addResult takes the result of a user, and returns the error if the sweep has to end with it.
func (f *userFailures) addResult(ctx context.Context, err error) error {
	// The database and the Slots answer: what failed before was about single users.
	if err == nil {
		f.inRow = 0
		return nil
	}
	// With the context's end every call fails, whoever it is for.
	if f.inRow++; f.inRow >= maxUserFailures || ctx.Err() != nil {
		return err
	}
	f.log.report("sweep", "a sweep failed for a user", err)
	return nil
}
