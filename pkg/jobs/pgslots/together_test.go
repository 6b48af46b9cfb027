package pgslots_test

import (
	"context"
	"maps"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/pkg/jobs"
	"github.com/sluice-qos/sluice/pkg/jobs/pgslots"
)

// jobIn is a claim of a job in a queue.
func jobIn(user, id, queue string) jobs.Claim {
	c := job(user, id)
	c.Queue = queue
	return c
}

// granted is the verdict on a claim that got a slot.
func granted(running, inQueue int) jobs.Verdict {
	return jobs.Verdict{Granted: true, Running: running, InQueue: inQueue}
}

// Slots that are given back are free for claims of the same statement, and each verdict counts those before it.
func togetherAsAlone(t *testing.T, dsn string) {
	pool := open(t, dsn, 4)
	slots, schema := fresh(t, pool)
	ctx := context.Background()
	limits := jobs.Limits{Total: 3, Queues: map[string]int{"csv": 2}}
	for _, id := range []string{"held", "ends"} {
		if v, err := slots.Acquire(ctx, jobIn("ann", id, "csv"), limits, long, false); err != nil || !v.Granted {
			t.Fatalf("Acquire = %+v, %v", v, err)
		}
	}
	wrongHolder := jobIn("ann", "held", "csv")
	wrongHolder.Holder = "somebody else"
	made, err := pgslots.MakeTogether(ctx, pool, schema,
		pgslots.Take(jobIn("ann", "1", "csv"), limits, long), pgslots.Give(jobIn("ann", "ends", "csv")),
		pgslots.Take(jobIn("bob", "2", "sync"), limits, long), pgslots.Take(jobIn("ann", "3", "sync"), limits, long),
		pgslots.Give(jobIn("eve", "never had one", "csv")), pgslots.Give(wrongHolder))
	want := map[int]jobs.Verdict{0: granted(2, 2), 1: granted(0, 0), 2: granted(1, 1), 3: granted(3, 1), 4: granted(0, 0), 5: granted(0, 0)}
	if err != nil || !maps.Equal(made, want) {
		t.Errorf("together = %+v, %v, want %+v", made, err, want)
	}
	usage, err := slots.User(ctx, "ann")
	held := map[string]bool{}
	for _, slot := range usage.Held {
		held[slot.Queue+" "+slot.ID] = slot.Left > long/2 && slot.Holder != wrongHolder.Holder
	}
	if want := map[string]bool{"csv held": true, "csv 1": true, "sync 3": true}; err != nil || !maps.Equal(held, want) {
		t.Errorf("ann's slots are %v, %v, want %v", held, err, want)
	}
}

// Whoever may have to be parked, or hands a slot to somebody who is, is left to the calls for single users. So are all
// the claims of a user of which one does not fit: which of them comes first is not decided here.
func notTogether(t *testing.T, dsn string) {
	pool := open(t, dsn, 4)
	slots, schema := fresh(t, pool)
	ctx := context.Background()
	one, two := jobs.Limits{Total: 1}, jobs.Limits{Total: 2, Queues: map[string]int{"csv": 1}}
	hold := func(c jobs.Claim, lease time.Duration) {
		t.Helper()
		if v, err := slots.Acquire(ctx, c, two, lease, false); err != nil || !v.Granted {
			t.Fatalf("Acquire = %+v, %v", v, err)
		}
	}
	for _, user := range []string{"full", "queue full", "line", "again"} {
		hold(jobIn(user, "held", "csv"), long)
	}
	if v, err := slots.Acquire(ctx, jobIn("line", "parked", "csv"), two, long, true); err != nil || v.Place != 1 {
		t.Fatalf("Acquire = %+v, %v, want the first place in the line", v, err)
	}
	hold(jobIn("ended", "held", "csv"), time.Microsecond)
	later := jobIn("again", "held", "csv")
	later.Holder = "a later attempt"
	twice := jobIn("twice", "job", "csv")
	twice.Holder = "a later attempt"
	made, err := pgslots.MakeTogether(ctx, pool, schema,
		pgslots.Take(jobIn("full", "1", "csv"), one, long),
		pgslots.Take(jobIn("queue full", "1", "csv"), two, long), pgslots.Take(jobIn("queue full", "2", "sync"), two, long),
		pgslots.Take(jobIn("line", "1", "sync"), two, long), pgslots.Give(jobIn("line", "held", "csv")),
		pgslots.Take(jobIn("ended", "1", "sync"), two, long),
		pgslots.Take(later, two, long),
		pgslots.Take(jobIn("twice", "job", "csv"), two, long), pgslots.Take(twice, two, long))
	if err != nil || len(made) != 0 {
		t.Errorf("together made %+v, %v, want none", made, err)
	}
	// A statement of its own is cheaper for one.
	if made, err := pgslots.MakeTogether(ctx, pool, schema, pgslots.Take(job("alone", "1"), one, long)); err != nil || len(made) != 0 {
		t.Errorf("together made %+v, %v of a single call, want none", made, err)
	}
}

// Another program holds a user's lock, and the others' calls are made.
func togetherWaitsForNobody(t *testing.T, dsn string) {
	pool := open(t, dsn, 4)
	_, schema := fresh(t, pool)
	ctx := context.Background()
	other, err := pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Rollback(ctx) }()
	if _, err := other.Exec(ctx, in(schema, `SELECT @schema@.lock_users($1)`), []byte("locked")); err != nil {
		t.Fatal(err)
	}
	made, err := pgslots.MakeTogether(ctx, pool, schema, pgslots.Take(job("locked", "1"), total(1), long), pgslots.Give(job("locked", "2")),
		pgslots.Take(job("ann", "3"), total(1), long), pgslots.Give(job("bob", "4")))
	if want := map[int]jobs.Verdict{2: granted(1, 1), 3: granted(0, 0)}; err != nil || !maps.Equal(made, want) {
		t.Errorf("together = %+v, %v, want %+v", made, err, want)
	}
}
