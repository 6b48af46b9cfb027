package pgslots_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sluice-qos/sluice/pkg/jobs/pgslots"
)

func migrateAtOnce(t *testing.T, dsn string) {
	pool := open(t, dsn, 16, "default_transaction_isolation=serializable")
	var all sync.WaitGroup
	for range 16 {
		all.Go(func() {
			if err := pgslots.Migrate(context.Background(), pool, ""); err != nil {
				t.Errorf("Migrate = %v", err)
			}
		})
	}
	all.Wait()
	callEverything(t, pgslots.New(pool, ""))
}

func migrateWithoutRights(t *testing.T, dsn string) {
	ctx := context.Background()
	pool := open(t, dsn, 2)
	_, schema := fresh(t, pool)
	exec(t, pool, `CREATE ROLE worker LOGIN`)
	exec(t, pool, in(schema, `GRANT USAGE ON SCHEMA @schema@ TO worker`))
	exec(t, pool, in(schema, `GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA @schema@ TO worker`))
	worker := openWith(t, dsn, 2, func(c *pgxpool.Config) { c.ConnConfig.User = "worker" })
	if err := pgslots.Migrate(ctx, worker, schema); err != nil {
		t.Fatalf("Migrate of what is up to date = %v", err)
	}
	callEverything(t, pgslots.New(worker, schema))
	if err := pgslots.Migrate(ctx, worker, "another"); err == nil || !strings.Contains(err.Error(), "permission denied") {
		t.Errorf("Migrate of a new schema = %v, want it refused", err)
	}
}

func migrateNewer(t *testing.T, dsn string) {
	pool := open(t, dsn, 2)
	slots, schema := fresh(t, pool)
	exec(t, pool, in(schema, `INSERT INTO @schema@.migrations (version) VALUES (1000)`))
	if err := pgslots.Migrate(context.Background(), pool, schema); err != nil {
		t.Fatalf("Migrate = %v", err)
	}
	callEverything(t, slots)
}

func migrateFails(t *testing.T, dsn string) {
	pool := open(t, dsn, 2)
	exec(t, pool, `CREATE SCHEMA taken`)
	exec(t, pool, `CREATE TABLE taken.line ()`)
	err := pgslots.Migrate(context.Background(), pool, "taken")
	if want := `migrate schema "taken": step 1: `; err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Fatalf("Migrate = %v, want %q", err, want)
	}
	if n := number(t, pool, `SELECT count(*) FROM pg_class WHERE relnamespace = 'taken'::regnamespace`); n != 1 {
		t.Errorf("%d tables and indexes in the schema, want 1, that which was there", n)
	}
}

func migrateBadName(t *testing.T, dsn string) {
	pool := open(t, dsn, 1)
	for _, name := range []string{"o'brien", `a"b`, "a$$b", "a\\b", strings.Repeat("x", 64), "a\x00b"} {
		err := pgslots.Migrate(context.Background(), pool, name)
		if want := "up to 63 letters, digits, blanks, _ and -"; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Migrate(%q) = %v, want %q", name, err, want)
		}
	}
}

func migrateOldServer(t *testing.T, dsn string) {
	pool := open(t, dsn, 1)
	version := number(t, pool, `SELECT current_setting('server_version_num')::int4 / 10000`)
	defer pgslots.SetOldestServer(version + 1)()
	err := pgslots.Migrate(context.Background(), pool, "old")
	if want := fmt.Sprintf(`migrate schema "old": the server is PostgreSQL %d.`, version); err == nil || !strings.HasPrefix(err.Error(), want) ||
		!strings.HasSuffix(err.Error(), fmt.Sprintf(": want %d or later", version+1)) {
		t.Errorf("Migrate = %v, want %q…", err, want)
	}
	if n := number(t, pool, `SELECT count(*) FROM pg_namespace WHERE nspname = 'old'`); n != 0 {
		t.Error("there is a schema of what was refused")
	}
}
