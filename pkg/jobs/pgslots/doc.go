// Package pgslots keeps jobs.Slots in PostgreSQL 15 or later (tested to 18): they survive
// all workers, and a job queue in the same database needs no other server.
//
// It is two tables, of the slots that are not free and of the lines of parked jobs, and a
// function for each method: a call is one statement and one round trip, leaves nothing
// behind in its session, and so works through PgBouncer in transaction mode. Time is the server's.
//
// # Why it never admits too many
//
// A function takes the user's advisory lock and counts in a new statement. Both are
// needed. Without the lock, two transactions count before either has inserted. With the
// lock in the statement that counts, the statement's snapshot is older than its lock, and
// does not show what the transaction before it in the lock has done. The same holds in a transaction
// that is not READ COMMITTED, whose only snapshot is its first statement's: the functions
// refuse to run in one, and the calls then begin transactions of their own, still in one
// round trip. overadmit_test.go shows all of this.
//
// # Costs
//
// Calls of one process that come up at the same time share a statement (pkg/internal/gather), as far as they need
// nothing but a free slot and no lock that another call has. Calls that the function together has not made are made one by one.
//
// Transactions do not wait for the disk (synchronous_commit is off): a crash of the server loses those of the last 0.6 s
// (three times wal_writer_delay), and the leases make that good. A slot that is taken and given back leaves a dead row for
// autovacuum; a renewal is written in place (HOT). A transaction that stays open for long anywhere in the database keeps
// dead rows from being removed, and a full load fell from 9 200 to 3 500 pairs/s in 12 s.
package pgslots
