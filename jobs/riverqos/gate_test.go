package riverqos_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/jobs/riverqos"
	"github.com/sluice-qos/sluice/pkg/jobs"
)

func TestATransactionThatIsRolledBackLeavesNothing(t *testing.T) {
	r := start(t)
	ctx := context.Background()
	tx, err := r.pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	opts := &river.InsertOpts{Queue: "slow_default"}
	for range 20 { // one by one: the gate cannot see those before
		if _, err := r.client.InsertTx(ctx, tx, task{User: "ann"}, opts); err != nil {
			t.Fatal(err)
		}
	}
	if got := countGated(t, tx); got != 19 {
		t.Errorf("%d of 20 jobs in a transaction are gated, want 19", got)
	}
	if err := tx.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	r.finished(r.insert(2, task{User: "ann"}, "slow_default"))
	if got := r.states(); got["gated"] != 0 || got["available"] != 0 {
		t.Errorf("states are %v, want none that is gated or available", got)
	}
}

// The gate counts what a transaction has inserted before, and in the order of priorities what comes together.
func TestTheGateHoldsInATransaction(t *testing.T) {
	r := start(t)
	r.tiers.set("ann", jobs.Limits{Total: 2})
	ctx := context.Background()
	for name, insert := range map[string]func(pgx.Tx, []river.InsertManyParams) error{
		"InsertManyTx": func(tx pgx.Tx, all []river.InsertManyParams) error {
			_, err := r.client.InsertManyTx(ctx, tx, all)
			return err
		},
		"InsertManyFastTx": func(tx pgx.Tx, all []river.InsertManyParams) error {
			_, err := r.client.InsertManyFastTx(ctx, tx, all)
			return err
		},
	} {
		tx, err := r.pool.Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		job := func(priority int) river.InsertManyParams {
			return river.InsertManyParams{Args: task{User: "ann"}, InsertOpts: &river.InsertOpts{Queue: "nobodys_default", Priority: priority}}
		}
		for _, all := range [][]river.InsertManyParams{{job(4), job(4), job(1)}, {job(3)}, {job(1)}, {job(1)}} {
			if err := insert(tx, all); err != nil {
				t.Fatal(err)
			}
		}
		var available string
		if err := tx.QueryRow(ctx, "SELECT string_agg(priority::text, ' ' ORDER BY id) FROM river_job WHERE state = 'available'").Scan(&available); err != nil || available != "4 1" {
			t.Errorf("%s: jobs of the priorities %s are available (%v), want 4 1", name, available, err)
		}
		if got := countGated(t, tx); got != 4 {
			t.Errorf("%s: %d jobs are gated, want 4", name, got)
		}
		if err := tx.Rollback(ctx); err != nil {
			t.Fatal(err)
		}
	}
}

func TestATransactionsJobsRunWhenItIsCommitted(t *testing.T) {
	r := start(t, sweeping)
	ctx := context.Background()
	first := r.insert(1, task{User: "ann", Do: "hang"}, "slow_default")
	r.runs("ann", 1)
	tx, err := r.pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	x, err := r.client.InsertTx(ctx, tx, task{User: "ann"}, &river.InsertOpts{Queue: "slow_default"})
	if err != nil {
		t.Fatal(err)
	}
	close(r.gate("hang")) // the one that it was held back for ends before anybody can see it
	r.finished(first)
	r.runs("ann", 0)
	if err := tx.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	r.finished([]int64{x.Job.ID})
}

func countGated(t *testing.T, tx pgx.Tx) (n int) {
	t.Helper()
	err := tx.QueryRow(context.Background(), "SELECT count(*) FROM river_job WHERE state = 'scheduled' AND metadata->>'sluice:wait' = 'gated'").Scan(&n)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestUniqueJobsStayUnique(t *testing.T) {
	r := start(t)
	r.insert(1, task{User: "ann", Do: "hang"}, "slow_default")
	r.runs("ann", 1)
	opts := &river.InsertOpts{Queue: "slow_default", UniqueOpts: river.UniqueOpts{ByArgs: true}}
	var ids []int64
	for i, do := range []string{"brief", "brief", ""} {
		x, err := r.client.Insert(context.Background(), task{User: "ann", Do: do}, opts)
		if err != nil {
			t.Fatal(err)
		}
		if want := i == 1; x.UniqueSkippedAsDuplicate != want {
			t.Errorf("insert %d: skipped as duplicate is %v, want %v", i, x.UniqueSkippedAsDuplicate, want)
		}
		ids = append(ids, x.Job.ID)
	}
	// The gate may let some past that come while the first job is about to be written as running.
	if got := r.states(); got["gated"]+got["parked"]+got["available"]+got["running"] != 3 {
		t.Errorf("states are %v, want three jobs", got)
	}
	close(r.gate("hang"))
	r.finished(ids)
	r.atMost("ann", 1)
}

func TestADuplicateDoesNotTakeAPlaceAtTheGate(t *testing.T) {
	r := start(t)
	opts := &river.InsertOpts{Queue: "nobodys", UniqueOpts: river.UniqueOpts{ByArgs: true}}
	r.tiers.set("ann", jobs.Limits{Total: 2})
	for range 5 {
		if _, err := r.client.Insert(context.Background(), task{User: "ann"}, opts); err != nil {
			t.Fatal(err)
		}
	}
	r.insert(1, task{User: "ann", Do: "brief"}, "nobodys")
	if got := r.states(); got["gated"] != 0 || got["available"] != 2 {
		t.Errorf("states are %v, want 2 available", got)
	}
}

func TestJobsThatAreScheduledByTheirOwnWillAreLeftAlone(t *testing.T) {
	r := start(t)
	at := time.Now().Add(time.Hour).Truncate(time.Second)
	x, err := r.client.Insert(context.Background(), task{User: "ann"}, &river.InsertOpts{Queue: "slow_default", ScheduledAt: at})
	if err != nil {
		t.Fatal(err)
	}
	r.finished(r.insert(5, task{User: "ann"}, "slow_default"))
	row, err := r.client.JobGet(context.Background(), x.Job.ID)
	if err != nil {
		t.Fatal(err)
	}
	if row.State != "scheduled" || !row.ScheduledAt.Equal(at) {
		t.Errorf("the job is %s for %v, want scheduled for %v", row.State, row.ScheduledAt, at)
	}
}

// Jobs that were scheduled for one moment come past the gate, all at once.
func TestTheSweepClosesTheGateBehindACrowd(t *testing.T) {
	r := start(t, sweeping)
	r.insert(1, task{User: "ann", Do: "hang"}, "slow_default")
	r.runs("ann", 1)
	_, err := r.pool.Exec(context.Background(), `INSERT INTO river_job (args, kind, max_attempts, metadata, queue)
		SELECT '{"user": "ann"}', 'task', 25, '{"sluice:user": "ann"}', 'paused_default' FROM generate_series(1, 500)`)
	if err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the gate is closed", func() error {
		if got := r.states(); got["gated"] != 499 || got["available"] != 1 {
			return fmt.Errorf("states are %v, want 499 gated, 1 available", got)
		}
		return nil
	})
}

func TestGatedJobsArePutOff(t *testing.T) {
	skipIfShort(t)
	t.Parallel() // it mostly waits
	r := start(t, sweeping, func(c *riverqos.Config, _ *river.Config) { c.GateFor = time.Minute })
	r.insert(50, task{User: "ann", Do: "hang"}, "slow_default")
	r.runs("ann", 1)
	if _, err := r.pool.Exec(context.Background(), "UPDATE river_job SET scheduled_at = now() + interval '27 s' WHERE state = 'scheduled'"); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "they are put off", func() error {
		var n int
		err := r.pool.QueryRow(context.Background(), "SELECT count(*) FROM river_job WHERE state = 'scheduled' AND scheduled_at < now() + interval '30 s'").Scan(&n)
		if err == nil && n > 0 {
			err = fmt.Errorf("%d are not", n)
		}
		return err
	})
	// The sweep lets one of them try, which then stands in the line.
	testkit.Eventually(t, "all but one wait", func() error {
		if got := r.states(); got["gated"]+got["parked"] != 49 {
			return fmt.Errorf("states are %v, want 49 that wait", got)
		}
		return nil
	})
}

// River makes a parked job available when its time is over. If it then sleeps by its own
// will, nobody is to wake it.
func TestAParkedJobThatCameByItselfIsParkedNoMore(t *testing.T) {
	r := start(t)
	_, err := r.pool.Exec(context.Background(), `INSERT INTO river_job (args, kind, max_attempts, metadata, queue)
		VALUES ('{"user": "ann", "do": "snooze"}', 'task', 25, '{"sluice:user": "ann", "sluice:wait": "parked"}', 'slow_default')`)
	if err != nil {
		t.Fatal(err)
	}
	r.finished(r.insert(1, task{}, "slow_default")) // announces the queue
	testkit.Eventually(t, "it sleeps", func() error {
		if got := r.states(); got["scheduled"] != 1 || got["parked"] != 0 {
			return fmt.Errorf("states are %v, want one that is scheduled", got)
		}
		return nil
	})
}

func TestDisabledLetsEverythingGo(t *testing.T) {
	r := start(t)
	ids := r.insert(4, task{User: "ann", Do: "hang"}, "slow_default")
	r.runs("ann", 1)
	was := r.client
	stopping, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	if err := was.StopAndCancel(stopping); err != nil { // it would park jobs, for which nobody sweeps here
		t.Fatal(err)
	}
	r.startWorker(func(c *riverqos.Config, rc *river.Config) { c.Runner.Disabled, c.Runner.Registry = true, nil })
	if was == r.client {
		t.Fatal("there is no second worker")
	}
	testkit.Eventually(t, "jobs are let go", func() error {
		if got := r.states(); got["gated"] != 0 {
			return fmt.Errorf("states are %v, want none gated", got)
		}
		return nil
	})
	close(r.gate("hang"))
	r.finished(append(ids, r.insert(1, task{User: "ann"}, "slow_default")...))
}

func TestASlotGoesOnWhenTheParkedJobIsGone(t *testing.T) {
	skipIfShort(t)
	for name, leave := range map[string]func(*rig, int64) error{
		"deleted": func(r *rig, id int64) error {
			_, err := r.client.JobDelete(context.Background(), id)
			return err
		},
		"cancelled": func(r *rig, id int64) error {
			_, err := r.client.JobCancel(context.Background(), id)
			return err
		},
		"put off by its own will": func(r *rig, id int64) error {
			_, err := r.pool.Exec(context.Background(), "UPDATE river_job SET metadata = metadata - 'sluice:wait' WHERE id = $1", id)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t, ungated)
			first := r.insert(1, task{User: "ann", Do: "hang"}, "slow_default")
			r.runs("ann", 1)
			second := r.insert(1, task{User: "ann"}, "slow_default")[0]
			r.inLine("ann", 1)
			third := r.insert(1, task{User: "ann"}, "slow_default")
			r.inLine("ann", 2)
			if err := leave(r, second); err != nil {
				t.Fatal(err)
			}
			close(r.gate("hang"))
			r.finished(append(first, third...))
			r.mu.Lock()
			defer r.mu.Unlock()
			if r.done[second] {
				t.Errorf("job %d ran, though it was %s", second, name)
			}
		})
	}
}

// inLine waits until so many of a user's jobs are parked, in River's table as well.
func (r *rig) inLine(user string, n int) {
	r.Helper()
	testkit.Eventually(r, "jobs are parked", func() error {
		if got, in := len(r.usage(user).Parked), r.states()["parked"]; got != n || in != n {
			return fmt.Errorf("%d in the line and %d in the table, want %d", got, in, n)
		}
		return nil
	})
}

// The queries have to say what the partial indexes say, or PostgreSQL reads all jobs.
func TestTheGateCountsByItsIndexes(t *testing.T) {
	pool, _ := fresh(t)
	plans, err := riverqos.Plans(context.Background(), pool)
	if err != nil {
		t.Fatal(err)
	}
	for name, indexes := range map[string][]string{
		"promote":  {"river_job_sluice_flow", "river_job_sluice_held"},
		"gated":    {"river_job_sluice_held"},
		"strays":   {"river_job_sluice_held"},
		"regate":   {"river_job_sluice_flow"},
		"crowded":  {"river_job_sluice_flow"},
		"postpone": {"river_job_sluice_held"},
		"users":    {"river_job_sluice_flow", "river_job_sluice_held"},
	} {
		for _, index := range indexes {
			if !strings.Contains(plans[name], index) {
				t.Errorf("plan of %s does not use %s:\n%s", name, index, plans[name])
			}
		}
		if strings.Contains(plans[name], "Seq Scan on river_job") {
			t.Errorf("plan of %s reads the whole table:\n%s", name, plans[name])
		}
	}
}

// River announces only one insert into a queue in 100 ms.
func TestInsertsInQuickSuccessionAreAnnounced(t *testing.T) {
	r := start(t)
	for i := range 10 {
		r.finished(r.insert(1, task{User: fmt.Sprint("user", i)}, "slow_default"))
	}
}

// However long one takes: it may announce the queue only when it is about to end.
func TestAnInsertAfterASlowOneIsAnnounced(t *testing.T) {
	skipIfShort(t)
	t.Parallel() // it mostly waits
	r := start(t, func(_ *riverqos.Config, rc *river.Config) {
		rc.Hooks = append(rc.Hooks, river.HookInsertBeginFunc(func(_ context.Context, p *rivertype.JobInsertParams) error {
			if strings.Contains(string(p.EncodedArgs), "slow") {
				time.Sleep(500 * time.Millisecond)
			}
			return nil
		}))
	})
	for range 5 {
		first := r.insert(1, task{User: "slow"}, "slow_default")
		r.finished(append(first, r.insert(1, task{User: "ann"}, "slow_default")...))
	}
}
