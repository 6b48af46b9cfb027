package riverqos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sluice-qos/sluice/pkg/jobs"
)

const (
	page       = 1000             // how many users are looked at together
	everyDepth = 10 * time.Second // time between two counts of all jobs
	everyStray = 10               // how many sweeps between two searches for jobs that the Slots forgot
)

// sweepLoop repairs what crashes and lost messages left behind. One worker at a time
// sweeps: it holds an advisory lock, in a transaction that the server ends if the worker
// falls silent.
func (f *Fairness) sweepLoop(ctx context.Context) {
	for ctx.Err() == nil {
		if err := f.lead(ctx); err != nil && ctx.Err() == nil {
			f.metrics.Sweeps.WithLabelValues("error").Inc()
			f.failed("sweep", "a sweep failed", err)
		}
		f.metrics.Depth.Reset() // the process that sweeps now has these series
		f.pause(ctx)
	}
}

// pause waits for about the time between two sweeps. It differs, so that workers that
// started together do not all ask for the lock at once.
func (f *Fairness) pause(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(f.cfg.Sweep - rand.N(f.cfg.Sweep/4+1)):
	}
}

const (
	// silence is how long the transaction that holds the lock may be silent. Its owner sends
	// a statement ten times as often, and gives up the lock if it gets no answer.
	silence = 10 * time.Second
	// parting bounds the rollback when the sweeps end. Without it the server ends the
	// transaction by itself.
	parting = time.Second
)

// lead sweeps for as long as it has the lock.
func (f *Fairness) lead(ctx context.Context) error {
	lock, err := f.lock(ctx)
	if err != nil || lock == nil {
		return err
	}
	defer unlock(lock)
	ctx, lose := context.WithCancelCause(ctx)
	var beating sync.WaitGroup
	defer beating.Wait()
	defer lose(nil)
	beating.Go(func() { lose(f.beat(ctx, lock)) })
	err = f.sweeps(ctx)
	if ctx.Err() != nil {
		return context.Cause(ctx) // why the lock was lost, rather than the sweep's "context canceled"
	}
	return err
}

// lock is a transaction that has the lock, or nil if another process has it.
func (f *Fairness) lock(ctx context.Context) (pgx.Tx, error) {
	ctx, cancel := f.db.bound(ctx)
	defer cancel()
	pool, err := f.db.own.get()
	if err != nil {
		return nil, err
	}
	// At this level a transaction that only waits keeps no row from being cleaned up.
	tx, err := pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return nil, err
	}
	var leads bool
	err = tx.QueryRow(ctx, "SELECT pg_try_advisory_xact_lock(hashtext('sluice:sweep:' || current_database()), hashtext($1::text)) "+
		"FROM set_config('idle_in_transaction_session_timeout', $2, true)", f.cfg.Schema, fmt.Sprint(f.silence.Milliseconds())).Scan(&leads)
	if err != nil || !leads {
		unlock(tx)
		return nil, err
	}
	return tx, nil
}

func unlock(tx pgx.Tx) {
	ctx, cancel := context.WithTimeout(context.Background(), parting)
	defer cancel()
	_ = tx.Rollback(ctx)
}

// beat keeps the lock until the context ends, however long a sweep takes. If it fails, it
// returns why, and another process may sweep.
func (f *Fairness) beat(ctx context.Context, lock pgx.Tx) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(f.silence / 10):
		}
		_, err := within(ctx, f.db.patience, func(ctx context.Context) (pgconn.CommandTag, error) { return lock.Exec(ctx, "SELECT 1") })
		if err != nil {
			return fmt.Errorf("keep the sweep's lock: %w", err)
		}
	}
}

// within calls a function with a context that ends after the limit.
func within[T any](ctx context.Context, limit time.Duration, call func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return call(ctx)
}

// sweeps go on until the context ends or one fails. Each statement has a time-out of its
// own, so that a sweep over many users does not fail for its length.
func (f *Fairness) sweeps(ctx context.Context) error {
	var counted, put, strayed time.Time
	for ctx.Err() == nil {
		if err := f.sweep(ctx); err != nil {
			return err
		}
		now := time.Now()
		if now.Sub(counted) >= everyDepth {
			if err := f.countDepth(ctx); err != nil {
				return err
			}
			counted = now
		}
		if now.Sub(strayed) >= everyStray*f.cfg.Sweep {
			if err := f.sweepStrays(ctx); err != nil {
				return err
			}
			strayed = now
		}
		if now.Sub(put) >= f.cfg.GateFor/20 {
			if err := f.putOff(ctx); err != nil {
				return err
			}
			put = now
		}
		f.metrics.Sweeps.WithLabelValues("done").Inc()
		f.pause(ctx)
	}
	return nil
}

// failing is for how many users in a row a sweep may fail before it ends. One failure may
// be about that user alone, so the sweep goes on with the others; so many in a row mean
// that PostgreSQL or Redis itself fails.
const failing = 3

// failures counts the users in a row for whom a sweep has failed.
type failures struct {
	*Fairness
	row int
}

// end takes the result of a user, and returns the error if the sweep has to end with it.
func (f *failures) end(ctx context.Context, err error) error {
	if err == nil {
		f.row = 0
		return nil
	}
	if f.row++; f.row >= failing || ctx.Err() != nil {
		return err
	}
	f.failed("sweep", "a sweep failed for a user", err)
	return nil
}

func (f *Fairness) sweep(ctx context.Context) error {
	if err := f.sweepWaiting(ctx); err != nil {
		return err
	}
	if f.cfg.Ungated {
		return nil
	}
	if err := f.sweepGated(ctx); err != nil {
		return err
	}
	return f.sweepCrowds(ctx)
}

// sweepWaiting hands out slots that nobody gave back, or that a raised limit made, and
// wakes all jobs for which slots are reserved.
func (f *Fairness) sweepWaiting(ctx context.Context) error {
	missed := failures{Fairness: f}
	for after := ""; ; {
		users, err := within(ctx, f.db.patience, func(ctx context.Context) ([]string, error) { return f.cfg.Slots.Waiting(ctx, after, page) })
		if err != nil {
			return fmt.Errorf("users who wait: %w", err)
		}
		asker := f.asker()
		for _, user := range users {
			reserved, err := f.handOut(ctx, user, asker.tier(ctx, user).Limits)
			if err := missed.end(ctx, err); err != nil {
				return err
			}
			// Not only the jobs that Hand returned: the worker that was to wake the others may
			// be dead.
			f.wake(ctx, reserved)
		}
		if len(users) < page {
			return nil
		}
		after = users[len(users)-1]
	}
}

// handOut gives out a user's free slots, and returns all jobs of the user for which slots
// are reserved.
func (f *Fairness) handOut(ctx context.Context, user string, l jobs.Limits) ([]jobs.Job, error) {
	ctx, cancel := f.db.bound(ctx)
	defer cancel()
	handed, err := f.cfg.Slots.Hand(ctx, user, l, f.cfg.Reserve)
	if err != nil {
		return nil, fmt.Errorf("hand slots out: %w", err)
	}
	f.metrics.Handed.Add(float64(len(handed)))
	return f.reserved(ctx, user)
}

func (f *Fairness) reserved(ctx context.Context, user string) ([]jobs.Job, error) {
	all, err := f.cfg.Slots.Reserved(ctx, user)
	if err != nil {
		return nil, fmt.Errorf("reserved jobs: %w", err)
	}
	return all, nil
}

// sweepGated lets gated jobs through where their users have room.
func (f *Fairness) sweepGated(ctx context.Context) error {
	for after := (flow{}); ; {
		flows, err := f.db.gated(ctx, after, page)
		if err != nil || len(flows) == 0 {
			return err
		}
		users := make([]string, len(flows))
		asker := f.asker()
		for i := range flows {
			flows[i].size = asker.tier(ctx, flows[i].user).Limits.Of(service(flows[i].queue))
			users[i] = flows[i].user
		}
		// First, or the jobs of dead workers would fill the flow until River rescues them.
		if err := f.loseDead(ctx, users); err != nil {
			return err
		}
		for n := most; n == most; {
			if n, _, err = f.let(ctx, flows); err != nil {
				return fmt.Errorf("let jobs through: %w", err)
			}
		}
		if len(flows) < page {
			return nil
		}
		after = flows[len(flows)-1]
	}
}

// loseDead marks jobs that say they run but have no slot: their workers are dead.
func (f *Fairness) loseDead(ctx context.Context, users []string) error {
	lease := f.cfg.Lease.Seconds()
	rows, err := f.db.stale(ctx, users, lease)
	if err != nil {
		return fmt.Errorf("jobs that run for long: %w", err)
	}
	dead, err := f.unknownTo(ctx, rows, func(u jobs.Usage) []jobs.Job { return of(u.Held) })
	if err != nil || len(dead) == 0 {
		return err
	}
	return f.db.lose(ctx, dead, lease)
}

// sweepStrays makes parked jobs available that are in no line any more, so that they try
// again. There are such jobs when the Slots have lost their memory, or when a reservation
// ended before River had written that the job was parked.
func (f *Fairness) sweepStrays(ctx context.Context) error {
	for after := (flow{}); ; {
		flows, err := f.db.gated(ctx, after, page)
		if err != nil || len(flows) == 0 {
			return err
		}
		users := make([]string, len(flows))
		for i := range flows {
			users[i] = flows[i].user
		}
		rows, err := f.db.strays(ctx, users, f.cfg.Reserve.Seconds())
		if err != nil {
			return fmt.Errorf("parked jobs: %w", err)
		}
		strays, err := f.unknownTo(ctx, rows, func(u jobs.Usage) []jobs.Job {
			return slices.Concat(of(u.Held), of(u.Reserved), u.Parked)
		})
		if err != nil {
			return err
		}
		results, err := f.db.wake(ctx, strays)
		if err != nil {
			return fmt.Errorf("wake jobs: %w", err)
		}
		for _, result := range results {
			f.metrics.Wakes.WithLabelValues(result.String()).Inc()
		}
		if len(flows) < page {
			return nil
		}
		after = flows[len(flows)-1]
	}
}

// unknownTo returns the ids of the rows that are not among the jobs that the Slots have of
// their users.
func (f *Fairness) unknownTo(ctx context.Context, rows []owned, among func(jobs.Usage) []jobs.Job) (ids []int64, err error) {
	known := map[string]map[string]bool{} // jobs by user
	for _, row := range rows {
		if known[row.user] == nil {
			usage, err := within(ctx, f.db.patience, func(ctx context.Context) (jobs.Usage, error) { return f.cfg.Slots.User(ctx, row.user) })
			if err != nil {
				return nil, fmt.Errorf("slots of a user: %w", err)
			}
			known[row.user] = map[string]bool{}
			for _, j := range among(usage) {
				known[row.user][j.ID] = true
			}
		}
		if !known[row.user][f.job(row.user, row.id, "").ID] {
			ids = append(ids, row.id)
		}
	}
	return ids, nil
}

func of(slots []jobs.Slot) (all []jobs.Job) {
	for _, s := range slots {
		all = append(all, s.Job)
	}
	return all
}

// sweepCrowds closes the gate behind jobs that did not come through it: jobs that were
// scheduled for the same moment, retries, and inserts of a program without the gate.
func (f *Fairness) sweepCrowds(ctx context.Context) error {
	ended, _ := f.unwritten.all()
	crowds, err := f.db.crowded(ctx, ended)
	if err != nil {
		return fmt.Errorf("crowded users: %w", err)
	}
	missed, asker := failures{Fairness: f}, f.asker()
	for _, c := range crowds {
		over := c.size - asker.tier(ctx, c.user).Limits.Of(service(c.queue))
		if over <= 0 {
			continue
		}
		if err := missed.end(ctx, f.regate(ctx, c, over)); err != nil {
			return err
		}
	}
	return nil
}

// regate closes the gate behind a crowd that is too large.
func (f *Fairness) regate(ctx context.Context, c flow, over int) error {
	reserved, err := within(ctx, f.db.patience, func(ctx context.Context) ([]jobs.Job, error) { return f.reserved(ctx, c.user) })
	if err != nil {
		return err
	}
	// A job that a slot is reserved for is about to run, and would come back late.
	var except []int64
	for _, j := range reserved {
		if id, ok := f.id(j); ok {
			except = append(except, id)
		}
	}
	for n := most; n == most && over > 0; over -= n {
		if n, err = f.db.regate(ctx, c, over, except, f.cfg.GateFor.Seconds()); err != nil {
			return fmt.Errorf("hold jobs back: %w", err)
		}
		f.metrics.Regated.Add(float64(n))
	}
	return nil
}

// putOff moves the time at which gated jobs become available by themselves. They would
// otherwise pass the gate then.
func (f *Fairness) putOff(ctx context.Context) error {
	for {
		n, err := f.db.putOff(ctx, f.cfg.GateFor.Seconds(), chunk)
		if err != nil || n < chunk {
			return err
		}
		if ctx.Err() != nil {
			return nil
		}
	}
}

func (f *Fairness) countDepth(ctx context.Context) error {
	all, err := f.db.depth(ctx)
	if err != nil {
		return fmt.Errorf("count jobs: %w", err)
	}
	f.metrics.Depth.Reset()
	for _, d := range all {
		f.metrics.Depth.WithLabelValues(d.queue, d.state).Set(float64(d.n))
	}
	return nil
}
