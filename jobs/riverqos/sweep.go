package riverqos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sluice-qos/sluice/pkg/jobs"
)

const (
	page       = 1000             // users at a time
	everyDepth = 10 * time.Second // between two counts of all jobs
	everyStray = 10               // sweeps between two searches for jobs that the Slots forgot
)

// sweepLoop repairs what crashes and lost messages left. Of all workers one sweeps at a
// time: it holds an advisory lock, in a transaction that the server ends if its owner
// falls silent.
func (f *Fairness) sweepLoop(ctx context.Context) {
	for ctx.Err() == nil {
		if err := f.lead(ctx); err != nil && ctx.Err() == nil {
			f.metrics.Sweeps.WithLabelValues("error").Inc()
			f.failed("sweep", "a sweep failed", err)
		}
		f.metrics.Depth.Reset() // the one who sweeps counts
		f.pause(ctx)
	}
}

// pause waits for about the time between two sweeps.
func (f *Fairness) pause(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(f.cfg.Sweep - rand.N(f.cfg.Sweep/4+1)):
	}
}

// silence is how long the transaction that holds the lock may be silent, at least.
const silence = 10 * time.Second

// lead sweeps for as long as it has the lock.
func (f *Fairness) lead(ctx context.Context) error {
	// At this level a transaction that only waits keeps no row from being cleaned up.
	tx, err := f.cfg.Pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	var leads bool
	err = tx.QueryRow(ctx, "SELECT pg_try_advisory_xact_lock(hashtext('sluice:sweep:' || current_database()), hashtext($1::text)) "+
		"FROM set_config('idle_in_transaction_session_timeout', $2, true)", f.cfg.Schema, fmt.Sprint(max(silence, 10*f.cfg.Sweep).Milliseconds())).Scan(&leads)
	if err != nil || !leads {
		return err
	}
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
		if err := beat(ctx, tx); err != nil {
			return err
		}
	}
	return nil
}

// beat keeps the lock.
func beat(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, "SELECT 1")
	return err
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
	for after := ""; ; {
		users, err := f.cfg.Slots.Waiting(ctx, after, page)
		if err != nil {
			return fmt.Errorf("users who wait: %w", err)
		}
		for _, user := range users {
			handed, err := f.cfg.Slots.Hand(ctx, user, f.tier(ctx, user).Limits, f.cfg.Reserve)
			if err != nil {
				return fmt.Errorf("hand slots out: %w", err)
			}
			f.metrics.Handed.Add(float64(len(handed)))
			reserved, err := f.cfg.Slots.Reserved(ctx, user)
			if err != nil {
				return fmt.Errorf("reserved jobs: %w", err)
			}
			f.wake(ctx, reserved)
		}
		if len(users) < page {
			return nil
		}
		after = users[len(users)-1]
	}
}

// sweepGated lets jobs of users through who have room.
func (f *Fairness) sweepGated(ctx context.Context) error {
	for after := (flow{}); ; {
		flows, err := f.db.gated(ctx, after, page)
		if err != nil || len(flows) == 0 {
			return err
		}
		users := make([]string, len(flows))
		for i := range flows {
			flows[i].size = f.tier(ctx, flows[i].user).Limits.Of(service(flows[i].queue))
			users[i] = flows[i].user
		}
		if err := f.loseDead(ctx, users); err != nil {
			return err
		}
		n, err := f.db.promote(ctx, flows, 0)
		if err != nil {
			return fmt.Errorf("let jobs through: %w", err)
		}
		f.metrics.Promoted.Add(float64(n))
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

// sweepStrays makes parked jobs available that are in nobody's line any more, so that
// they try again: the Slots lost their memory, or a reservation ended before River had
// written that the job was parked.
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

// unknownTo are those of the rows that are not among what the Slots have of their users.
func (f *Fairness) unknownTo(ctx context.Context, rows []owned, among func(jobs.Usage) []jobs.Job) (ids []int64, err error) {
	known := map[string]map[string]bool{} // jobs by user
	for _, row := range rows {
		if known[row.user] == nil {
			usage, err := f.cfg.Slots.User(ctx, row.user)
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

// sweepCrowds closes the gate behind jobs that did not come through it: those that were
// scheduled for the same moment, retries, inserts of a program without the middleware's
// gate.
func (f *Fairness) sweepCrowds(ctx context.Context) error {
	crowds, err := f.db.crowded(ctx)
	if err != nil {
		return fmt.Errorf("crowded users: %w", err)
	}
	for _, c := range crowds {
		over := c.size - f.tier(ctx, c.user).Limits.Of(service(c.queue))
		if over <= 0 {
			continue
		}
		reserved, err := f.cfg.Slots.Reserved(ctx, c.user)
		if err != nil {
			return fmt.Errorf("reserved jobs: %w", err)
		}
		var except []int64
		for _, j := range reserved {
			if id, ok := f.id(j); ok {
				except = append(except, id)
			}
		}
		n, err := f.db.regate(ctx, c, over, except, f.cfg.GateFor.Seconds())
		if err != nil {
			return fmt.Errorf("hold jobs back: %w", err)
		}
		f.metrics.Regated.Add(float64(n))
	}
	return nil
}

// putOff keeps gated jobs from becoming available by themselves.
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
