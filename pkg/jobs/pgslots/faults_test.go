package pgslots_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/pkg/jobs"
	"github.com/sluice-qos/sluice/pkg/jobs/pgslots"
)

// noDeadlock renews many claims of many users, each time in another order and from
// many workers, while others acquire and release for the same users.
func noDeadlock(t *testing.T, dsn string) {
	pool := open(t, dsn, 8)
	slots, schema := fresh(t, pool)
	ctx := context.Background()
	const users = 30
	var claims []jobs.Claim
	for i := range 4 * users { // more than one batch
		c := job(fmt.Sprint("user", i%users), fmt.Sprint("held", i))
		if v, err := slots.Acquire(ctx, c, total(100), long, false); err != nil || !v.Granted {
			t.Fatalf("Acquire = %+v, %v", v, err)
		}
		claims = append(claims, c)
	}
	var all sync.WaitGroup
	for worker := range 16 {
		all.Go(func() {
			mine := append([]jobs.Claim{}, claims...)
			for range 6 {
				rand.Shuffle(len(mine), func(i, j int) { mine[i], mine[j] = mine[j], mine[i] })
				if lost, err := slots.Renew(ctx, mine, long); err != nil || len(lost) > 0 {
					t.Errorf("Renew = %v, %v, want none lost", lost, err)
					return
				}
			}
		})
		all.Go(func() { // and as only another program would: in no order
			var keys, ids, holders [][]byte
			for _, i := range rand.Perm(users) {
				keys, ids, holders = append(keys, []byte(claims[i].User)), append(ids, []byte(claims[i].ID)), append(holders, []byte(claims[i].Holder))
			}
			for range 10 {
				if _, err := pool.Exec(ctx, in(schema, `SELECT @schema@.renew($1, $2, $3, 3600000000)`), keys, ids, holders); err != nil {
					t.Errorf("renew = %v", err)
					return
				}
			}
		})
		all.Go(func() {
			for i := range 20 {
				c := job(fmt.Sprint("user", (worker+i)%users), fmt.Sprint(worker, "-", i))
				v, err := slots.Acquire(ctx, c, total(6), time.Millisecond, false)
				if err != nil {
					t.Errorf("Acquire = %+v, %v", v, err)
					return
				}
				if _, err := slots.Waiting(ctx, "", 10); err != nil {
					t.Errorf("Waiting = %v", err)
					return
				}
				if _, err := slots.Release(ctx, c, total(6), long); err != nil {
					t.Errorf("Release = %v", err)
					return
				}
			}
		})
	}
	all.Wait()
}

// renewEnded renews a lease that is over, and that nobody has come to free.
func renewEnded(t *testing.T, dsn string) {
	ctx := context.Background()
	slots, _ := fresh(t, open(t, dsn, 1))
	c := job("alice", "a")
	if v, err := slots.Acquire(ctx, c, total(1), time.Millisecond, true); err != nil || !v.Granted {
		t.Fatalf("Acquire = %+v, %v", v, err)
	}
	testkit.Eventually(t, "the lease ends", func() error { // User frees nothing
		if u, err := slots.User(ctx, "alice"); err != nil || len(u.Held) > 0 {
			return fmt.Errorf("User = %+v, %w", u, err)
		}
		return nil
	})
	if lost, err := slots.Renew(ctx, []jobs.Claim{c}, long); err != nil || len(lost) != 1 {
		t.Errorf("Renew = %v, %v, want it lost", lost, err)
	}
}

// cancelled ends the context of calls that wait for a user's lock: they return, do
// nothing, and leave neither a lock nor somebody who waits for one.
func cancelled(t *testing.T, dsn string) {
	pool, other := open(t, dsn, 4), open(t, dsn, 2)
	_, schema := fresh(t, other)
	slots := pgslots.New(pool, schema)
	ctx := context.Background()
	tx, err := other.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(ctx)
	if _, err := tx.Exec(ctx, in(schema, `SELECT @schema@.lock_users('alice')`)); err != nil {
		t.Fatal(err)
	}

	ending, end := context.WithCancel(ctx)
	var all sync.WaitGroup
	for i := range 12 { // some of them wait for a connection
		all.Go(func() {
			_, err := slots.Acquire(ending, job("alice", fmt.Sprint(i)), total(20), long, true)
			if !errors.Is(err, context.Canceled) {
				t.Errorf("Acquire = %v, want %v", err, context.Canceled)
			}
		})
	}
	waitForLocks(t, other, 4)
	end()
	all.Wait()
	waitForLocks(t, other, 0)
	if err := tx.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	if v, err := slots.Acquire(ctx, job("alice", "after"), total(20), long, true); err != nil || v != (jobs.Verdict{Granted: true, Running: 1, InQueue: 1}) {
		t.Errorf("Acquire = %+v, %v, want the first of all granted", v, err)
	}
}

// TestServerDies kills the server: calls fail while it is gone, and work when it is
// back, in the same pool. What had reached its log is still so.
func TestServerDies(t *testing.T) {
	ctx := context.Background()
	server := testkit.Postgres(t, "fsync=on")
	pool := open(t, server.DSN, 4)
	slots, _ := fresh(t, pool)
	held, parked := job("alice", "held"), job("alice", "parked")
	for _, c := range []jobs.Claim{held, parked} {
		if v, err := slots.Acquire(ctx, c, total(1), long, true); err != nil {
			t.Fatalf("Acquire(%q) = %+v, %v", c.ID, v, err)
		}
	}
	testkit.Eventually(t, "the log reaches the disk", func() error { // for which nothing waited
		if n := number(t, pool, `SELECT (pg_current_wal_insert_lsn() - pg_current_wal_flush_lsn())::int`); n != 0 {
			return fmt.Errorf("it is %d bytes behind", n)
		}
		return nil
	})
	server.Kill()
	if _, err := slots.Renew(ctx, []jobs.Claim{held}, long); err == nil {
		t.Error("Renew without a server = nil, want an error")
	}
	if v, err := slots.Acquire(ctx, job("bob", "1"), total(1), long, true); err == nil || v != (jobs.Verdict{}) {
		t.Errorf("Acquire without a server = %+v, %v, want an error", v, err)
	}

	if err := server.Run("fsync=on"); err != nil {
		t.Fatal(err)
	}
	var lost []jobs.Claim
	testkit.Eventually(t, "renew after the server is back", func() (err error) {
		lost, err = slots.Renew(ctx, []jobs.Claim{held, parked}, long)
		return err
	})
	if len(lost) != 1 || lost[0] != parked {
		t.Errorf("Renew = %v lost, want %v", lost, parked)
	}
	reserved, err := slots.Release(ctx, held, total(1), long)
	if err != nil || len(reserved) != 1 || reserved[0] != parked.Job {
		t.Errorf("Release = %v, %v, want %v to have a reservation", reserved, err, parked.Job)
	}
}
