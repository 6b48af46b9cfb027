package pgslots_test

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/pkg/jobs"
)

func asynchronous(t *testing.T, dsn string) {
	pool := open(t, dsn, 4)
	ctx := context.Background()
	_, schema := fresh(t, pool)
	conn, err := pool.Acquire(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	show := func() (s string) {
		if err := conn.QueryRow(ctx, `SHOW synchronous_commit`).Scan(&s); err != nil {
			t.Fatal(err)
		}
		return s
	}
	for _, step := range []struct{ sql, want string }{
		{`BEGIN`, "on"},
		{`SELECT @schema@.acquire('alice', 'a', 'q', 'h', 3, 3, '{}', '{}', 1, true, 1)`, "off"},
		{`COMMIT`, "on"},
	} {
		if _, err := conn.Exec(ctx, in(schema, step.sql)); err != nil {
			t.Fatal(err)
		}
		if got := show(); got != step.want {
			t.Errorf("synchronous_commit after %s = %s, want %s", step.sql, got, step.want)
		}
	}
}

func renewGrowsNothing(t *testing.T, dsn string) {
	pool := open(t, dsn, 4)
	ctx := context.Background()
	slots, schema := fresh(t, pool)
	var claims []jobs.Claim
	for i := range 50 {
		c := job(fmt.Sprint("user", i%10), fmt.Sprint(i))
		if v, err := slots.Acquire(ctx, c, total(100), long, false); err != nil || !v.Granted {
			t.Fatalf("Acquire = %+v, %v", v, err)
		}
		claims = append(claims, c)
	}
	renew := func(n int) {
		for range n {
			if lost, err := slots.Renew(ctx, claims, long); err != nil || len(lost) > 0 {
				t.Fatalf("Renew = %v, %v", lost, err)
			}
		}
	}
	size := func(relation string) int {
		return number(t, pool, `SELECT pg_relation_size($1::text::regclass)`, in(schema, relation))
	}
	renew(20)
	index, table := size("@schema@.slots_pkey"), size("@schema@.slots")
	renew(200)
	// 10 000 rows of at least 80 bytes were written.
	if i, s := size("@schema@.slots_pkey"), size("@schema@.slots"); i != index || s > table+8*8192 {
		t.Errorf("index %d and table %d bytes, want %d and little more than %d", i, s, index, table)
	}
}

// deadRows has one user come and go without a vacuum, and then counts the pages that are
// read for that user. A wrong plan reads nearly all pages that hold the user's dead rows.
// Plans are made when the tables are empty, whether the planner knows that or not.
func deadRows(t *testing.T, dsn string) {
	for name, prepare := range map[string]string{
		"tables of unknown size":   "",
		"tables known to be empty": `ANALYZE @schema@.slots, @schema@.lines, @schema@.line`,
	} {
		t.Run(name, func(t *testing.T) {
			ctx := context.Background()
			pool := open(t, dsn, 1) // one session, one plan
			slots, schema := fresh(t, pool)
			exec(t, pool, in(schema, prepare))
			for i := range 1500 {
				c := job("alice", fmt.Sprint(i))
				if v, err := slots.Acquire(ctx, c, total(1), long, false); err != nil || !v.Granted {
					t.Fatalf("Acquire = %+v, %v", v, err)
				}
				if _, err := slots.Release(ctx, c, total(1), long); err != nil {
					t.Fatal(err)
				}
			}
			const most = 15
			if n := number(t, pool, `SELECT pg_relation_size($1::text::regclass) / 8192`, in(schema, "@schema@.slots")); n <= most {
				t.Fatalf("the table has %d pages, want more than %d", n, most)
			}
			testkit.Eventually(t, "few pages are read", func() error {
				if n := pagesRead(t, pool, schema); n > most {
					return fmt.Errorf("%d pages, want up to %d", n, most)
				}
				return nil
			})
		})
	}
}

// pagesRead are those of a call that finds no slot free.
func pagesRead(t *testing.T, pool *pgxpool.Pool, schema string) int {
	t.Helper()
	exec(t, pool, in(schema, insertSlot+` VALUES ('alice', 'held', 'q', 'h', 'infinity', now(), 0) ON CONFLICT DO NOTHING`))
	rows, err := pool.Query(context.Background(), in(schema,
		`EXPLAIN (ANALYZE, BUFFERS) SELECT @schema@.acquire('alice', 'a', 'q', 'h', 1, 1, '{}', '{}', 1, false, 1)`))
	if err != nil {
		t.Fatal(err)
	}
	plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	m := hits.FindStringSubmatch(strings.Join(plan, "\n"))
	if m == nil {
		t.Fatalf("no pages in %q", plan)
	}
	n, err := strconv.Atoi(m[1])
	if err != nil {
		t.Fatal(err)
	}
	return n
}

var hits = regexp.MustCompile(`Buffers: shared hit=(\d+)`)

func nothingLeft(t *testing.T, dsn string) {
	pool := open(t, dsn, 4)
	ctx := context.Background()
	slots, schema := fresh(t, pool)
	for i := range 200 {
		user := fmt.Sprint("user", i)
		a, b := job(user, "a"), job(user, "b")
		for _, c := range []jobs.Claim{a, b} {
			if _, err := slots.Acquire(ctx, c, total(1), long, true); err != nil {
				t.Fatal(err)
			}
		}
		for _, c := range []jobs.Claim{a, b} {
			if _, err := slots.Release(ctx, c, total(1), long); err != nil {
				t.Fatal(err)
			}
		}
		if err := slots.Forget(ctx, b.Job); err != nil {
			t.Fatal(err)
		}
	}
	if n := rows(t, pool, schema); n != 0 {
		t.Errorf("%d rows, want 0", n)
	}
}

func sweeps(t *testing.T, dsn string) {
	pool := open(t, dsn, 4)
	ctx := context.Background()
	slots, schema := fresh(t, pool)
	const users = 120 // more than are swept at once
	for i := range users {
		if _, err := slots.Acquire(ctx, job(fmt.Sprint("user", i), "a"), total(1), time.Millisecond, true); err != nil {
			t.Fatal(err)
		}
	}
	if v, err := slots.Acquire(ctx, job("alice", "a"), total(1), long, true); err != nil || !v.Granted {
		t.Fatalf("Acquire = %+v, %v", v, err)
	}
	testkit.Eventually(t, "the slots of the dead are gone", func() error {
		if _, err := slots.Waiting(ctx, "", 10); err != nil {
			return err
		}
		if n := rows(t, pool, schema); n != 1 {
			return fmt.Errorf("%d rows, want 1, alice's", n)
		}
		return nil
	})
	if n := running(t, pool, schema); n != 1 {
		t.Errorf("alice has %d slots, want 1", n)
	}
}

// rows are those of all tables.
func rows(t testing.TB, pool *pgxpool.Pool, schema string) int {
	t.Helper()
	return number(t, pool, in(schema, `SELECT (SELECT count(*) FROM @schema@.slots) + (SELECT count(*) FROM @schema@.line) + (SELECT count(*) FROM @schema@.lines)`))
}
