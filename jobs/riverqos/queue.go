package riverqos

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/sluice-qos/sluice/pkg/jobs"
)

// queue is River, as a jobs.Runner sees it.
type queue struct{ *resources }

// Wake makes those of the jobs available that are parked or gated.
func (q queue) Wake(ctx context.Context, slotsIDs []string) (map[string]jobs.WakeResult, error) {
	answer := make(map[string]jobs.WakeResult, len(slotsIDs))
	var ids []int64
	for _, slotsID := range slotsIDs {
		if id, ok := q.names.riverID(slotsID); ok {
			ids = append(ids, id)
		} else {
			// Jobs of other namespaces are in other databases.
			answer[slotsID] = jobs.WakeForeign
		}
	}
	results, err := q.store.wakeJobs(ctx, ids, q.runner.Lease())
	for id, result := range results {
		answer[q.names.slotsID(id)] = result
	}
	return answer, err
}

// Parked calls do with the jobs that were refused a slot, page by page.
func (q queue) Parked(ctx context.Context, age time.Duration, do func([]jobs.Job) error) error {
	return q.store.heldBack(ctx, func(_ []flow, users []string) error {
		rows, err := readAll[userJob](ctx, q.store, q.store.answerTimeout, "strays", users, age.Seconds())
		if err != nil {
			return fmt.Errorf("parked jobs: %w", err)
		}
		return do(q.names.slotsJobs(rows))
	})
}

// heldBack calls do with the flows that have gated or parked jobs, page by page, and their
// users.
func (s *store) heldBack(ctx context.Context, do func(flows []flow, users []string) error) error {
	for after := (flow{}); ; {
		flows, err := readAll[flow](ctx, s, s.answerTimeout, "gated", after.User, after.Queue, usersPerPage)
		// Those that are held back in the meantime are behind this page, or the next sweep's.
		if err != nil || len(flows) == 0 {
			return err
		}
		users := make([]string, len(flows))
		for i, flow := range flows {
			users[i] = flow.User
		}
		if err := do(flows, slices.Compact(users)); err != nil || len(flows) < usersPerPage {
			return err
		}
		after = flows[len(flows)-1]
	}
}
