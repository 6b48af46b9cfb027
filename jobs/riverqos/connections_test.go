package riverqos_test

import (
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"

	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/jobs/riverqos"
	"github.com/sluice-qos/sluice/pkg/jobs"
)

// inserter is a program that inserts, with a pool of one connection.
func inserter(t *testing.T, options string) (r *rig, pool *pgxpool.Pool, fair *riverqos.Fairness, client *river.Client[pgx.Tx]) {
	t.Helper()
	direct, dsn := fresh(t)
	pool, err := pgxpool.New(t.Context(), dsn+"&pool_max_conns=1"+options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	r = &rig{TB: t, pool: direct, dsn: dsn, reg: prometheus.NewRegistry(), tiers: &tiers{}}
	fair, err = riverqos.New(riverqos.Config{Pool: pool, Slots: jobs.NewMemory(nil), Tiers: r.tiers, User: riverqos.FromArgs("user"), Registry: r.reg})
	if err != nil {
		t.Fatal(err)
	}
	fair.SetCountTimeout(testkit.Patience)
	if client, err = river.NewClient(riverpgxv5.New(pool), &river.Config{Middleware: fair.Middleware(), Logger: slog.New(slog.DiscardHandler)}); err != nil {
		t.Fatal(err)
	}
	return r, pool, fair, client
}

// Each of the inserts has a transaction, and all of these have every connection of the
// pool.
func TestInsertsAtATimeDoNotWaitForEachOther(t *testing.T) {
	r, _, fair, client := inserter(t, "")
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 5 {
				if _, err := client.Insert(t.Context(), task{User: "ann"}, nil); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if got := r.value("sluice_jobs_errors_total", "count"); got != 0 {
		t.Errorf("%v inserts got no answer from the gate, want 0", got)
	}
	if got := r.states(); got["gated"] != 39 || got["available"] != 1 {
		t.Errorf("states are %v, want 39 gated, 1 available", got)
	}

	// Run needs no second one either.
	stop := running(t, fair)
	testkit.Eventually(t, "it sweeps", func() error { return r.counted("sluice_jobs_sweeps_total", "done") })
	stop()
}

// A transaction that waits for the gate is idle, which the server may not put up with.
func TestATransactionThatInsertsIsNotIdle(t *testing.T) {
	_, pool, _, client := inserter(t, "&idle_in_transaction_session_timeout=20000")
	err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		_, err := client.InsertTx(t.Context(), tx, task{User: "ann"}, nil)
		return err
	})
	if err != nil {
		t.Errorf("a transaction that inserts fails: %v", err)
	}
}

// Run's end leaves neither connections nor goroutines.
func TestRunEndsWithItsConnections(t *testing.T) {
	pool, dsn := fresh(t)
	mine, err := pgxpool.New(t.Context(), dsn+"&application_name=shop")
	if err != nil {
		t.Fatal(err)
	}
	defer mine.Close()
	fair, err := riverqos.New(riverqos.Config{Pool: mine, Slots: jobs.NewMemory(nil), Tiers: &tiers{}, User: riverqos.FromArgs("user")})
	if err != nil {
		t.Fatal(err)
	}
	connections := func(want bool) func() error {
		return func() error {
			var n int
			err := pool.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'shop sluice'").Scan(&n)
			if err == nil && (n > 0) != want {
				err = fmt.Errorf("there are %d of them", n)
			}
			return err
		}
	}
	if err := connections(false)(); err != nil {
		t.Errorf("New() connects: %v", err)
	}
	client, err := river.NewClient(riverpgxv5.New(mine), &river.Config{Middleware: fair.Middleware(), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	before := watchers()
	for range 2 {
		stop := running(t, fair)
		if _, err := client.Insert(t.Context(), task{User: "ann"}, nil); err != nil { // which counts by one of them
			t.Fatal(err)
		}
		testkit.Eventually(t, "it has connections of its own", connections(true))
		stop()
		testkit.Eventually(t, "they are closed", connections(false))
		testkit.Eventually(t, "its goroutines end", func() error {
			if after := watchers(); after > before {
				return fmt.Errorf("%d pools are watched, and %d before", after, before)
			}
			return nil
		})
	}
}

// watchers are the goroutines of all pools.
func watchers() int {
	stacks := make([]byte, 8<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	return strings.Count(string(stacks), "pgxpool.(*Pool).backgroundHealthCheck(")
}
