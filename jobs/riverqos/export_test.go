package riverqos

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// SweptEvery is the configuration with so much time from one sweep to the next.
func (c Config) SweptEvery(d time.Duration) Config {
	c.Runner.SweepInterval = d
	return c
}

// CountDepth is what the sweep does now and then.
func (f *Fairness) CountDepth(ctx context.Context) error { return f.sweeper.countDepth(ctx) }

// SweepOnce is what a sweep does, of whichever process.
func (f *Fairness) SweepOnce(ctx context.Context) error { return f.sweeper.sweepOnce(ctx) }

// Plans are those of the statements, if the table is not to be read from end to end.
func Plans(ctx context.Context, pool *pgxpool.Pool) (map[string]string, error) {
	plans := map[string]string{}
	names := tableNames("")
	for name, args := range map[string][]any{
		"promote":  {[]string{"ann"}, []string{"slow"}, []int32{1}, []int32{1}},
		"gated":    {"", "", 100},
		"strays":   {[]string{"ann"}, 1.0},
		"crowded":  {},
		"regate":   {"ann", "slow", 1, []int64{1}, 1.0},
		"postpone": {1.0, 1},
		"users":    {100, 100},
	} {
		err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, "SET LOCAL enable_seqscan = off; SET LOCAL enable_sort = off; SET LOCAL enable_bitmapscan = off"); err != nil {
				return err
			}
			// River's own indexes do not help either.
			if _, err := tx.Exec(ctx, "DROP INDEX river_job_prioritized_fetching_index, river_job_state_and_finalized_at_index"); err != nil {
				return err
			}
			rows, err := tx.Query(ctx, "EXPLAIN "+statement(names, name), args...)
			if err != nil {
				return err
			}
			lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
			plans[name] = strings.Join(lines, "\n")
			if err != nil {
				return err
			}
			return tx.Rollback(ctx)
		})
		if err != nil && err != pgx.ErrTxClosed {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return plans, nil
}

// SetOldestServer changes which servers Migrate takes, and returns what undoes that.
func SetOldestServer(version int) (undo func()) {
	before := oldestServer
	oldestServer = version
	return func() { oldestServer = before }
}

// RenewLeases is what a worker does three times in a lease.
func (f *Fairness) RenewLeases(ctx context.Context) bool { return f.runner.RenewLeases(ctx) }
