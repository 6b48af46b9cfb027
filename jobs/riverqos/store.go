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
	names         *strings.Replacer // puts the table and River's channel into a statement
	answerTimeout time.Duration     // the constant of this name, but in tests
	name          atomic.Value      // of the database, once it is known: a string
}

func newStore(pool *pgxpool.Pool, schema string) *store {
	return &store{pool: pool, names: tableNames(schema), answerTimeout: answerTimeout}
}

func statement(names *strings.Replacer, name string) string {
	text, err := statements.ReadFile("sql/" + name + ".sql")
	if err != nil {
		// Only a constant of this package can be wrong, and every test of it would find out.
		panic(err)
	}
	return names.Replace(string(text))
}

func tableNames(schema string) *strings.Replacer {
	// Without a schema the search path finds the tables, and River names its channel by that.
	table, queues, prefix, schemaSQL := "river_job", "river_queue", "", "current_schema()"
	if schema != "" {
		table, queues = pgx.Identifier{schema, "river_job"}.Sanitize(), pgx.Identifier{schema, "river_queue"}.Sanitize()
		prefix, schemaSQL = pgx.Identifier{schema}.Sanitize(), "'"+strings.ReplaceAll(schema, "'", "''")+"'"
	}
	return strings.NewReplacer("@table@", table, "@queues@", queues, "@schema@", prefix, "@channel@", "concat("+schemaSQL+", '.river_insert')")
}

// readAll sends a statement, and reads the rows that it returns: a field of T for each column.
func readAll[T any](ctx context.Context, s *store, timeout time.Duration, name string, args ...any) ([]T, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	// The rows have the error as well.
	rows, _ := s.pool.Query(ctx, statement(s.names, name), args...)
	return pgx.CollectRows(rows, pgx.RowToStructByPos[T])
}

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

type wakeRow struct {
	ID           int64
	State        string
	Waits, Woken bool
}

// wakeJobs makes those of the jobs available that are parked or gated, or were refused by a worker that died.
func (s *store) wakeJobs(ctx context.Context, ids []int64, lease time.Duration) (map[int64]jobs.WakeResult, error) {
	// Often, for most jobs that end have nobody behind them.
	if len(ids) == 0 {
		return nil, nil
	}
	rows, err := readAll[wakeRow](ctx, s, s.answerTimeout, "wake", ids, lease.Seconds())
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

// promote lets gated jobs through where there is room, and returns how many: with maxPromoted there may be more.
func (s *store) promote(ctx context.Context, openings []opening) (promoted int, err error) {
	// Often, and a statement for no flow would cost as much as one for many.
	if len(openings) == 0 {
		return 0, nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.answerTimeout)
	defer cancel()
	var users, queues []string
	var most, want []int32
	for _, o := range openings {
		users, queues = append(users, o.User), append(queues, o.Queue)
		// Unlimited is as much as the column takes.
		most, want = append(most, int32(min(o.Most, math.MaxInt32))), append(want, int32(min(o.Want, math.MaxInt32))) //nolint:gosec // they fit
	}
	err = s.queryRow(ctx, "promote", users, queues, most, want).Scan(&promoted)
	return promoted, err
}

type userJob struct {
	ID   int64
	User string
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
