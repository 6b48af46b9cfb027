package pgslots_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sluice-qos/sluice/internal/testkit"
)

// Twenty transactions come at once for the slots of one user, whose limit is 3.
const (
	attempts = 20
	limit    = 3
)

// countThenInsert shows why a count and an insert do not do: nothing
// keeps the others from counting between the two, and they all count the same.
func countThenInsert(t *testing.T, dsn string) {
	ctx := context.Background()
	pool := open(t, dsn, attempts+1)
	_, schema := fresh(t, pool)
	var all []pgx.Tx
	for range attempts {
		tx, err := pool.Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback(ctx)
		all = append(all, tx)
	}
	counted := make([]int, attempts)
	for i, tx := range all {
		if err := tx.QueryRow(ctx, in(schema, `SELECT count(*) FROM @schema@.slots WHERE key = 'alice'`)).Scan(&counted[i]); err != nil {
			t.Fatal(err)
		}
	}
	// All have counted, none has inserted.
	for i, tx := range all {
		if counted[i] < limit {
			if _, err := tx.Exec(ctx, in(schema, insertSlot+` VALUES ('alice', $1, 'q', 'h', 'infinity', now(), 0)`), []byte{byte(i)}); err != nil {
				t.Fatal(err)
			}
		}
		if err := tx.Commit(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if got := running(t, pool, schema); got != attempts {
		t.Errorf("%d run, want %d, all that came: the demonstration shows nothing", got, attempts)
	}
}

// lockAndCount shows why the lock alone does not suffice.
// READ COMMITTED takes a snapshot when a statement begins, and all that the statement
// reads is as of then. A statement that takes the lock and counts waits after its
// snapshot, so that with the lock it counts what was there before it waited.
// The same holds in a function that is not VOLATILE, and in stricter isolation levels.
func lockAndCount(t *testing.T, dsn string) {
	pool := open(t, dsn, attempts+2)
	_, schema := fresh(t, pool)
	sql := in(schema, `
		WITH locked AS MATERIALIZED (SELECT pg_advisory_xact_lock(@schema@.lock_key('alice')))
		`+insertSlot+`
		SELECT 'alice', $1, 'q', 'h', 'infinity', now(), 0 FROM locked
		WHERE (SELECT count(*) FROM @schema@.slots WHERE key = 'alice') < 3`)
	behindTheFirst(t, pool, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, sql, []byte("first"))
		return err
	}, func(ctx context.Context, i int) error {
		_, err := pool.Exec(ctx, sql, []byte{byte(i)})
		return err
	})
	if got := running(t, pool, schema); got != attempts {
		t.Errorf("%d run, want %d, all that came: the demonstration shows nothing", got, attempts)
	}
}

// acquireDoesNot lets the same happen to the real one.
func acquireDoesNot(t *testing.T, dsn string) {
	for _, isolation := range []string{"read committed", "repeatable read", "serializable"} {
		t.Run(isolation, func(t *testing.T) {
			pool := open(t, dsn, attempts+2, "default_transaction_isolation="+isolation)
			slots, schema := fresh(t, pool)
			var mu sync.Mutex
			granted := 1
			behindTheFirst(t, pool, func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Exec(ctx, in(schema, `SELECT @schema@.acquire('alice', 'first', 'q', 'h', 3, 3, '{}', '{}', 3600000000, true, 10000)`))
				return err
			}, func(ctx context.Context, i int) error {
				v, err := slots.Acquire(ctx, job("alice", fmt.Sprint(i)), total(limit), long, true)
				mu.Lock()
				defer mu.Unlock()
				if v.Granted {
					granted++
				}
				if v.Running > limit {
					t.Errorf("Acquire = %+v, want at most %d running", v, limit)
				}
				return err
			})
			if got := running(t, pool, schema); got != limit || granted != limit {
				t.Errorf("%d granted, %d run, want %d", granted, got, limit)
			}
			if u, err := slots.User(context.Background(), "alice"); err != nil || len(u.Parked) != attempts-limit {
				t.Errorf("%d parked, %v, want %d", len(u.Parked), err, attempts-limit)
			}
		})
	}
}

// refusesOtherIsolation holds the functions to saying so when the transaction has but one
// snapshot. The calls then begin transactions of their own: see acquireDoesNot.
func refusesOtherIsolation(t *testing.T, dsn string) {
	ctx := context.Background()
	pool := open(t, dsn, 2)
	_, schema := fresh(t, pool)
	for _, level := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable} {
		err := pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: level}, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, in(schema, `SELECT @schema@.acquire('alice', 'a', 'q', 'h', 3, 3, '{}', '{}', 1, true, 1)`))
			return err
		})
		if want := "the transaction has to be read committed (SQLSTATE SL001)"; err == nil || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("acquire in a %s transaction = %v, want %q", level, err, want)
		}
	}
}

// behindTheFirst holds a transaction open after first, until all the others wait for the
// lock that it has.
func behindTheFirst(t *testing.T, pool *pgxpool.Pool, first func(context.Context, pgx.Tx) error, then func(ctx context.Context, i int) error) {
	t.Helper()
	ctx := context.Background()
	tx, err := pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(ctx)
	if err := first(ctx, tx); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	defer all.Wait()
	for i := range attempts - 1 {
		all.Go(func() {
			if err := then(ctx, i); err != nil {
				t.Error(err)
			}
		})
	}
	waitForLocks(t, pool, attempts-1)
	if err := tx.Commit(ctx); err != nil {
		t.Fatal(err)
	}
}

// waitForLocks waits until so many wait for an advisory lock.
func waitForLocks(t *testing.T, pool *pgxpool.Pool, n int) {
	t.Helper()
	testkit.Eventually(t, "waiting for the lock", func() error {
		got := number(t, pool, `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted`)
		if got != n {
			return fmt.Errorf("%d wait for it, want %d", got, n)
		}
		return nil
	})
}

const insertSlot = `INSERT INTO @schema@.slots (key, job, queue, holder, until, since, place)`

// in puts a query into a schema.
func in(schema, query string) string {
	return strings.ReplaceAll(query, "@schema@", pgx.Identifier{schema}.Sanitize())
}

func running(t testing.TB, pool *pgxpool.Pool, schema string) int {
	t.Helper()
	return number(t, pool, in(schema, `SELECT count(*) FROM @schema@.slots WHERE key = 'alice'`))
}
