package riverqos_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"

	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/jobs/riverqos"
)

// fleet is several worker processes and one that inserts.
type fleet struct {
	testing.TB
	pool    *pgxpool.Pool
	client  *river.Client[pgx.Tx]
	workers []*testkit.Process
}

func startFleet(t testing.TB, n int, o fleetOptions) *fleet {
	t.Helper()
	ctx := context.Background()
	f := &fleet{TB: t}
	f.pool, o.DSN = fresh(t)
	if _, err := f.pool.Exec(ctx, fleetTable); err != nil {
		t.Fatal(err)
	}
	cfg, err := o.config(ctx, f.pool)
	if err != nil {
		t.Fatal(err)
	}
	fair, err := riverqos.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	f.client, err = river.NewClient(riverpgxv5.New(f.pool), &river.Config{Middleware: fair.Middleware(), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	for range n {
		f.workers = append(f.workers, testkit.Start(t, []string{o.String()}, os.Args[0]))
	}
	for _, p := range f.workers {
		testkit.Eventually(t, "a worker is ready", func() error {
			if !strings.Contains(p.Output(), "ready") {
				return fmt.Errorf("it printed %q", p.Output())
			}
			return nil
		})
	}
	return f
}

func (f *fleet) insert(n int, user string, d time.Duration) {
	f.Helper()
	params := make([]river.InsertManyParams, n)
	for i := range params {
		params[i] = river.InsertManyParams{Args: fleetJob{User: user, For: d}, InsertOpts: &river.InsertOpts{Queue: fleetQueue}}
	}
	if _, err := f.client.InsertMany(context.Background(), params); err != nil {
		f.Fatal(err)
	}
}

// asks waits until a number that SQL finds is as wanted.
func (f *fleet) asks(what, sql string, want int, args ...any) {
	f.Helper()
	testkit.Eventually(f, what, func() error {
		if got := f.ask(sql, args...); got != want {
			return fmt.Errorf("it is %d, want %d", got, want)
		}
		return nil
	})
}

func (f *fleet) ask(sql string, args ...any) (n int) {
	f.Helper()
	if err := f.pool.QueryRow(context.Background(), sql, args...).Scan(&n); err != nil {
		f.Fatal(err)
	}
	return n
}

const (
	endedOf = "SELECT count(*) FROM worked WHERE usr = $1 AND ended IS NOT NULL"
	begunOf = "SELECT count(*) FROM worked WHERE usr = $1"
	// mostOf is how many of a user's jobs ran at a time.
	mostOf = `SELECT max((SELECT count(*) FROM worked b WHERE b.usr = a.usr AND b.begun <= a.begun AND (b.ended IS NULL OR b.ended > a.begun)))
		FROM worked a WHERE a.usr = $1`
)

func TestManyProcesses(t *testing.T) {
	t.Parallel() // it mostly waits
	for _, backend := range []string{"postgres", "redis"} {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			o := fleetOptions{Lease: 10 * time.Second, Workers: 5} // longer than workers stall on a busy machine
			if backend == "redis" {
				_, o.Redis = testkit.Redis(t)
			}
			f := startFleet(t, 3, o)
			f.insert(10, "free", 50*time.Millisecond)
			f.insert(3, "pro", 3*time.Second) // so that they run at a time on a busy machine, too
			f.insert(27, "pro", 50*time.Millisecond)
			f.asks("jobs of free that ended", endedOf, 10, "free")
			f.asks("jobs of pro that ended", endedOf, 30, "pro")
			for user, limit := range map[string]int{"free": 1, "pro": 3} {
				if got := f.ask(mostOf, user); got != limit {
					t.Errorf("at most %d jobs of %s ran at a time, want %d", got, user, limit)
				}
			}

			f.insert(1, "ann", time.Hour)
			f.asks("jobs of ann that began", begunOf, 1, "ann")
			f.insert(3, "ann", 0)
			pid := f.ask("SELECT pid FROM worked WHERE usr = 'ann'")
			for _, p := range f.workers {
				if p.Pid() == pid {
					p.Kill()
				}
			}
			f.asks("jobs of ann that ended", endedOf, 3, "ann")
		})
	}
}
