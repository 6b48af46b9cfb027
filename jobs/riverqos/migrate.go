package riverqos

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sluice-qos/sluice/pkg/jobs/pgslots"
)

// oldestServer is pgslots.OldestServer, but in tests.
var oldestServer = pgslots.OldestServer

// Migrate makes the two indexes on River's table that the gate counts with, and the trigger that counts. It may be
// called by any number of programs at any time, after River's own migrations. It locks
// the table against writing while it builds them: with a large table in use, run the
// statements of sql/indexes.sql by hand, with CREATE INDEX CONCURRENTLY. A server older than
// pgslots.OldestServer is refused.
func Migrate(ctx context.Context, pool *pgxpool.Pool, schema string) error {
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if err := pgslots.CheckServer(ctx, tx, oldestServer); err != nil {
			return err
		}
		// CREATE INDEX IF NOT EXISTS is not safe against another one at the same time.
		if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock(hashtext('sluice:migrate'))"); err != nil {
			return err
		}
		// The trigger must find the table whatever search path a program inserts with.
		if err := tx.QueryRow(ctx, statement(tableNames(schema), "schema")).Scan(&schema); err != nil {
			return err
		}
		names := tableNames(schema)
		_, err := tx.Conn().PgConn().Exec(ctx, statement(names, "indexes")+statement(names, "trigger")).ReadAll()
		return err
	})
	if err != nil {
		return fmt.Errorf("riverqos: migrate: %w", err)
	}
	return nil
}
