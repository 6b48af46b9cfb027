package pgslots

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// OldestServer is the major version of the oldest PostgreSQL that is tested.
const OldestServer = 15

// CheckServer returns an error if a server is older than the version, and so nobody knows
// whether what is written for that works there.
func CheckServer(ctx context.Context, tx pgx.Tx, oldest int) error {
	var number int
	var name string
	if err := tx.QueryRow(ctx, "SELECT current_setting('server_version_num')::int4, current_setting('server_version')").Scan(&number, &name); err != nil {
		return fmt.Errorf("ask for the server's version: %w", err)
	}
	if number/10_000 < oldest {
		return fmt.Errorf("the server is PostgreSQL %s: want %d or later", name, oldest)
	}
	return nil
}
