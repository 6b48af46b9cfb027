package riverqos

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	// lockTimeout is how long the transaction that holds the lock may be silent. Its owner
	// sends a statement ten times as often, and gives up the lock if it gets no answer.
	lockTimeout = 10 * time.Second
	lockBeats   = 10
)

// sweepLock is an advisory lock, in a transaction that the server ends if the process that
// sweeps falls silent.
type sweepLock struct {
	transaction   pgx.Tx
	timeout       time.Duration
	answerTimeout time.Duration
}

// lockSweeps takes the lock, or returns nil if another process has it.
func (s *store) lockSweeps(ctx context.Context, schema string, timeout time.Duration) (*sweepLock, error) {
	ctx, cancel := context.WithTimeout(ctx, s.answerTimeout)
	defer cancel()
	pool, err := s.connections.openPool()
	if err != nil {
		return nil, err
	}
	// At this level a transaction that only waits keeps no row from being cleaned up.
	transaction, err := pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return nil, err
	}
	lock := &sweepLock{transaction, timeout, s.answerTimeout}
	var leads bool
	err = transaction.QueryRow(ctx, "SELECT pg_try_advisory_xact_lock(hashtext('sluice:sweep:' || current_database()), hashtext($1::text)) "+
		"FROM set_config('idle_in_transaction_session_timeout', $2, true)", schema, fmt.Sprint(timeout.Milliseconds())).Scan(&leads)
	// The transaction would be idle, and the server would end it with an error in its log.
	if err != nil || !leads {
		lock.release()
		return nil, err
	}
	return lock, nil
}

// keepAlive keeps the lock until the context ends, however long a sweep takes. If it fails, it
// returns why, and another process may sweep.
func (l *sweepLock) keepAlive(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(l.timeout / lockBeats):
		}
		// Any statement will do: the server ends a transaction that is silent.
		_, err := within(ctx, l.answerTimeout, func(ctx context.Context) (pgconn.CommandTag, error) { return l.transaction.Exec(ctx, "SELECT 1") })
		if err != nil {
			return fmt.Errorf("keep the sweep's lock: %w", err)
		}
	}
}

// release lets another process sweep, which the server does as well if this fails.
func (l *sweepLock) release() {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	_ = l.transaction.Rollback(ctx)
}

// within calls a function with a context that ends after the limit.
func within[T any](ctx context.Context, limit time.Duration, call func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return call(ctx)
}
