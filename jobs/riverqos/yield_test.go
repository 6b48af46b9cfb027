package riverqos_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/riverqueue/river"

	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/jobs/riverqos"
	"github.com/sluice-qos/sluice/pkg/jobs"
)

// state is River's of a job.
func (r *rig) state(table string, id int64) (state string) {
	r.Helper()
	if err := r.pool.QueryRow(context.Background(), "SELECT state::text FROM "+table+" WHERE id = $1", id).Scan(&state); err != nil {
		r.Fatal(err)
	}
	return state
}

// staysRunning watches a job for several times as long as River takes to write.
func (r *rig) staysRunning(table string, id int64) {
	r.Helper()
	for until := time.Now().Add(time.Second); time.Now().Before(until); <-time.After(20 * time.Millisecond) {
		if got := r.state(table, id); got != "running" {
			r.Fatalf("River has the job that another attempt runs as %s, want running", got)
		}
	}
}

// loses waits until a user's job that runs has noticed that its slot is another's.
func (r *rig) loses(user string, left int) {
	r.Helper()
	if !r.fair.RenewLeases(context.Background()) {
		r.Error("RenewLeases() = false, want true")
	}
	r.runs(user, left)
	if r.mu.Lock(); !slices.Contains(r.begun, "cause: "+riverqos.ErrLeaseLost.Error()) {
		r.Errorf("%q, want a job that ended because its slot was lost", r.begun)
	}
	r.mu.Unlock()
}

// River starts a job again whose worker it takes for dead, or whose row is as it was
// before a failover.
func TestAJobThatRiverStartsTwice(t *testing.T) {
	r := start(t, func(_ *riverqos.Config, rc *river.Config) { rc.FetchPollInterval = river.FetchCooldownDefault })
	ids := r.insert(1, task{User: "ann", Do: "hang"}, "slow_default")
	r.runs("ann", 1)
	if _, err := r.pool.Exec(t.Context(), "UPDATE river_job SET state = 'available' WHERE id = $1", ids[0]); err != nil {
		t.Fatal(err)
	}
	r.runs("ann", 2)
	r.loses("ann", 1)
	r.staysRunning("river_job", ids[0])
	close(r.gate("hang"))
	r.finished(ids)
	testkit.Eventually(t, "River has it as completed", func() error {
		if got := r.state("river_job", ids[0]); got != "completed" {
			return fmt.Errorf("it is %s", got)
		}
		return nil
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.tries[ids[0]] != 2 {
		t.Errorf("the job began %d times, want 2", r.tries[ids[0]])
	}
}

func TestAnAttemptWaitsForAnotherUntilItsClientStops(t *testing.T) {
	const table = "of_jobs.river_job" // which the search path does not find
	r := start(t, func(c *riverqos.Config, rc *river.Config) {
		if _, err := c.Pool.Exec(t.Context(), "ALTER SCHEMA public RENAME TO of_jobs"); err != nil {
			t.Fatal(err)
		}
		if err := riverqos.Migrate(t.Context(), c.Pool, "of_jobs"); err != nil {
			t.Fatal(err)
		}
		c.Schema, rc.Schema = "of_jobs", "of_jobs"
	})
	id := r.insert(1, task{User: "ann", Do: "hang"}, "slow_default")[0]
	r.runs("ann", 1)
	if _, err := r.pool.Exec(t.Context(), "UPDATE "+table+" SET attempted_at = attempted_at + interval '1 s' WHERE id = $1", id); err != nil {
		t.Fatal(err)
	}
	other := jobs.Claim{Job: jobs.Job{User: "ann", ID: fmt.Sprintf("of_jobs.%d", id), Queue: "slow"}, Holder: "another"}
	if v, err := r.slots.Acquire(t.Context(), other, jobs.Limits{Total: 1}, time.Hour, false); err != nil || !v.Granted {
		t.Fatalf("Acquire() = %+v, %v, want it granted", v, err)
	}
	r.loses("ann", 0)
	r.staysRunning(table, id)
	if n := r.value("sluice_jobs_errors_total", "yield"); n != 0 {
		t.Errorf("%v questions about the other attempt failed, want 0", n)
	}
	stopping, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	if err := r.client.StopAndCancel(stopping); err != nil {
		t.Errorf("StopAndCancel() = %v, want nil", err)
	}
}
