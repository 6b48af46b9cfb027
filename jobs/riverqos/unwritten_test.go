package riverqos_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivertype"

	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/jobs/riverqos"
	"github.com/sluice-qos/sluice/pkg/jobs"
)

// byHand is a rig whose jobs run when the test says so, and another process of it.
func byHand(t *testing.T) (r *rig, other *riverqos.Fairness) {
	t.Helper()
	r = &rig{TB: t, slots: jobs.NewMemory(nil), reg: prometheus.NewRegistry()}
	r.pool, _ = fresh(t)
	process := func() *riverqos.Fairness {
		f, err := riverqos.New(riverqos.Config{Pool: r.pool, Slots: r.slots, Tiers: &tiers{}, User: riverqos.FromArgs("user")}.SweptEvery(seldom))
		if err != nil {
			t.Fatal(err)
		}
		f.SetCountTimeout(testkit.Patience)
		return f
	}
	r.fair, other = process(), process()
	var err error
	if r.client, err = river.NewClient(riverpgxv5.New(r.pool), &river.Config{Middleware: r.fair.Middleware()}); err != nil {
		t.Fatal(err)
	}
	return r, other
}

// works runs a job in a process, as River would. River never writes that it has ended.
func (r *rig) works(f *riverqos.Fairness, id int64, do func()) {
	r.Helper()
	if _, err := r.pool.Exec(context.Background(), "UPDATE river_job SET state = 'running', attempt = attempt + 1, attempted_at = now() WHERE id = $1 AND state = 'available'", id); err != nil {
		r.Fatal(err)
	}
	row, err := r.client.JobGet(context.Background(), id)
	if err != nil {
		r.Fatal(err)
	}
	if row.State != rivertype.JobStateRunning {
		r.Fatalf("job %d is %s, want it to run", id, row.State)
	}
	err = f.Middleware()[0].(rivertype.WorkerMiddleware).Work(context.Background(), row, func(context.Context) error { do(); return nil })
	if err != nil {
		r.Fatalf("job %d: %v", id, err)
	}
}

// is returns nil if a job has a state.
func (r *rig) is(id int64, want rivertype.JobState) error {
	row, err := r.client.JobGet(context.Background(), id)
	if err == nil && row.State != want {
		err = fmt.Errorf("job %d is %s, want %s", id, row.State, want)
	}
	return err
}

func (r *rig) sweeps(f *riverqos.Fairness) {
	r.Helper()
	if err := f.SweepOnce(context.Background()); err != nil {
		r.Fatal(err)
	}
}

// unwrittenAre reports how many ends a process remembers.
func (r *rig) unwrittenAre(want int) {
	r.Helper()
	if n := r.fair.Unwritten(); n != want {
		r.Errorf("%d ends are remembered, want %d", n, want)
	}
}

// A job is held back because of one that has ended, which River has not written yet.
func TestAJobIsLetInForAnEndThatIsNotWritten(t *testing.T) {
	r, other := byHand(t)
	ids := r.insert(1, task{User: "ann"}, "slow_default")
	r.works(r.fair, ids[0], func() {
		// Of another process, whose jobs this one does not know of.
		client, err := river.NewClient(riverpgxv5.New(r.pool), &river.Config{Middleware: other.Middleware()})
		if err != nil {
			t.Fatal(err)
		}
		inserted, err := client.Insert(context.Background(), task{User: "ann"}, &river.InsertOpts{Queue: "slow_default"})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, inserted.Job.ID)
	})
	if err := r.is(ids[1], rivertype.JobStateScheduled); err != nil {
		t.Fatal(err)
	}
	r.fair.LookAtEnds(context.Background(), 0)
	if err := r.is(ids[1], rivertype.JobStateAvailable); err != nil {
		t.Error(err)
	}
}

// Ends that River has written are forgotten, and one that it has not written for long is marked in its row.
func TestEndsAreForgottenWhenTheyAreWritten(t *testing.T) {
	r, _ := byHand(t)
	ids := slices.Concat(r.insert(1, task{User: "ann"}, "slow_default"), r.insert(1, task{User: "bob"}, "slow_default"))
	for _, id := range ids {
		r.works(r.fair, id, func() {})
	}
	r.fair.LookAtEnds(context.Background(), 0)
	r.unwrittenAre(2) // it is too soon to ask for them
	r.exec("UPDATE river_job SET state = 'completed', finalized_at = now() WHERE id = $1", ids[0])
	r.fair.LookAtEnds(context.Background(), riverqos.WrittenAfter)
	r.unwrittenAre(1)
	if passed := r.passed(ids[1]); passed {
		t.Error("the job is marked as ended, though River may be about to write that")
	}
	r.fair.LookAtEnds(context.Background(), riverqos.OverdueAfter)
	r.unwrittenAre(0)
	if passed := r.passed(ids[1]); !passed {
		t.Error("the job is not marked as ended")
	}
}

func (r *rig) exec(sql string, args ...any) {
	r.Helper()
	if _, err := r.pool.Exec(context.Background(), sql, args...); err != nil {
		r.Fatal(err)
	}
}

// passed reports whether a job's row is marked as one whose attempt has ended.
func (r *rig) passed(id int64) (passed bool) {
	r.Helper()
	err := r.pool.QueryRow(context.Background(), "SELECT metadata ? 'sluice:passed' FROM river_job WHERE id = $1", id).Scan(&passed)
	if err != nil {
		r.Fatal(err)
	}
	return passed
}

// A sweep may come before a worker has fetched the job that came in the place of the locked
// one. It must not put it behind the gate again for good.
func TestASweepDoesNotUndoTheEndOfALockedJob(t *testing.T) {
	r, other := byHand(t)
	ids := r.insert(3, task{User: "ann"}, "slow_default")
	unlock := func() {}
	defer func() { unlock() }()
	r.works(r.fair, ids[0], func() { unlock = r.lock(ids[0]) })
	if err := r.is(ids[1], rivertype.JobStateAvailable); err != nil {
		t.Fatal(err)
	}
	r.sweeps(r.fair)
	if err := r.is(ids[1], rivertype.JobStateAvailable); err != nil {
		t.Errorf("after a sweep of the process that knows of the end: %v", err)
	}
	r.sweeps(other)
	if err := r.is(ids[1], rivertype.JobStateScheduled); err != nil {
		t.Errorf("after a sweep of one that does not: %v", err)
	}

	stop := running(t, r.fair)
	defer func() { stop() }()
	testkit.Eventually(t, "the job is let through again", func() error { return r.is(ids[1], rivertype.JobStateAvailable) })
	r.works(other, ids[1], func() {})
	testkit.Eventually(t, "the next one is, too", func() error { return r.is(ids[2], rivertype.JobStateAvailable) })

	unlock()
	testkit.Eventually(t, "the end is forgotten", func() error {
		if n := r.fair.Unwritten(); n != 0 {
			return fmt.Errorf("%d are remembered", n)
		}
		return nil
	})
	r.sweeps(other)
	if err := r.is(ids[2], rivertype.JobStateAvailable); err != nil {
		t.Errorf("after a sweep when nothing is locked: %v", err)
	}
}
