package riverqos_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivertype"

	"github.com/sluice-qos/sluice/internal/proctest"
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
		f.SetCountTimeout(proctest.Patience)
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
	proctest.Eventually(t, "the job is let through again", func() error { return r.is(ids[1], rivertype.JobStateAvailable) })
	r.works(other, ids[1], func() {})
	proctest.Eventually(t, "the next one is, too", func() error { return r.is(ids[2], rivertype.JobStateAvailable) })

	unlock()
	proctest.Eventually(t, "the end is forgotten", func() error {
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
