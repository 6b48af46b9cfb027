package riverqos_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/jobs/riverqos"
	"github.com/sluice-qos/sluice/pkg/jobs"
)

// lock is a program's transaction that has changed a job, and stays open.
func (r *rig) lock(id int64) (unlock func()) {
	r.Helper()
	tx, err := r.pool.Begin(context.Background())
	if err != nil {
		r.Fatal(err)
	}
	if _, err := tx.Exec(context.Background(), `UPDATE river_job SET metadata = metadata || '{"mine": 1}' WHERE id = $1`, id); err != nil {
		r.Fatal(err)
	}
	return func() {
		r.Helper()
		if err := tx.Rollback(context.Background()); err != nil && err != pgx.ErrTxClosed {
			r.Fatal(err)
		}
	}
}

func (r *rig) completed(id int64) {
	r.Helper()
	testkit.Eventually(r, "a job is completed", func() error {
		row, err := r.client.JobGet(context.Background(), id)
		if err == nil && row.State != rivertype.JobStateCompleted {
			err = fmt.Errorf("it is %s", row.State)
		}
		return err
	})
}

func TestALockedJobHoldsUpNoSweep(t *testing.T) {
	r := &rig{TB: t, reg: prometheus.NewRegistry()}
	r.pool, _ = fresh(t)
	var id int64
	err := r.pool.QueryRow(context.Background(), `INSERT INTO river_job (args, kind, max_attempts, metadata, queue, state, attempted_at, scheduled_at)
		VALUES ('{"user": "zed"}', 'task', 25, '{"sluice:user": "zed", "sluice:wait": "parked"}', 'nobodys', 'scheduled', now() - interval '1 min', now() + interval '5 min')
		RETURNING id`).Scan(&id)
	if err != nil {
		t.Fatal(err)
	}
	defer r.lock(id)()
	fair, err := riverqos.New(riverqos.Config{Pool: r.pool, User: riverqos.FromArgs("user"), Runner: jobs.RunnerConfig{Slots: jobs.NewMemory(nil), Tiers: &tiers{}, Registry: r.reg}}.SweptEvery(20 * time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	defer running(t, fair)()
	testkit.Eventually(t, "the sweep finds it locked, twice", func() error {
		if n := r.value("sluice_jobs_wakes_total", "early"); n < 2 {
			return fmt.Errorf("%v times so far", n)
		}
		return nil
	})
	if got := r.value("sluice_jobs_sweeps_total", "error"); got != 0 {
		t.Errorf("%v sweeps failed, want 0", got)
	}
}

func TestALockedJobHoldsUpNoOther(t *testing.T) {
	r := start(t, ungated, sweeping)
	first := r.insert(1, task{User: "ann", Do: "hang"}, "slow_default")
	r.runs("ann", 1)
	next := r.insert(1, task{User: "ann"}, "slow_default")
	r.inLine("ann", 1)
	unlock := r.lock(next[0])
	defer unlock()
	close(r.gate("hang"))
	r.completed(first[0])
	if got := r.value("sluice_jobs_errors_total", "wake"); got != 0 {
		t.Errorf("the end of a job waited %v times for another one's lock, want 0", got)
	}
	unlock() // it is tried again
	r.finished(next)
}

// A worker that dies just after it has refused a job leaves it running in River's table.
func TestAJobThatADeadWorkerHadRefusedRuns(t *testing.T) {
	r := start(t, sweeping, func(c *riverqos.Config, _ *river.Config) { c.Runner.Lease = time.Second })
	r.insert(1, task{User: "ann", Do: "hang"}, "slow_default")
	r.runs("ann", 1)
	var id int64
	err := r.pool.QueryRow(t.Context(), `INSERT INTO river_job (args, kind, max_attempts, metadata, queue, state, attempt, attempted_at)
		VALUES ('{"user": "ann"}', 'task', 25, '{"sluice:user": "ann"}', 'slow_default', 'running', 1, now()) RETURNING id`).Scan(&id)
	if err != nil {
		t.Fatal(err)
	}
	refused := jobs.Claim{Job: jobs.Job{User: "ann", ID: fmt.Sprint(id), Queue: "slow"}, Holder: "a dead worker"}
	if v, err := r.slots.Acquire(t.Context(), refused, jobs.Limits{Total: 1}, time.Minute, true); err != nil || v.Granted {
		t.Fatalf("Acquire() = %+v, %v, want it refused", v, err)
	}
	close(r.gate("hang"))
	r.finished([]int64{id})
	if n := r.spent(); n != 1 {
		t.Errorf("a job spent %d attempts, want 1", n)
	}
}

// River cannot write the end of a job that is locked; the next one need not wait for that.
func TestTheEndOfALockedJobLetsTheNextOneThrough(t *testing.T) {
	r := start(t)
	ids := r.insert(2, task{User: "ann", Do: "hang"}, "slow_default")
	r.runs("ann", 1)
	unlock := r.lock(ids[0])
	defer unlock()
	close(r.gate("hang"))
	r.finished(ids)
	if got := r.value("sluice_jobs_errors_total", "promote"); got != 0 {
		t.Errorf("the gate waited %v times for a lock, want 0", got)
	}
	unlock()
	r.completed(ids[0])
}
