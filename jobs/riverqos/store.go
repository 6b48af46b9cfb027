package riverqos

import (
	"context"
	_ "embed"
	"math"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// answering bounds how long a statement, or a call of the Slots that a sweep makes, may
// take. A server that is silent, or a connection that nobody told of its end, would hold
// up a loop for ever otherwise.
const answering = 5 * time.Second

// store is River's table of jobs. All statements are here and in sql/.
type store struct {
	pool     *pgxpool.Pool
	own      *own
	schema   string
	patience time.Duration // answering
	queries
}

// bound ends a statement in time.
func (s store) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, s.patience)
}

// boundAll is for statements that read all jobs that have not finished.
func (s store) boundAll(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, 6*s.patience)
}

// queries are those of sql/, of one schema.
type queries struct {
	wakeSQL, promoteSQL, countSQL, gatedSQL, staleSQL, straysSQL, loseSQL, crowdSQL, regateSQL, putOffSQL, ungateSQL, depthSQL, whySQL, aheadSQL, announceSQL string
}

var (
	//go:embed sql/wake.sql
	wakeSQL string
	//go:embed sql/promote.sql
	promoteSQL string
	//go:embed sql/count.sql
	countSQL string
	//go:embed sql/gated.sql
	gatedSQL string
	//go:embed sql/stale.sql
	staleSQL string
	//go:embed sql/strays.sql
	straysSQL string
	//go:embed sql/lose.sql
	loseSQL string
	//go:embed sql/crowd.sql
	crowdSQL string
	//go:embed sql/regate.sql
	regateSQL string
	//go:embed sql/put_off.sql
	putOffSQL string
	//go:embed sql/ungate.sql
	ungateSQL string
	//go:embed sql/depth.sql
	depthSQL string
	//go:embed sql/why.sql
	whySQL string
	//go:embed sql/ahead.sql
	aheadSQL string
	//go:embed sql/announce.sql
	announceSQL string
)

func newStore(pool *pgxpool.Pool, schema string) store {
	in := func(sql string) string { return replaceNames(sql, schema) }
	return store{pool, newOwn(pool), schema, answering, queries{
		in(wakeSQL), in(promoteSQL), in(countSQL), in(gatedSQL), in(staleSQL), in(straysSQL), in(loseSQL), in(crowdSQL), in(regateSQL),
		in(putOffSQL), in(ungateSQL), in(depthSQL), in(whySQL), in(aheadSQL), in(announceSQL),
	}}
}

// replaceNames puts the table and River's channel into a statement.
func replaceNames(sql, schema string) string {
	table, in := "river_job", "current_schema()"
	if schema != "" {
		table = pgx.Identifier{schema, "river_job"}.Sanitize()
		in = "'" + strings.ReplaceAll(schema, "'", "''") + "'"
	}
	return strings.NewReplacer("@table@", table, "@channel@", "concat("+in+", '.river_insert')").Replace(sql)
}

// woken is what became of a try to wake a job.
type woken int

const (
	gone  woken = iota // it will not come: it has finished, is deleted, or waits by its own will
	early              // River has not yet written that it is parked, or a transaction that is open has locked it
	awake              // it is available already
	done               // it was made available
)

func (w woken) String() string { return [...]string{"gone", "early", "awake", "done"}[w] }

// wake makes those of the jobs available that are parked or gated.
func (s store) wake(ctx context.Context, ids []int64) (map[int64]woken, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	ctx, cancel := s.bound(ctx)
	defer cancel()
	rows, err := s.pool.Query(ctx, s.wakeSQL, ids)
	if err != nil {
		return nil, err
	}
	found := make(map[int64]woken, len(ids))
	var id int64
	var state string
	var waits, made bool
	_, err = pgx.ForEachRow(rows, []any{&id, &state, &waits, &made}, func() error {
		switch {
		case made:
			found[id] = done
		case state == "running", waits: // by now, or still: it is locked
			found[id] = early
		case state == "available":
			found[id] = awake
		default:
			found[id] = gone
		}
		return nil
	})
	return found, err
}

// flow is how many of a user's jobs may be available or running at a time in one of
// River's queues.
type flow struct {
	user, queue string
	size        int
}

func columns(all []flow) (users, queues []string, sizes []int32) {
	for _, f := range all {
		users, queues, sizes = append(users, f.user), append(queues, f.queue), append(sizes, int32(min(f.size, math.MaxInt32))) //nolint:gosec // it fits
	}
	return users, queues, sizes
}

// most is how many jobs one promote or regate changes, so that it ends in time.
const most = 5000

// promote lets gated jobs through where there is room, and returns how many: with most
// there may be more. Some attempts have ended though their rows may still say that they
// run; those are left, by the ids of the jobs, whose rows could not be marked.
func (s store) promote(ctx context.Context, all []flow, ended []attempt) (n int, left []int64, err error) {
	ctx, cancel := s.bound(ctx)
	defer cancel()
	users, queues, sizes := columns(all)
	ids, times := attempts(ended)
	err = s.pool.QueryRow(ctx, s.promoteSQL, users, queues, sizes, ids, times).Scan(&n, &left)
	return n, left, err
}

func attempts(all []attempt) (ids []int64, times []time.Time) {
	ids, times = make([]int64, len(all)), make([]time.Time, len(all)) // not nil, which is NULL
	for i, a := range all {
		ids[i], times[i] = a.id, a.at
	}
	return ids, times
}

func (s store) announce(ctx context.Context, queues []string) error {
	ctx, cancel := s.bound(ctx)
	defer cancel()
	_, err := s.pool.Exec(ctx, s.announceSQL, queues)
	return err
}

// crowd is what is before a new job of a user in a queue.
type crowd struct {
	n     int  // available, running and parked jobs
	gated bool // there are gated ones
}

// count is the crowd of each, and which of the ids are of jobs that can be seen. The
// context ends in time.
func (s store) count(ctx context.Context, all []flow, ids []int64) (crowds []crowd, seen []int64, err error) {
	select {
	case s.own.seat <- struct{}{}:
		defer func() { <-s.own.seat }()
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	}
	pool, err := s.own.get()
	if err != nil {
		return nil, nil, err
	}
	users, queues, _ := columns(all)
	rows, err := pool.Query(ctx, s.countSQL, users, queues, ids)
	if err != nil {
		return nil, nil, err
	}
	crowds = make([]crowd, len(all))
	var ord, n int
	var gated bool
	var some []int64
	_, err = pgx.ForEachRow(rows, []any{&ord, &n, &gated, &some}, func() error {
		if ord == 0 {
			seen = some
		} else {
			crowds[ord-1] = crowd{n, gated}
		}
		return nil
	})
	return crowds, seen, err
}

// gated are up to n users and queues that have gated or parked jobs, after one.
func (s store) gated(ctx context.Context, after flow, n int) ([]flow, error) {
	ctx, cancel := s.bound(ctx)
	defer cancel()
	rows, err := s.pool.Query(ctx, s.gatedSQL, after.user, after.queue, n)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (f flow, err error) {
		err = row.Scan(&f.user, &f.queue)
		return f, err
	})
}

// owned is a job of a user.
type owned struct {
	id   int64
	user string
}

// stale are the users' jobs that say they run, since longer than a lease.
func (s store) stale(ctx context.Context, users []string, lease float64) ([]owned, error) {
	return s.owned(ctx, s.staleSQL, users, lease)
}

// strays are the users' parked jobs that have been so for some seconds.
func (s store) strays(ctx context.Context, users []string, seconds float64) ([]owned, error) {
	return s.owned(ctx, s.straysSQL, users, seconds)
}

func (s store) owned(ctx context.Context, sql string, args ...any) ([]owned, error) {
	ctx, cancel := s.bound(ctx)
	defer cancel()
	rows, err := s.pool.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (x owned, err error) {
		err = row.Scan(&x.id, &x.user)
		return x, err
	})
}

func (s store) lose(ctx context.Context, ids []int64, lease float64) error {
	ctx, cancel := s.bound(ctx)
	defer cancel()
	_, err := s.pool.Exec(ctx, s.loseSQL, ids, lease)
	return err
}

// crowded are those with more than one available or running job, without the attempts that
// have ended. Their size is how many.
func (s store) crowded(ctx context.Context, ended []attempt) ([]flow, error) {
	ctx, cancel := s.boundAll(ctx)
	defer cancel()
	ids, times := attempts(ended)
	rows, err := s.pool.Query(ctx, s.crowdSQL, ids, times)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (f flow, err error) {
		err = row.Scan(&f.user, &f.queue, &f.size)
		return f, err
	})
}

// regate puts the last n available jobs behind the gate, at most so many, and returns how
// many it were.
func (s store) regate(ctx context.Context, f flow, n int, except []int64, horizon float64) (int, error) {
	ctx, cancel := s.bound(ctx)
	defer cancel()
	if except == nil {
		except = []int64{}
	}
	tag, err := s.pool.Exec(ctx, s.regateSQL, f.user, f.queue, min(n, most), except, horizon)
	return int(tag.RowsAffected()), err
}

func (s store) putOff(ctx context.Context, horizon float64, n int) (int, error) {
	ctx, cancel := s.bound(ctx)
	defer cancel()
	tag, err := s.pool.Exec(ctx, s.putOffSQL, horizon, n)
	return int(tag.RowsAffected()), err
}

func (s store) ungate(ctx context.Context, n int) (freed int, err error) {
	ctx, cancel := s.bound(ctx)
	defer cancel()
	err = s.pool.QueryRow(ctx, s.ungateSQL, n).Scan(&freed)
	return freed, err
}

// depth is how many jobs of a queue are in a state.
type depth struct {
	queue, state string
	n            int
}

func (s store) depth(ctx context.Context) ([]depth, error) {
	ctx, cancel := s.boundAll(ctx)
	defer cancel()
	rows, err := s.pool.Query(ctx, s.depthSQL)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (d depth, err error) {
		err = row.Scan(&d.queue, &d.state, &d.n)
		return d, err
	})
}
