package pgslots

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sluice-qos/sluice/pkg/internal/gather"
	"github.com/sluice-qos/sluice/pkg/jobs"
)

// DefaultSchema is that of the tables and functions if none is named.
const DefaultSchema = "sluice"

const (
	// renewAtOnce bounds the claims of one transaction, each of which may need a lock.
	// The server has room for 64 of each connection (max_locks_per_transaction).
	renewAtOnce = 50
	// sweepAtOnce bounds the users that Waiting cleans up after, for the same reason.
	sweepAtOnce = 50
	// notReadCommitted is the SQLSTATE of the functions' refusal.
	notReadCommitted = "SL001"
)

type slots struct {
	pool  *pgxpool.Pool
	begin atomic.Bool // calls have to begin transactions: the pool's are not read committed

	simple *gather.Calls[simpleCall, simpleReply] // that share statements

	acquire, release, together, renew, forget, sweep, waiting, user, taken string
}

// New returns the slots in a schema on which Migrate has been called; "" is DefaultSchema.
// They are safe for concurrent use; a call uses one connection of the pool, which the
// caller closes.
func New(pool *pgxpool.Pool, schema string) jobs.Slots { return jobs.Checked(newSlots(pool, schema)) }

func newSlots(pool *pgxpool.Pool, schema string) *slots {
	if schema == "" {
		schema = DefaultSchema
	}
	in := func(query string) string { return strings.ReplaceAll(query, "@schema@", quotedName(schema)) }
	// Types are named because not all of pgx's modes ask the server for them.
	s := &slots{
		pool: pool,
		acquire: in(`SELECT granted, running, in_queue, place FROM @schema@.acquire(
			$1::bytea, $2::bytea, $3::bytea, $4::bytea, $5::int4, $6::int4, $7::bytea[], $8::int4[], $9::int8, $10::bool, $11::int4)`),
		together: in(`SELECT made, running, in_queue FROM @schema@.together(
			$1::bytea[], $2::bytea[], $3::bytea[], $4::bytea[], $5::bool[], $6::int4[], $7::int4[], $8::int8[])`),
		renew: in(`SELECT lost FROM @schema@.renew($1::bytea[], $2::bytea[], $3::bytea[], $4::int8) AS lost`),
		release: in(`SELECT handed, handed_queue FROM @schema@.release(
			$1::bytea, $2::bytea, $3::bytea, $4::int4, $5::int4, $6::bytea[], $7::int4[], $8::int8)`),
		forget:  in(`SELECT FROM @schema@.forget($1::bytea, $2::bytea)`),
		sweep:   in(`SELECT FROM @schema@.sweep($1::int4)`),
		waiting: in(`SELECT key FROM @schema@.waiting($1::bytea, $2::int4) AS key`),
		user: in(`SELECT job, queue, holder, left_us FROM (
				SELECT job, queue, holder, (extract(epoch FROM until - clock_timestamp()) * 1e6)::int8 AS left_us,
					CASE WHEN holder IS NULL THEN 2 ELSE 1 END AS kind, CASE WHEN holder IS NULL THEN since END AS since, place
				FROM @schema@.slots WHERE key = $1::bytea
				UNION ALL
				SELECT job, queue, NULL, NULL, 3, NULL, place FROM @schema@.line WHERE key = $1::bytea
			) AS u WHERE kind = 3 OR left_us > 0
			ORDER BY kind, since, CASE WHEN kind = 1 THEN job END, place`),
		taken: in(`SELECT key, job, queue, holder, left_us FROM (
				SELECT key, job, queue, holder, (extract(epoch FROM until - clock_timestamp()) * 1e6)::int8 AS left_us
				FROM @schema@.slots WHERE key = ANY($1::bytea[])
			) AS s WHERE left_us > 0`),
	}
	s.simple = gather.New(s.makeTogether)
	return s
}

func (s *slots) Acquire(ctx context.Context, c jobs.Claim, l jobs.Limits, lease time.Duration, park bool) (jobs.Verdict, error) {
	simple, err := s.simple.Do(ctx, simpleCall{claim: c, take: true, limits: l, lease: micros(lease)})
	if err != nil || simple.made {
		return simple.verdict, err
	}
	var v jobs.Verdict
	// Names are bytea: text has no zero byte, and only valid UTF-8.
	queues, limits := arrays(l)
	err = s.queryEach(ctx, []any{&v.Granted, &v.Running, &v.InQueue, &v.Place}, func() {}, s.acquire,
		[]byte(c.User), []byte(c.ID), []byte(c.Queue), []byte(c.Holder), toInt4(l.Total), toInt4(l.OfOthers()), queues, limits, micros(lease), park, jobs.MaxParked)
	return v, err
}

// Renew is a transaction for each 50 claims: if it fails, some may have been renewed.
func (s *slots) Renew(ctx context.Context, claims []jobs.Claim, lease time.Duration) (lost []jobs.Claim, err error) {
	// Claims of one user are renewed together, which takes the user's lock only once.
	claims = slices.SortedStableFunc(slices.Values(claims), func(a, b jobs.Claim) int { return strings.Compare(a.User, b.User) })
	var number int // of a lost claim in its batch, from 1
	for batch := range slices.Chunk(claims, renewAtOnce) {
		var users, ids, holders [][]byte
		for _, c := range batch {
			users, ids, holders = append(users, []byte(c.User)), append(ids, []byte(c.ID)), append(holders, []byte(c.Holder))
		}
		err := s.queryEach(ctx, []any{&number}, func() { lost = append(lost, batch[number-1]) }, s.renew, users, ids, holders, micros(lease))
		if err != nil {
			// Those of the batches before are renewed, and may be renewed once more.
			return nil, err
		}
	}
	return lost, nil
}

func (s *slots) Release(ctx context.Context, c jobs.Claim, l jobs.Limits, reserve time.Duration) ([]jobs.Job, error) {
	simple, err := s.simple.Do(ctx, simpleCall{claim: c})
	if err != nil || simple.made {
		return nil, err
	}
	return s.releaseAndReserve(ctx, c.User, []byte(c.ID), []byte(c.Holder), l, reserve)
}

func (s *slots) ReserveFree(ctx context.Context, user string, l jobs.Limits, reserve time.Duration) ([]jobs.Job, error) {
	return s.releaseAndReserve(ctx, user, nil, nil, l, reserve)
}

// releaseAndReserve reserves free slots, and before that releases one if job and holder
// are not nil.
func (s *slots) releaseAndReserve(ctx context.Context, user string, job, holder []byte, l jobs.Limits, reserve time.Duration) ([]jobs.Job, error) {
	queues, limits := arrays(l)
	return s.queryJobs(ctx, user, s.release, []byte(user), job, holder, toInt4(l.Total), toInt4(l.OfOthers()), queues, limits, micros(reserve))
}

func (s *slots) Forget(ctx context.Context, j jobs.Job) error {
	return s.queryEach(ctx, nil, func() {}, s.forget, []byte(j.User), []byte(j.ID))
}

// Waiting, asked for the first users, also deletes slots whose lease or reservation is
// over, of up to 50 users: the workers that died did not.
func (s *slots) Waiting(ctx context.Context, after string, n int) (users []string, err error) {
	// Once for each sweep through all pages.
	if after == "" {
		if err := s.queryEach(ctx, nil, func() {}, s.sweep, sweepAtOnce); err != nil {
			return nil, fmt.Errorf("delete ended slots: %w", err)
		}
	}
	var user []byte
	err = s.queryEach(ctx, []any{&user}, func() { users = append(users, string(user)) }, s.waiting, []byte(after), toInt4(n))
	return users, err
}

func (s *slots) User(ctx context.Context, user string) (u jobs.Usage, err error) {
	var id, queue, holder []byte
	// In µs. A parked job has none.
	var left *int64
	err = s.queryEach(ctx, []any{&id, &queue, &holder, &left}, func() {
		job := jobs.Job{User: user, ID: string(id), Queue: string(queue)}
		switch {
		// Only slots have a lease or a reservation, of which something is left.
		case left == nil:
			u.Parked = append(u.Parked, job)
		case holder == nil:
			u.Reserved = append(u.Reserved, jobs.Slot{Job: job, Left: time.Duration(*left) * time.Microsecond})
		default:
			u.Held = append(u.Held, jobs.Slot{Job: job, Holder: string(holder), Left: time.Duration(*left) * time.Microsecond})
		}
	}, s.user, []byte(user))
	return u, err
}

func (s *slots) Taken(ctx context.Context, users []string) (all []jobs.Slot, err error) {
	keys := make([][]byte, len(users))
	for i, user := range users {
		keys[i] = []byte(user)
	}
	var user, id, queue, holder []byte
	var left int64 // in µs
	err = s.queryEach(ctx, []any{&user, &id, &queue, &holder, &left}, func() {
		job := jobs.Job{User: string(user), ID: string(id), Queue: string(queue)}
		// A reserved slot has no holder, which is NULL.
		all = append(all, jobs.Slot{Job: job, Holder: string(holder), Left: time.Duration(left) * time.Microsecond})
	}, s.taken, keys)
	return all, err
}

func (s *slots) queryJobs(ctx context.Context, user, sql string, args ...any) (list []jobs.Job, err error) {
	var id, queue []byte
	err = s.queryEach(ctx, []any{&id, &queue}, func() {
		list = append(list, jobs.Job{User: user, ID: string(id), Queue: string(queue)})
	}, sql, args...)
	return list, err
}

// queryEach runs one statement in a read committed transaction. It reads each row into the
// columns and then calls row.
func (s *slots) queryEach(ctx context.Context, columns []any, row func(), sql string, args ...any) error {
	readRows := func(rows pgx.Rows) error {
		_, err := pgx.ForEachRow(rows, columns, func() error { row(); return nil })
		return err
	}
	// A statement alone is a transaction, and read committed unless somebody has set otherwise. Always to send
	// the batch below was measured to cost a quarter of the pairs.
	if !s.begin.Load() {
		rows, err := s.pool.Query(ctx, sql, args...)
		if err == nil {
			err = readRows(rows)
		}
		var pg *pgconn.PgError
		if !errors.As(err, &pg) || pg.Code != notReadCommitted {
			return err
		}
		// The function has refused before it did anything, so it can be called again. The pool's setting does
		// not change, and each call would be refused first.
		s.begin.Store(true)
	}
	// A batch is one round trip, as the statement alone is.
	var b pgx.Batch
	b.Queue("BEGIN ISOLATION LEVEL READ COMMITTED")
	b.Queue(sql, args...).Query(readRows)
	b.Queue("COMMIT")
	return s.pool.SendBatch(ctx, &b).Close()
}

// arrays are the queues that have limits, and these.
func arrays(l jobs.Limits) (queues [][]byte, limits []int32) {
	// Empty arrays and not nil ones, which are NULL.
	queues, limits = [][]byte{}, []int32{}
	for queue := range l.Queues {
		queues = append(queues, []byte(queue))
		// No more than the total, so that the function compares each with one number.
		limits = append(limits, toInt4(l.Of(queue)))
	}
	return queues, limits
}

func toInt4(n int) int32 { return int32(min(n, math.MaxInt32)) }

// micros is a duration in PostgreSQL's unit of time, at least one.
func micros(d time.Duration) int64 { return max(1, d.Microseconds()) }
