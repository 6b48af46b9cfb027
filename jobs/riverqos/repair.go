package riverqos

import (
	"context"
	"fmt"
	"slices"

	"github.com/sluice-qos/sluice/pkg/jobs"
)

// usersPerPage is how many users are looked at together.
const usersPerPage = 1000

// reserveFreeSlots reserves slots that nobody gave back, or that a raised limit made, and
// wakes all jobs for which slots are reserved.
func (s *sweeper) reserveFreeSlots(ctx context.Context) error {
	failures := userFailures{log: s.failures}
	for after := ""; ; {
		users, err := within(ctx, s.store.answerTimeout, func(ctx context.Context) ([]string, error) { return s.cfg.Slots.Waiting(ctx, after, usersPerPage) })
		if err != nil {
			return fmt.Errorf("users who wait: %w", err)
		}
		budget := s.tiers.budget()
		for _, user := range users {
			// By the tier of now: a limit that was raised lets more in, although no slot became free.
			reserved, err := s.reserveAll(ctx, user, budget.tierOf(ctx, user).Limits)
			if err := failures.addResult(ctx, err); err != nil {
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

// reserveAll reserves a user's free slots, and returns all jobs of the user for which slots
// are reserved.
func (s *sweeper) reserveAll(ctx context.Context, user string, limits jobs.Limits) ([]jobs.Job, error) {
	ctx, cancel := context.WithTimeout(ctx, s.store.answerTimeout)
	defer cancel()
	if _, err := s.reserveFree(ctx, user, limits); err != nil {
		return nil, err
	}
	return s.cfg.Slots.Reserved(ctx, user)
}

// heldBack calls do with the flows that have gated or parked jobs, page by page, and their
// users.
func (s *sweeper) heldBack(ctx context.Context, do func(flows []flow, users []string) error) error {
	for after := (flow{}); ; {
		flows, err := readAll[flow](ctx, s.store, s.store.answerTimeout, "gated", after.User, after.Queue, usersPerPage)
		// Those that are held back in the meantime are behind this page, or the next sweep's.
		if err != nil || len(flows) == 0 {
			return err
		}
		users := make([]string, len(flows))
		for i, flow := range flows {
			users[i] = flow.User
		}
		if err := do(flows, users); err != nil || len(flows) < usersPerPage {
			return err
		}
		after = flows[len(flows)-1]
	}
}

// openGate lets gated jobs through where their users have room.
func (s *sweeper) openGate(ctx context.Context) error {
	return s.heldBack(ctx, func(flows []flow, users []string) error {
		sized := s.tiers.sizesOf(ctx, flows)
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
	stale, err := readAll[userJob](ctx, s.store, s.store.answerTimeout, "stale", users, s.cfg.Lease.Seconds())
	if err != nil {
		return fmt.Errorf("jobs that run for long: %w", err)
	}
	dead, err := s.unknownToSlots(ctx, stale, func(usage jobs.Usage) []jobs.Job { return jobsOf(usage.Held) })
	if err != nil || len(dead) == 0 {
		return err
	}
	_, err = s.store.execute(ctx, "mark_passed", dead, s.cfg.Lease.Seconds())
	return err
}

// wakeStrays makes parked jobs available that are in no line any more, so that they try
// again. There are such jobs when the Slots have lost their memory, or when a reservation
// ended before River had written that the job was parked.
func (s *sweeper) wakeStrays(ctx context.Context) error {
	return s.heldBack(ctx, func(_ []flow, users []string) error {
		parked, err := readAll[userJob](ctx, s.store, s.store.answerTimeout, "strays", users, s.cfg.Reserve.Seconds())
		if err != nil {
			return fmt.Errorf("parked jobs: %w", err)
		}
		// Also those that hold a slot: such a job runs, though its row does not say so yet.
		strays, err := s.unknownToSlots(ctx, parked, func(usage jobs.Usage) []jobs.Job {
			return slices.Concat(jobsOf(usage.Held), jobsOf(usage.Reserved), usage.Parked)
		})
		if err != nil {
			return err
		}
		results, err := s.store.wakeJobs(ctx, strays)
		if err != nil {
			return fmt.Errorf("wake jobs: %w", err)
		}
		for _, result := range results {
			s.metrics.Wakes.WithLabelValues(result.String()).Inc()
		}
		return nil
	})
}

// unknownToSlots returns the ids of the rows that are not among those jobs that the Slots
// have of their users.
func (s *sweeper) unknownToSlots(ctx context.Context, rows []userJob, among func(jobs.Usage) []jobs.Job) (ids []int64, err error) {
	known := map[string]map[string]bool{} // jobs by user
	for _, row := range rows {
		// Once for each user, however many of their jobs are looked at.
		if known[row.User] == nil {
			usage, err := within(ctx, s.store.answerTimeout, func(ctx context.Context) (jobs.Usage, error) { return s.cfg.Slots.User(ctx, row.User) })
			if err != nil {
				return nil, fmt.Errorf("slots of a user: %w", err)
			}
			known[row.User] = map[string]bool{}
			for _, job := range among(usage) {
				known[row.User][job.ID] = true
			}
		}
		// The Slots name jobs by River's ids, and by the namespace.
		if !known[row.User][s.names.slotsJob(row.User, row.ID, "").ID] {
			ids = append(ids, row.ID)
		}
	}
	return ids, nil
}

func jobsOf(slots []jobs.Slot) (all []jobs.Job) {
	for _, slot := range slots {
		all = append(all, slot.Job)
	}
	return all
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
	failures, budget := userFailures{log: s.failures}, s.tiers.budget()
	for _, crowd := range crowds {
		// At the limit is not above it: those who wait are behind the gate already.
		tooMany := crowd.Size - budget.sizeOf(ctx, crowd.flow)
		if tooMany <= 0 {
			continue
		}
		if err := failures.addResult(ctx, s.regate(ctx, crowd.flow, tooMany)); err != nil {
			return err
		}
	}
	return nil
}

// regate puts the last jobs of a flow behind the gate again.
func (s *sweeper) regate(ctx context.Context, crowded flow, tooMany int) error {
	reserved, err := within(ctx, s.store.answerTimeout, func(ctx context.Context) ([]jobs.Job, error) { return s.cfg.Slots.Reserved(ctx, crowded.User) })
	if err != nil {
		return err
	}
	// A job that a slot is reserved for is about to run. Behind the gate it would miss its
	// reservation.
	var except []int64
	for _, job := range reserved {
		if id, ok := s.names.riverID(job); ok {
			except = append(except, id)
		}
	}
	// Fewer than were asked for are all that there are: the others are locked, or gone.
	for regated := maxPromoted; regated == maxPromoted && tooMany > 0; tooMany -= regated {
		if regated, err = s.store.regate(ctx, crowded, tooMany, except, s.cfg.GateFor); err != nil {
			return fmt.Errorf("hold jobs back: %w", err)
		}
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
