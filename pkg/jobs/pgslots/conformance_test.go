package pgslots_test

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/pkg/jobs"
	"github.com/sluice-qos/sluice/pkg/jobs/slotstest"
)

func conformance(t *testing.T, dsn string) {
	pool := open(t, dsn, 8) // far fewer connections than the suite has workers
	slotstest.Run(t, func(t *testing.T) slotstest.Backend {
		slots, _ := fresh(t, pool)
		return slotstest.Backend{Slots: slots}
	})
}

// throughPgBouncer has fewer connections to the server than the pool has to PgBouncer.
func throughPgBouncer(t *testing.T, dsn string) { conformance(t, testkit.PgBouncer(t, dsn)) }

// needsNoSession calls every method in a session that has just forgotten everything,
// as it may be in PgBouncer's transaction mode, in every mode of pgx that allows it and
// at every isolation level.
func needsNoSession(t *testing.T, dsn string) {
	modes := []pgx.QueryExecMode{pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol}
	for _, mode := range modes {
		for _, isolation := range []string{"read committed", "repeatable read", "serializable"} {
			t.Run(mode.String()+" "+isolation, func(t *testing.T) {
				pool := openWith(t, dsn, 2, func(c *pgxpool.Config) {
					c.ConnConfig.DefaultQueryExecMode = mode
					c.ConnConfig.RuntimeParams["default_transaction_isolation"] = isolation
					c.AfterRelease = func(conn *pgx.Conn) bool {
						_, err := conn.PgConn().Exec(context.Background(), "DISCARD ALL").ReadAll()
						return err == nil
					}
				})
				slots, _ := fresh(t, pool)
				callEverything(t, slots)
			})
		}
	}
}

func callEverything(t *testing.T, slots jobs.Slots) {
	t.Helper()
	ctx := context.Background()
	a, b, c := job("alice", "a"), job("alice", "b"), job("alice", "c")
	limits := jobs.Limits{Total: 3, Queues: map[string]int{"q": 1, "r": 2}}
	type answer struct {
		What string
		Got  any
		Err  error
	}
	var got []answer
	note := func(what string, v any, err error) { got = append(got, answer{what, v, err}) }
	acquire := func(c jobs.Claim) {
		v, err := slots.Acquire(ctx, c, limits, long, true)
		note("acquire "+c.ID, v, err)
	}
	acquire(a)
	acquire(b)
	acquire(c)
	lost, err := slots.Renew(ctx, []jobs.Claim{b, a}, long)
	note("renew", lost, err)
	reserved, err := slots.Release(ctx, a, limits, long)
	note("release", reserved, err)
	reserved, err = slots.ReserveFree(ctx, "alice", limits, long)
	note("reserve free", reserved, err)
	waiting, err := slots.Waiting(ctx, "", 10)
	note("waiting", waiting, err)
	note("forget", nil, slots.Forget(ctx, b.Job))
	taken, err := slots.Taken(ctx, []string{"alice"})
	note("taken", len(taken), err)
	usage, err := slots.User(ctx, "alice")
	note("user", usage, err)
	want := []answer{
		{"acquire a", jobs.Verdict{Granted: true, Running: 1, InQueue: 1}, nil},
		{"acquire b", jobs.Verdict{Running: 1, InQueue: 1, Place: 1}, nil},
		{"acquire c", jobs.Verdict{Running: 1, InQueue: 1, Place: 2}, nil},
		{"renew", []jobs.Claim{b}, nil},
		{"release", []jobs.Job{b.Job}, nil},
		{"reserve free", []jobs.Job(nil), nil},
		{"waiting", []string{"alice"}, nil},
		{"forget", nil, nil},
		{"taken", 0, nil},
		{"user", jobs.Usage{Parked: []jobs.Job{c.Job}}, nil},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("answers (-want +got):\n%s", diff)
	}
}
