package pgslots

import (
	"context"
	_ "embed"
	"fmt"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// firstVersion makes all tables and functions.
//
//go:embed migrations/001_slots.sql
var firstVersion string

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
	if err := migrate(ctx, pool, schema); err != nil {
		return fmt.Errorf("migrate schema %q: %w", schema, err)
	}
	return nil
}

func migrate(ctx context.Context, pool *pgxpool.Pool, schema string) error {
	// Read committed, so that what is read with the lock is what was written before it.
	return pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		if err := CheckServer(ctx, tx, oldestServer); err != nil {
			return err
		}
		// Many workers start at once, and one of them migrates.
		if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1::int8)", int64(migrating)); err != nil {
			return err
		}
		// A newer program may have made a later version, which can still be used.
		done, err := version(ctx, tx, schema)
		if err != nil || done >= 1 {
			return err
		}
		// Without arguments, it may have many statements.
		if _, err := tx.Conn().PgConn().Exec(ctx, strings.ReplaceAll(firstVersion, "@schema@", quotedName(schema))).ReadAll(); err != nil {
			return fmt.Errorf("step 1: %w", err)
		}
		_, err = tx.Exec(ctx, "INSERT INTO "+quotedName(schema, "migrations")+" (version) VALUES (1)")
		return err
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

func quotedName(parts ...string) string { return pgx.Identifier(parts).Sanitize() }
