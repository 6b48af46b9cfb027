package riverqos_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/riverqueue/river"

	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/jobs/riverqos"
	"github.com/sluice-qos/sluice/pkg/jobs"
)

// delayed returns nil if so many jobs of free users are counted as delayed, and no others.
func (r *rig) delayed(class string, n int) error {
	return testutil.GatherAndCompare(r.reg, strings.NewReader(fmt.Sprintf(`
# HELP sluice_jobs_delayed_total Jobs that had to wait because their user's slots were taken, by tier and by class of queue: priority, default, scheduled or other. Each is counted once, when it is first held back at its insert or refused a slot.
# TYPE sluice_jobs_delayed_total counter
sluice_jobs_delayed_total{class="%s",tier="free"} %d
`, class, n)), "sluice_jobs_delayed_total")
}

// However a job is made to wait, and however often, it counts once.
func TestEachDelayedJobIsCountedOnce(t *testing.T) {
	for name, options := range map[string][]option{
		"held back by the gate": nil,
		"parked":                {ungated},
		"snoozed again and again": {ungated, func(c *riverqos.Config, rc *river.Config) {
			c.Runner.Snooze, c.Runner.Environ = true, []string{"FAIRNESS_SNOOZE_DURATION=20ms", "FAIRNESS_SNOOZE_JITTER=1ms"}
			rc.FetchPollInterval = river.FetchCooldownDefault
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := start(t, options...)
			ids := r.insert(4, task{User: "ann", Do: "hang"}, "slow_default")
			r.runs("ann", 1)
			testkit.Eventually(t, "three are counted", func() error { return r.delayed("default", 3) })
			if strings.HasPrefix(name, "snoozed") {
				testkit.Eventually(t, "they have snoozed several times", func() error {
					if n := r.value("sluice_jobs_snoozes_total", "free"); n < 10 {
						return fmt.Errorf("%v times", n)
					}
					return nil
				})
			}
			close(r.gate("hang"))
			r.finished(ids)
			if err := r.delayed("default", 3); err != nil {
				t.Error(err)
			}
		})
	}
}

// River returns no rows of jobs that InsertManyFast inserts.
func TestDelayedJobsOfInsertManyFastAreCounted(t *testing.T) {
	r := start(t)
	params := make([]river.InsertManyParams, 4)
	for i := range params {
		params[i] = river.InsertManyParams{Args: task{User: "ann"}, InsertOpts: &river.InsertOpts{Queue: "slow_default"}}
	}
	if n, err := r.client.InsertManyFast(t.Context(), params); err != nil || n != len(params) {
		t.Fatalf("InsertManyFast() = %d, %v, want %d", n, err, len(params))
	}
	if err := r.delayed("default", 3); err != nil {
		t.Error(err)
	}
	testkit.Eventually(t, "all are done", func() error {
		if got := r.states()["completed"]; got != len(params) {
			return fmt.Errorf("%d are", got)
		}
		return nil
	})
	if err := r.delayed("default", 3); err != nil {
		t.Error(err)
	}
}

// An insert that fails delays nobody.
func TestJobsThatAreNotInsertedAreNotCountedAsDelayed(t *testing.T) {
	r := start(t)
	unique := river.UniqueOpts{ByArgs: true}
	params := make([]river.InsertManyParams, 4)
	for i := range params {
		params[i] = river.InsertManyParams{Args: task{User: "ann"}, InsertOpts: &river.InsertOpts{Queue: "nobodys", UniqueOpts: unique}}
	}
	if n, err := r.client.InsertManyFast(t.Context(), params); err == nil {
		t.Fatalf("InsertManyFast() = %d, want an error of the unique index", n)
	}
	if got := r.value("sluice_jobs_delayed_total", "free"); got != 0 {
		t.Errorf("%v jobs are counted as delayed, want 0", got)
	}
}

// Jobs that came past the gate are counted when a sweep puts them behind it.
func TestJobsThatASweepHoldsBackAreCountedOnce(t *testing.T) {
	r := &rig{TB: t, reg: prometheus.NewRegistry()}
	r.pool, _ = fresh(t)
	fair, err := riverqos.New(riverqos.Config{Pool: r.pool, User: riverqos.FromArgs("user"), Runner: jobs.RunnerConfig{Slots: jobs.NewMemory(nil), Tiers: &tiers{}, Registry: r.reg}})
	if err != nil {
		t.Fatal(err)
	}
	// One of three was held back before, and let through: by whom does not matter.
	_, err = r.pool.Exec(t.Context(), `INSERT INTO river_job (args, kind, max_attempts, metadata, queue)
		SELECT '{}', 'task', 25, jsonb_build_object('sluice:user', 'ann') || CASE n WHEN 3 THEN '{"sluice:delayed": true}'::jsonb ELSE '{}' END, 'slow_scheduled'
		FROM generate_series(1, 3) AS n`)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := fair.SweepOnce(context.Background()); err != nil {
			t.Fatal(err)
		}
		if got := r.states(); got["gated"] != 2 {
			t.Errorf("states are %v, want 2 gated", got)
		}
		if err := r.delayed("scheduled", 1); err != nil {
			t.Error(err)
		}
		// Let through by hand, they are held back once more.
		if _, err := r.pool.Exec(t.Context(), `UPDATE river_job SET state = 'available', scheduled_at = now(), metadata = metadata - 'sluice:wait' WHERE state = 'scheduled'`); err != nil {
			t.Fatal(err)
		}
	}
}
