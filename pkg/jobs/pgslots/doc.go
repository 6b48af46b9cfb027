// Package pgslots keeps jobs.Slots in PostgreSQL 15 or later (tested to 18): they survive
// all workers, and a job queue in the same database needs no other server.
//
// It is two tables, of the slots that are not free and of the lines of parked jobs, and a
// function for each method: a call is one statement and one round trip, leaves nothing
// behind in its session, and so works through PgBouncer in transaction mode. (Before
// PgBouncer 1.21 that needs pgx.QueryExecModeExec or another mode without prepared
// statements, as any use of pgx does.) Time is the server's.
//
// # Why it never admits too many
//
// A function takes the user's advisory lock and counts in a new statement. Both are
// needed. Without the lock, two transactions count before either has inserted. With the
// lock in the statement that counts, the statement's snapshot is older than its lock, and
// does not show what the one before it in the lock has done. So it is in a transaction
// that is not READ COMMITTED, whose only snapshot is its first statement's: the functions
// refuse to run in one, and the calls then begin transactions of their own, still in one
// round trip. overadmit_test.go shows all of this.
//
// One conditional INSERT … ON CONFLICT DO UPDATE … WHERE on a row per user, with the slots
// in arrays, is right as well, and was measured to be a tenth faster for the smallest
// limits (10 700 to 11 700 pairs/s against 9 900 to 10 900, prototypes of both in pgbench).
// But it writes all of a user's slots at each change, and the line needs a lock anyway.
//
// # Calls that share a statement
//
// A statement and a transaction for each call would cost several times what the jobs do that come and go
// fastest. So the calls of one process that come up at the same time go together (pkg/internal/gather), as far as they
// need nothing but a free slot: the function together takes only locks that nobody has, and makes no call of a user
// who has a line or whose claims do not all fit. What it has not made is called one by one, so that nobody waits for another
// user's lock.
//
// # What a crash of the server loses
//
// Transactions do not wait for the disk: synchronous_commit is off in them, whatever it is
// elsewhere. A crash of the server, not of a worker, loses those of the last moments, at
// most three times wal_writer_delay, which is 0.6 s as it comes. Nothing is torn: what is
// lost is the end of a history. A slot that was taken in it may be given to another job
// until its holder renews, is told that it is lost, and ends; a slot that was given back
// is free when its lease is over; a job that was parked is not in the line and comes back
// by itself.
//
// # What it costs
//
// 11 000 pairs of Acquire and Release a second with 200 users, 64 goroutines and 8
// connections, p99 10 ms, with the server on the same two cores and fsync on
// (BenchmarkPairs). With 32 connections it was half of that: a small pool is best.
//
// A user who has nothing has no row. A slot that is taken and given back leaves a dead row
// for autovacuum, which is set to come often; a renewal is written in place (HOT). As with
// any queue in PostgreSQL, a transaction that stays open for long anywhere in the database
// keeps dead rows from being removed: with one, a full load of pgbench fell from 9 200 to
// 3 500 pairs/s in 12 s, and was itself again when it ended.
//
// A parked job that comes again is told its place, for which those before it are counted:
// some 3 ms for the last of 10 000.
package pgslots
