package pgslots_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/pkg/jobs"
	"github.com/sluice-qos/sluice/pkg/jobs/pgslots"
)

const long = time.Hour // of leases that must not end while a test runs

// TestSlots shares one server between its tests, each of which has a schema of its own.
func TestSlots(t *testing.T) {
	// Deadlocks are found at once, and dead rows stay.
	dsn := testkit.Postgres(t, "deadlock_timeout=10ms", "autovacuum=off").DSN
	for _, c := range []struct {
		name string
		run  func(t *testing.T, dsn string)
	}{
		{"conformance", conformance},
		{"no session is needed", needsNoSession},
		{"conformance through PgBouncer in transaction mode", throughPgBouncer},
		{"count then insert admits too many", countThenInsert},
		{"lock and count in one statement admits too many", lockAndCount},
		{"acquire does not", acquireDoesNot},
		{"acquire refuses to count in an old snapshot", refusesOtherIsolation},
		{"no deadlock", noDeadlock},
		{"calls that are made together are as if made one by one", togetherAsAlone},
		{"calls that need more are not made together", notTogether},
		{"calls together wait for no lock", togetherWaitsForNobody},
		{"a lease that is over is not renewed", renewEnded},
		{"cancelled calls leave nothing", cancelled},
		{"only its own transactions do not wait for the disk", asynchronous},
		{"renewing grows nothing", renewGrowsNothing},
		{"dead rows do not slow down a user between two vacuums", deadRows},
		{"users who are done leave nothing", nothingLeft},
		{"users who never come again leave nothing", sweeps},
		{"many workers migrate at once", migrateAtOnce},
		{"a schema that is up to date needs no rights", migrateWithoutRights},
		{"a newer schema is left alone", migrateNewer},
		{"a step that fails leaves nothing behind", migrateFails},
		{"an older server is refused", migrateOldServer},
		{"a schema's name that could end a string is refused", migrateBadName},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(t, dsn) })
	}
}

// open returns a pool that is closed when the test ends. Its sessions have the given
// settings, such as "default_transaction_isolation=serializable".
func open(t testing.TB, dsn string, size int, set ...string) *pgxpool.Pool {
	t.Helper()
	return openWith(t, dsn, size, func(c *pgxpool.Config) {
		for _, s := range set {
			key, value, _ := strings.Cut(s, "=")
			c.ConnConfig.RuntimeParams[key] = value
		}
	})
}

func openWith(t testing.TB, dsn string, size int, change func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = int32(size)
	change(config)
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

var schemas int

// fresh returns slots in a schema of their own.
func fresh(t testing.TB, pool *pgxpool.Pool) (slots jobs.Slots, schema string) {
	t.Helper()
	schemas++
	schema = fmt.Sprintf("Test-%d", schemas)
	if err := pgslots.Migrate(context.Background(), pool, schema); err != nil {
		t.Fatal(err)
	}
	return pgslots.New(pool, schema), schema
}

func job(user, id string) jobs.Claim {
	return jobs.Claim{Job: jobs.Job{User: user, ID: id, Queue: "q"}, Holder: id + "'s worker"}
}

func total(n int) jobs.Limits { return jobs.Limits{Total: n} }

// number reads one.
func number(t testing.TB, pool *pgxpool.Pool, sql string, args ...any) (n int) {
	t.Helper()
	if err := pool.QueryRow(context.Background(), sql, args...).Scan(&n); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return n
}

func exec(t testing.TB, pool *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	if _, err := pool.Exec(context.Background(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}
