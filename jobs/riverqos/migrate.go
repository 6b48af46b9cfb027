package riverqos

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Migrate makes the two indexes on River's table that the gate counts with. It may be
// called by any number of programs at any time, after River's own migrations. It locks
// the table against writing while it builds them: with a large table in use, run the
// statements of sql/indexes.sql by hand, with CREATE INDEX CONCURRENTLY.
func Migrate(ctx context.Context, pool *pgxpool.Pool, schema string) error {
	tx, err := pool.Begin(ctx)
	if err != nil {
		return fmt.Errorf("riverqos: migrate: %w", err)
	}
	defer func() { _ = tx.Rollback(ctx) }()
	if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock(hashtext('sluice:migrate'))"); err != nil { // IF NOT EXISTS is not safe against another's
		return fmt.Errorf("riverqos: migrate: %w", err)
	}
	if _, err := tx.Conn().PgConn().Exec(ctx, statement(tableNames(schema), "indexes")).ReadAll(); err != nil {
		return fmt.Errorf("riverqos: migrate: %w", err)
	}
	if err := tx.Commit(ctx); err != nil {
		return fmt.Errorf("riverqos: migrate: %w", err)
	}
	return nil
}
