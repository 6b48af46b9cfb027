package riverqos

import (
	"context"
	"fmt"
	"slices"

	"github.com/sluice-qos/sluice/pkg/jobs"
)

type crowd struct {
	flow
	Available int
}

// openGate lets gated jobs through where slots of their users are free. A flow whose slots are all taken, also by
// the user's jobs in other queues, has one job that waits for the next.
func (s *sweeper) openGate(ctx context.Context) error {
	return s.store.heldBack(ctx, func(flows []flow, users []string) error {
		slices.Sort(users)
		taken, err := s.runner.Taken(ctx, slices.Compact(users))
		if err != nil {
			return err
		}
		budget := s.runner.Budget()
		openings := make([]opening, len(flows))
		for i, held := range flows {
			limits := budget.Tier(ctx, held.User).Limits
			// Without the reserved ones: the jobs that these are for wait for a worker.
			slots := slices.DeleteFunc(slices.Clone(taken[held.User]), func(s jobs.Slot) bool { return s.Holder == "" })
			free := min(limits.Total-len(slots), sizeOf(limits, held)-countIn(slots, service(held.Queue)))
			openings[i] = opening{held, maxPromoted, max(1, free)}
		}
		// One statement lets in so many at most, lest it lock rows for long.
		for promoted := maxPromoted; promoted == maxPromoted; {
			if promoted, err = s.gate.letThrough(ctx, openings); err != nil {
				return fmt.Errorf("let jobs through: %w", err)
			}
		}
		return nil
	})
}

func countIn(slots []jobs.Slot, service string) (n int) {
	for _, slot := range slots {
		if slot.Queue == service {
			n++
		}
	}
	return n
}

// closeGate closes the gate behind jobs that did not come through it: jobs that were
// scheduled for the same moment, retries, and inserts of a program without the gate.
func (s *sweeper) closeGate(ctx context.Context) error {
	crowds, err := readAll[crowd](ctx, s.store, scanFactor*s.store.answerTimeout, "crowded")
	if err != nil {
		return fmt.Errorf("crowded users: %w", err)
	}
	budget := s.runner.Budget()
	for page := range slices.Chunk(crowds, usersPerPage) {
		users := make([]string, len(page))
		for i, crowd := range page {
			users[i] = crowd.User
		}
		taken, err := s.runner.Taken(ctx, users)
		if err != nil {
			return err
		}
		for _, crowd := range page {
			tier := budget.Tier(ctx, crowd.User)
			if err := s.regate(ctx, crowd.flow, tier.Name, crowd.Available-sizeOf(tier.Limits, crowd.flow), taken[crowd.User]); err != nil {
				return fmt.Errorf("hold jobs back: %w", err)
			}
		}
	}
	return nil
}

// regate puts the last jobs of a flow behind the gate again, if there are too many. Jobs that slots are reserved for
// are about to run, and would miss their reservations behind it.
func (s *sweeper) regate(ctx context.Context, crowded flow, tier string, tooMany int, taken []jobs.Slot) error {
	var except []int64
	for _, slot := range taken {
		if id, ok := s.names.riverID(slot.ID); ok && slot.Holder == "" {
			except = append(except, id)
		}
	}
	// Fewer than were asked for are all that there are: the others are locked, or gone.
	for regated := maxPromoted; regated == maxPromoted && tooMany > 0; tooMany -= regated {
		var first int
		var err error
		if regated, first, err = s.store.regate(ctx, crowded, tooMany, except, s.cfg.GateFor); err != nil {
			return err
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
