package riverqos_test

import (
	"testing"
	"time"

	"github.com/riverqueue/river"

	"github.com/sluice-qos/sluice/jobs/riverqos"
	"github.com/sluice-qos/sluice/pkg/jobs"
)

// Of ann's jobs, one runs in each of two services, and two more of slow wait.
func TestWhyNamesTheLimitThatIsFull(t *testing.T) {
	r := start(t, func(c *riverqos.Config, rc *river.Config) {
		*c = c.SweptEvery(time.Hour)
		rc.Queues["slow_priority"] = river.QueueConfig{MaxWorkers: 1}
	})
	r.afterTheOnlySweep()
	slow := map[string]int{"slow": 1}
	r.tiers.set("ann", jobs.Limits{Total: 3, Queues: slow})
	r.insert(1, task{User: "ann", Do: "hang"}, "slow_default")
	r.insert(1, task{User: "ann", Do: "hang"}, "fast_default")
	r.runs("ann", 2)
	inLine := r.insert(1, task{User: "ann"}, "slow_priority")[0]
	r.inLine("ann", 1)
	r.explain(inLine, "parked")
	var held int64
	err := r.pool.QueryRow(t.Context(), `INSERT INTO river_job (args, kind, max_attempts, queue, state, scheduled_at, metadata)
		VALUES ('{"user": "ann"}', 'task', 25, 'slow_default', 'scheduled', now() + interval '1 h', '{"sluice:user": "ann", "sluice:wait": "gated"}') RETURNING id`).Scan(&held)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name          string
		limits        jobs.Limits
		parked, gated string
	}{
		{"the service's", jobs.Limits{Total: 3, Queues: slow}, "Its user's slots are taken: 1 of 1 in slow; it is number 1 in their line.", "Its user may run 1 at a time in slow, and 2 of their jobs go before it."},
		{"the service's alone", jobs.Limits{Total: jobs.Unlimited, Queues: slow}, "Its user's slots are taken: 1 of 1 in slow; it is number 1 in their line.", "Its user may run 1 at a time in slow, and 2 of their jobs go before it."},
		{"that of each service", jobs.Limits{Total: jobs.Unlimited, EachQueue: 1}, "Its user's slots are taken: 1 of 1 in slow; it is number 1 in their line.", "Its user may run 1 at a time in slow, and 2 of their jobs go before it."},
		{"the total", jobs.Limits{Total: 2}, "Its user's slots are taken: 2 of 2 in all; it is number 1 in their line.", "Its user may run 2 at a time in all, and 3 of their jobs go before it."},
		{"the total, which the service's cannot exceed", jobs.Limits{Total: 2, Queues: map[string]int{"slow": 5}}, "Its user's slots are taken: 2 of 2 in all; it is number 1 in their line.", "Its user may run 2 at a time in all, and 3 of their jobs go before it."},
		{"none, since a moment", jobs.Limits{Total: 3}, "Its user has room for it; it is number 1 in their line, to which the next sweep gives slots.", "Its user may run 3 at a time in all, and 3 of their jobs go before it."},
		{"none at all", jobs.Limits{Total: jobs.Unlimited}, "Its user has room for it; it is number 1 in their line, to which the next sweep gives slots.", "Its user has no limit any more: the next sweep lets it through."},
	} {
		t.Run(c.name, func(t *testing.T) {
			r.tiers.set("ann", c.limits)
			for id, want := range map[int64]string{inLine: c.parked, held: c.gated} {
				if why, err := r.fair.Why(t.Context(), id); err != nil || why.Reason != want {
					t.Errorf("Why(%d).Reason = %q, %v, want %q", id, why.Reason, err, want)
				}
			}
		})
	}
}
