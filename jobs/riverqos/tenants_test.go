package riverqos_test

import (
	"context"
	"database/sql"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/riverqueue/river"

	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/jobs/riverqos"
	"github.com/sluice-qos/sluice/pkg/jobs"
)

// A tenant whose import runs for long has their next import wait, and none of their syncs, by
// the shipped example of a limit file and by a record in a database.
func TestATenantsJobOfOneServiceDoesNotHoldUpTheOthers(t *testing.T) {
	t.Parallel() // it mostly waits
	file, err := jobs.OpenLimitFile("../../config/examples/tenants.yaml")
	if err != nil {
		t.Fatal(err)
	}
	fromFile := jobs.FileTiers{Set: file.Set}
	users, _ := fresh(t)
	createTenants(t, users, "('umbrella', NULL, 'unlimited', '{\"*\": 1}')")
	fromDatabase := jobs.NamedTiers{Record: jobs.NewCache(jobs.QueryRecord(users.QueryRow, tenantQuery), jobs.CacheConfig{Timeout: testkit.Patience}).Record, Timeout: testkit.Patience}
	for _, c := range []struct {
		name    string
		tiers   jobs.Tiers
		options []option
	}{
		{"the file, through the gate", fromFile, nil},
		{"the file, parked and woken", fromFile, []option{ungated}},
		{"the file, asleep meanwhile", fromFile, []option{ungated, snoozing}},
		{"a record, through the gate", fromDatabase, nil},
		{"a record, parked and woken", fromDatabase, []option{ungated}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := start(t, append(c.options, func(cfg *riverqos.Config, rc *river.Config) {
				cfg.Tiers = c.tiers
				rc.Queues = map[string]river.QueueConfig{"csv_default": {MaxWorkers: 5}, "sync_default": {MaxWorkers: 5}}
			})...)
			imports := r.insert(3, task{User: "umbrella", Do: "hang"}, "csv_default")
			r.runs("umbrella", 1)
			r.finished(r.insert(4, task{User: "umbrella", Do: "brief"}, "sync_default")) // while the import hangs
			r.runs("umbrella", 1)
			close(r.gate("hang"))
			r.finished(imports)
			r.atMost("umbrella", 2) // one of each service
			if n := r.spent(); n != 1 {
				t.Errorf("a job spent %d attempts, want 1", n)
			}
		})
	}
}

const tenantQuery = "SELECT tier, jobs_total, jobs_queues FROM tenants WHERE id = $1"

func createTenants(t *testing.T, pool *pgxpool.Pool, rows string) {
	t.Helper()
	_, err := pool.Exec(context.Background(), "CREATE TABLE tenants (id text PRIMARY KEY, tier text, jobs_total text, jobs_queues jsonb); INSERT INTO tenants VALUES "+rows)
	if err != nil {
		t.Fatal(err)
	}
}

// A record is read from columns of several types, by pgx and by database/sql.
func TestQueryRecordOnPostgreSQL(t *testing.T) {
	pool, _ := fresh(t)
	createTenants(t, pool, `('acme', 'pro', '3', '{"*": 1, "csv": 2, "sync": "unlimited"}'), ('initech', 'free', NULL, NULL), ('broken', 'pro', '0', NULL)`)
	db := stdlib.OpenDBFromPool(pool)
	defer func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	}()
	acme := jobs.Record{Tier: "pro", Total: 3, Queues: map[string]int{"*": 1, "csv": 2, "sync": jobs.Unlimited}}
	for name, columns := range map[string]string{
		"text and jsonb":    "tier, jobs_total, jobs_queues",
		"a number and json": "tier, CASE WHEN jobs_total ~ '^[0-9]+$' THEN jobs_total::int END, jobs_queues::json",
		"bigint and text":   "tier, CASE WHEN jobs_total ~ '^[0-9]+$' THEN jobs_total::bigint END, jobs_queues::text",
	} {
		query := "SELECT " + columns + " FROM tenants WHERE id = $1"
		for driver, record := range map[string]jobs.RecordFunc{"pgx": jobs.QueryRecord(pool.QueryRow, query), "database/sql": jobs.QueryRecord(db.QueryRowContext, query)} {
			for user, want := range map[string]jobs.Record{"acme": acme, "initech": {Tier: "free"}, "nobody": {}} {
				got, err := record(t.Context(), user)
				if err != nil || !reflect.DeepEqual(got, want) {
					t.Errorf("%s by %s, of %s: %+v, %v, want %+v", name, driver, user, got, err, want)
				}
			}
			if got, err := record(t.Context(), "broken"); err == nil {
				t.Errorf("%s by %s: a total of 0 is read as %+v, want an error", name, driver, got)
			}
		}
	}
	if got, err := jobs.Query(pool.QueryRow, "SELECT tier FROM tenants WHERE id = $1")(t.Context(), "acme"); err != nil || got.Tier != "pro" {
		t.Errorf("Query = %+v, %v, want pro", got, err)
	}
}

var _ = func(db *sql.DB) jobs.RecordFunc { return jobs.QueryRecord(db.QueryRowContext, tenantQuery) }

// A database that falls silent takes nobody's numbers away: the last record goes on counting.
func TestTheLastRecordCountsWhileItsDatabaseIsAway(t *testing.T) {
	skipIfShort(t)
	t.Parallel() // it mostly waits
	users, dsn := fresh(t)
	createTenants(t, users, `('ann', 'pro', '2', '{"*": 1, "slow": 2}')`)
	between := newHole(t, dsn)
	silent, err := pgxpool.New(context.Background(), between.dsn)
	if err != nil {
		t.Fatal(err)
	}
	// A ttl so short that each job asks anew, and a time-out that ends soon when nobody answers.
	cache := jobs.NewCache(jobs.QueryRecord(silent.QueryRow, tenantQuery), jobs.CacheConfig{TTL: 1, Retry: 1, Timeout: time.Second})
	tiers := jobs.NamedTiers{Record: cache.Record}
	want := jobs.Tier{Name: "pro", Class: jobs.Priority, Limits: jobs.Limits{Total: 2, EachQueue: 1, Queues: map[string]int{"slow": 2}}}
	testkit.Eventually(t, "the record is known", func() error {
		if got, err := tiers.Tier(t.Context(), "ann"); err != nil || !reflect.DeepEqual(got, want) {
			return fmt.Errorf("Tier = %+v, %v, want %+v", got, err, want)
		}
		return nil
	})
	between.silence()
	if got, err := tiers.Tier(t.Context(), "ann"); err == nil || !reflect.DeepEqual(got, want) {
		t.Errorf("without its database: Tier = %+v, %v, want %+v and an error", got, err, want)
	}
	r := start(t, func(cfg *riverqos.Config, _ *river.Config) { cfg.Tiers = tiers })
	slow := r.insert(3, task{User: "ann", Do: "hang"}, "slow_default")
	r.runs("ann", 2)
	close(r.gate("hang"))
	r.finished(slow)
	r.atMost("ann", 2)
	if s := cache.Stats(); s.Errors == 0 {
		t.Errorf("Stats() = %+v, want questions that failed", s)
	}
}
