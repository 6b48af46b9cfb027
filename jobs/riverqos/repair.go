package riverqos

import (
	"context"
	"fmt"
)

// openGate lets gated jobs through where their users have room.
func (s *sweeper) openGate(ctx context.Context) error {
	return s.store.heldBack(ctx, func(flows []flow, users []string) error {
		sized := s.sizesOf(ctx, flows)
		// First, or the jobs of dead workers would fill the flow until River rescues them.
		if err := s.markDead(ctx, users); err != nil {
			return err
		}
		// One statement lets in so many at most, lest it lock rows for long.
		for {
			promoted, _, err := s.gate.letThrough(ctx, sized)
			if err != nil {
				return fmt.Errorf("let jobs through: %w", err)
			}
			if promoted != maxPromoted {
				return nil
			}
		}
	})
}

// markDead marks jobs that say they run but have no slot: their workers are dead.
func (s *sweeper) markDead(ctx context.Context, users []string) error {
	// For longer than a lease: an attempt that was begun just now has not asked for its slot yet.
	stale, err := readAll[userJob](ctx, s.store, s.store.answerTimeout, "stale", users, s.runner.Lease().Seconds())
	if err != nil {
		return fmt.Errorf("jobs that run for long: %w", err)
	}
	names, err := s.runner.NotRunning(ctx, s.names.slotsJobs(stale))
	if err != nil || len(names) == 0 {
		return err
	}
	var dead []int64
	for _, name := range names {
		id, _ := s.names.riverID(name) // it is River's own
		dead = append(dead, id)
	}
	_, err = s.store.execute(ctx, "mark_passed", dead, s.runner.Lease().Seconds())
	return err
}

// closeGate closes the gate behind jobs that did not come through it: jobs that were
// scheduled for the same moment, retries, and inserts of a program without the gate.
func (s *sweeper) closeGate(ctx context.Context) error {
	// Attempts that have ended here are in nobody's way, whatever their rows say.
	ended, _ := s.gate.unwritten.allAttempts()
	crowds, err := s.store.crowded(ctx, ended)
	if err != nil {
		return fmt.Errorf("crowded users: %w", err)
	}
	failures, budget := s.runner.UserFailures(), s.runner.Budget()
	for _, crowd := range crowds {
		// At the limit is not above it: those who wait are behind the gate already.
		tier := budget.Tier(ctx, crowd.User)
		tooMany := crowd.Size - sizeOf(tier, crowd.flow)
		if tooMany <= 0 {
			continue
		}
		if err := failures.Add(ctx, s.regate(ctx, crowd.flow, tier.Name, tooMany)); err != nil {
			return err
		}
	}
	return nil
}

// regate puts the last jobs of a flow behind the gate again.
func (s *sweeper) regate(ctx context.Context, crowded flow, tier string, tooMany int) error {
	asking, cancel := context.WithTimeout(ctx, s.store.answerTimeout)
	defer cancel()
	reserved, err := s.cfg.Slots.Reserved(asking, crowded.User)
	if err != nil {
		return err
	}
	// A job that a slot is reserved for is about to run. Behind the gate it would miss its
	// reservation.
	var except []int64
	for _, job := range reserved {
		if id, ok := s.names.riverID(job.ID); ok {
			except = append(except, id)
		}
	}
	// Fewer than were asked for are all that there are: the others are locked, or gone.
	for regated := maxPromoted; regated == maxPromoted && tooMany > 0; tooMany -= regated {
		var first int
		if regated, first, err = s.store.regate(ctx, crowded, tooMany, except, s.cfg.GateFor); err != nil {
			return fmt.Errorf("hold jobs back: %w", err)
		}
		s.runner.CountDelayed(tier, crowded.Queue, first)
		s.metrics.Regated.Add(float64(regated))
	}
	return nil
}

// postponeGated moves the time at which gated jobs become available by themselves. They
// would otherwise pass the gate then.
func (s *sweeper) postponeGated(ctx context.Context) error {
	for {
		postponed, err := s.store.execute(ctx, "postpone", s.cfg.GateFor.Seconds(), maxRowsPerUpdate)
		if err != nil || postponed < maxRowsPerUpdate {
			return err
		}
		// The end of Run, or the loss of the lock, does not wait for a long backlog.
		if ctx.Err() != nil {
			return nil
		}
	}
}
