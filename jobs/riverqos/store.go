package riverqos

import (
	"context"
	"embed"
	"fmt"
	"math"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sluice-qos/sluice/pkg/jobs"
)

const (
	// answerTimeout bounds how long a statement, or a call of the Slots that a sweep makes,
	// may take. A server that is silent, or a connection that nobody told of its end, would
	// hold up a loop for ever otherwise.
	answerTimeout = 5 * time.Second
	// scanFactor is how many times as long a statement may take that reads all jobs that have
	// not finished.
	scanFactor = 6
	// maxPromoted is how many jobs one promote or regate changes, so that it ends in time. It
	// is also in sql/promote.sql.
	maxPromoted = 5000
)

//go:embed sql/*.sql
var statements embed.FS

// store is River's table of jobs. All statements are here and in sql/, by whose names they
// are called.
type store struct {
	pool          *pgxpool.Pool
	connections   *connections
	names         *strings.Replacer // puts the table and River's channel into a statement
	answerTimeout time.Duration     // the constant of this name, but in tests
	name          atomic.Value      // of the database, once it is known: a string
}

func newStore(pool *pgxpool.Pool, schema string) *store {
	return &store{pool: pool, connections: &connections{like: pool}, names: tableNames(schema), answerTimeout: answerTimeout}
}

// statement is the one in sql/ of a name.
func statement(names *strings.Replacer, name string) string {
	text, err := statements.ReadFile("sql/" + name + ".sql")
	if err != nil {
		// Only a constant of this package can be wrong, and every test of it would find out.
		panic(err)
	}
	return names.Replace(string(text))
}

// tableNames puts the tables and River's channel into a statement.
func tableNames(schema string) *strings.Replacer {
	// Without a schema the search path finds the tables, and River names its channel by that.
	table, queues, schemaSQL := "river_job", "river_queue", "current_schema()"
	if schema != "" {
		table, queues = pgx.Identifier{schema, "river_job"}.Sanitize(), pgx.Identifier{schema, "river_queue"}.Sanitize()
		schemaSQL = "'" + strings.ReplaceAll(schema, "'", "''") + "'"
	}
	return strings.NewReplacer("@table@", table, "@queues@", queues, "@channel@", "concat("+schemaSQL+", '.river_insert')")
}

// readAll sends a statement, and reads the rows that it returns: a field of T for each column.
func readAll[T any](ctx context.Context, s *store, timeout time.Duration, name string, args ...any) ([]T, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	// The rows have the error as well.
	rows, _ := s.pool.Query(ctx, statement(s.names, name), args...)
	return pgx.CollectRows(rows, pgx.RowToStructByPos[T])
}

// queryRow sends a statement that returns one row.
func (s *store) queryRow(ctx context.Context, name string, args ...any) pgx.Row {
	return s.pool.QueryRow(ctx, statement(s.names, name), args...)
}

// execute sends a statement that returns nothing, and returns how many rows it changed.
func (s *store) execute(ctx context.Context, name string, args ...any) (rows int, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.answerTimeout)
	defer cancel()
	tag, err := s.pool.Exec(ctx, statement(s.names, name), args...)
	return int(tag.RowsAffected()), err
}

// database names the database and its table: the same for all who ask about these jobs, and another one for
// all other jobs.
func (s *store) database(ctx context.Context) (string, error) {
	if name, ok := s.name.Load().(string); ok {
		return name, nil
	}
	var name string
	if err := s.queryRow(ctx, "database").Scan(&name); err != nil {
		return "", fmt.Errorf("which database it is: %w", err)
	}
	s.name.Store(name)
	return name, nil
}

// wakeRow is a job that was to be woken.
type wakeRow struct {
	ID           int64
	State        string
	Waits, Woken bool
}

// wakeJobs makes those of the jobs available that are parked or gated.
func (s *store) wakeJobs(ctx context.Context, ids []int64) (map[int64]jobs.WakeResult, error) {
	// Often, for most jobs that end have nobody behind them.
	if len(ids) == 0 {
		return nil, nil
	}
	rows, err := readAll[wakeRow](ctx, s, s.answerTimeout, "wake", ids)
	results := make(map[int64]jobs.WakeResult, len(ids))
	for _, row := range rows {
		switch {
		case row.Woken:
			results[row.ID] = jobs.WakeDone
		// It runs by now, or still, or waits because it is locked.
		case row.State == "running", row.Waits:
			results[row.ID] = jobs.WakeEarly
		case row.State == "available":
			results[row.ID] = jobs.WakeAwake
		}
	}
	return results, err
}

// names are the users and queues of flows, for unnest.
func names(flows []flow) (users, queues []string) {
	users, queues = make([]string, len(flows)), make([]string, len(flows))
	for i, flow := range flows {
		users[i], queues[i] = flow.User, flow.Queue
	}
	return users, queues
}

// columns are the users, queues and sizes of flows, for unnest.
func columns(flows []sizedFlow) (users, queues []string, sizes []int32) {
	for _, sized := range flows {
		users, queues = append(users, sized.User), append(queues, sized.Queue)
		// Unlimited is as much as the column takes.
		sizes = append(sizes, int32(min(sized.Size, math.MaxInt32))) //nolint:gosec // it fits
	}
	return users, queues, sizes
}

// attemptColumns are the jobs and times of attempts, for unnest.
func attemptColumns(attempts []attempt) (ids []int64, times []time.Time) {
	// Not nil, which is NULL: nothing is in it, and nothing is not in it.
	ids, times = make([]int64, len(attempts)), make([]time.Time, len(attempts))
	for i, attempt := range attempts {
		ids[i], times[i] = attempt.id, attempt.attemptedAt
	}
	return ids, times
}

// promote lets gated jobs through where there is room, and returns how many: with
// maxPromoted there may be more. Some attempts have ended though their rows may still say
// that they run; it marks these rows, and returns the ids of the jobs for which it did not. And
// it returns the flows in which jobs waited.
func (s *store) promote(ctx context.Context, flows []sizedFlow, ended []attempt, overdue []int64) (promoted int, waiting []flow, unmarked []int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.answerTimeout)
	defer cancel()
	users, queues, sizes := columns(flows)
	ids, times := attemptColumns(ended)
	var numbers []int32
	err = s.queryRow(ctx, "promote", users, queues, sizes, ids, times, overdue).Scan(&promoted, &numbers, &unmarked)
	for _, n := range numbers {
		waiting = append(waiting, flows[n-1].flow)
	}
	return promoted, waiting, unmarked, err
}

// lookAtEnds returns the flows, of those given, that hold jobs back, and the ids of the attempts whose rows still say
// that they run.
func (s *store) lookAtEnds(ctx context.Context, flows []flow, ended []attempt) (holding []flow, running []int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.answerTimeout)
	defer cancel()
	users, queues := names(flows)
	ids, times := attemptColumns(ended)
	var numbers []int32
	err = s.queryRow(ctx, "ends", users, queues, ids, times).Scan(&numbers, &running)
	for _, n := range numbers {
		holding = append(holding, flows[n-1])
	}
	return holding, running, err
}

// crowd is what is before a new job of a user in a queue.
type crowd struct {
	jobs  int  // available, running and parked jobs
	gated bool // there are gated ones
}

// countCrowds returns the crowd of each flow, and which of the ids are of jobs that are visible. The
// context ends in time.
func (s *store) countCrowds(ctx context.Context, flows []flow, ids []int64) (crowds []crowd, visible []int64, err error) {
	pool, err := s.connections.openPool()
	if err != nil {
		return nil, nil, err
	}
	users, queues := names(flows)
	// Not of s.pool, all of whose connections may be those of inserts that wait for this.
	rows, _ := pool.Query(ctx, statement(s.names, "count"), users, queues, ids) // the rows have the error as well
	crowds = make([]crowd, len(flows))
	var ordinal, jobs int
	var gated bool
	var found []int64
	_, err = pgx.ForEachRow(rows, []any{&ordinal, &jobs, &gated, &found}, func() error {
		// The last row is of no flow.
		if ordinal == 0 {
			visible = found
		} else {
			crowds[ordinal-1] = crowd{jobs, gated}
		}
		return nil
	})
	return crowds, visible, err
}

// heldFlows returns the flows that hold jobs back, up to so many.
func (s *store) heldFlows(ctx context.Context, limit int) ([]flow, error) {
	pool, err := s.connections.openPool()
	if err != nil {
		return nil, err
	}
	rows, _ := pool.Query(ctx, statement(s.names, "gated"), "", "", limit) // the rows have the error as well
	return pgx.CollectRows(rows, pgx.RowToStructByPos[flow])
}

// userJob is a job of a user.
type userJob struct {
	ID   int64
	User string
}

// crowded are the flows with more than one available or running job, without the attempts
// that have ended. Their size is how many.
func (s *store) crowded(ctx context.Context, ended []attempt) ([]sizedFlow, error) {
	ids, times := attemptColumns(ended)
	return readAll[sizedFlow](ctx, s, scanFactor*s.answerTimeout, "crowded", ids, times)
}

// regate puts the last available jobs of a flow behind the gate, at most so many, and
// returns how many it were, and how many of them had not been delayed before. Without a sweep
// they come back after a time.
func (s *store) regate(ctx context.Context, flow flow, jobs int, except []int64, comeBack time.Duration) (regated, first int, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.answerTimeout)
	defer cancel()
	// nil would be NULL, and no job is different from all of NULL.
	if except == nil {
		except = []int64{}
	}
	err = s.queryRow(ctx, "regate", flow.User, flow.Queue, min(jobs, maxPromoted), except, comeBack.Seconds()).Scan(&regated, &first)
	return regated, first, err
}

// ungate lets up to so many jobs go that were held back, and returns how many it were.
func (s *store) ungate(ctx context.Context, limit int) (freed int, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.answerTimeout)
	defer cancel()
	err = s.queryRow(ctx, "ungate", limit).Scan(&freed)
	return freed, err
}
