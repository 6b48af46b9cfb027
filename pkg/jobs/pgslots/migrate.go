package pgslots

import (
	"context"
	"embed"
	"fmt"
	"io/fs"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

//go:embed migrations/*.sql
var migrations embed.FS

// migrating is the advisory lock of those who migrate: "sluice" in ASCII.
const migrating = 0x736c75696365

// oldestServer is OldestServer, but in tests.
var oldestServer = OldestServer

// goodName is of a schema. PostgreSQL cuts longer ones.
var goodName = regexp.MustCompile(`^[A-Za-z0-9 _-]{1,63}$`)

// Migrate brings the tables and functions of a schema up to date, and makes the schema
// if there is none; "" is DefaultSchema. It may be called by any number of workers at
// any time: one of them does what there is to do. If there is nothing, it needs no
// right to change the schema. A schema that is newer than this program is left alone, and
// a server older than OldestServer refused.
func Migrate(ctx context.Context, pool *pgxpool.Pool, schema string) error {
	if schema == "" {
		schema = DefaultSchema
	}
	// PostgreSQL would cut a longer name, and two schemas could be one.
	if !goodName.MatchString(schema) {
		return fmt.Errorf("schema %q: want up to 63 letters, digits, blanks, _ and -", schema)
	}
	steps, err := readSteps(schema)
	if err != nil {
		return err
	}
	if err := migrate(ctx, pool, schema, steps); err != nil {
		return fmt.Errorf("migrate schema %q: %w", schema, err)
	}
	return nil
}

func migrate(ctx context.Context, pool *pgxpool.Pool, schema string, steps []string) error {
	// Read committed, so that what is read with the lock is what was written before it.
	return pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		if err := CheckServer(ctx, tx, oldestServer); err != nil {
			return err
		}
		// Many workers start at once, and one of them migrates.
		if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1::int8)", int64(migrating)); err != nil {
			return err
		}
		// A newer program may have made more steps than are known here: what it made can still be used.
		done, err := version(ctx, tx, schema)
		if err != nil || done >= len(steps) {
			return err
		}
		for v := done + 1; v <= len(steps); v++ {
			// Without arguments, a step may have many statements.
			if _, err := tx.Conn().PgConn().Exec(ctx, steps[v-1]).ReadAll(); err != nil {
				return fmt.Errorf("step %d: %w", v, err)
			}
			if _, err := tx.Exec(ctx, "INSERT INTO "+quotedName(schema, "migrations")+" (version) VALUES ($1::int4)", v); err != nil {
				return err
			}
		}
		return nil
	})
}

// version is that of the schema, which is made if there is none; 0 is empty.
func version(ctx context.Context, tx pgx.Tx, schema string) (int, error) {
	table := quotedName(schema, "migrations")
	var hasSchema, hasTable bool
	err := tx.QueryRow(ctx, "SELECT to_regnamespace($1::text) IS NOT NULL, to_regclass($2::text) IS NOT NULL", quotedName(schema), table).
		Scan(&hasSchema, &hasTable)
	if err != nil {
		return 0, err
	}
	// Not IF NOT EXISTS, for which PostgreSQL wants the right to create, even if all is there.
	if !hasSchema {
		if _, err := tx.Exec(ctx, "CREATE SCHEMA "+quotedName(schema)); err != nil {
			return 0, err
		}
	}
	if !hasTable {
		_, err := tx.Exec(ctx, "CREATE TABLE "+table+" (version int PRIMARY KEY, at timestamptz NOT NULL DEFAULT now())")
		return 0, err
	}
	var v int
	err = tx.QueryRow(ctx, "SELECT coalesce(max(version), 0) FROM "+table).Scan(&v)
	return v, err
}

// readSteps reads the files, whose names begin with 001, 002 and so on.
func readSteps(schema string) (steps []string, err error) {
	files, err := fs.Glob(migrations, "migrations/*.sql")
	// Glob sorts them, which is their order.
	for _, file := range files {
		text, err := migrations.ReadFile(file)
		if err != nil {
			return nil, err
		}
		steps = append(steps, strings.ReplaceAll(string(text), "@schema@", quotedName(schema)))
	}
	return steps, err
}

func quotedName(parts ...string) string { return pgx.Identifier(parts).Sanitize() }
