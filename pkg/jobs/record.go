package jobs

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"

	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/limits/limitfile"
)

// Record is what is stored of a user. It says what an entry of the limit file would: what it
// says replaces the tier's, and a limit for each queue takes the place of a total that nobody
// states. The zero Record is that of a user whom nobody knows.
type Record struct {
	Tier   string         // the name of a tier of the limit file; "" is the default tier
	Total  int            // as in Limits; 0: the tier's
	Queues map[string]int // by service, "*" for each service that is not named; a service that is not here has the tier's. Unlimited lifts one
}

// over is what is said of a user's jobs, by the tier and then by the record.
func (r Record) over(j limits.Jobs) limits.Jobs {
	if r.Total != 0 {
		j.Total, j.Source = stated(r.Total), limits.OfUser
	}
	if len(r.Queues) == 0 {
		return j
	}
	// The set is shared, and so is a record that a Cache remembers.
	if j.Queues = maps.Clone(j.Queues); j.Queues == nil {
		j.Queues = map[string]int{}
	}
	for service, n := range r.Queues {
		j.LimitQueue(service, stated(n))
	}
	return j
}

// stated is a number as limits.Jobs has it, where 0 is no limit.
func stated(n int) int {
	if n >= Unlimited {
		return 0
	}
	// No job is ever rejected: who may run none at all may run one.
	return max(n, 1)
}

func (r Record) isZero() bool { return r.Tier == "" && r.Total == 0 && len(r.Queues) == 0 }

// RecordFunc finds what is stored of the user with a key (limits.Key). With an error it returns
// the last record that was known, or none. Nobody changes a record that it has returned.
type RecordFunc func(ctx context.Context, user string) (Record, error)

// NameFunc finds the name of a user's tier alone, "" for a user whom nobody knows. Its Record
// is a RecordFunc.
type NameFunc func(ctx context.Context, user string) (tier string, err error)

// Record returns a record that has the name of the user's tier.
func (f NameFunc) Record(ctx context.Context, user string) (Record, error) {
	tier, err := f(ctx, user)
	return Record{Tier: tier}, err
}

// Row is what *sql.Row and pgx.Row are.
type Row interface{ Scan(dest ...any) error }

// Query asks a database for a user's tier, with the method that returns one row and a
// query that has the user as its only argument:
//
//	jobs.Query(pool.QueryRow, "SELECT tier FROM users WHERE id = $1")     // pgx
//	jobs.Query(db.QueryRowContext, "SELECT tier FROM users WHERE id = ?") // database/sql
//
// The only column is the name of a tier of the limit file. Without a row, and with
// NULL, nobody knows the user. The argument is text: a column of another type may need
// a cast (id::text = $1). Users whose names are longer than 100 bytes or odd are known by
// a hash alone (limits.Key), and not asked about.
func Query[R Row](queryRow func(ctx context.Context, query string, args ...any) R, query string) RecordFunc {
	return func(ctx context.Context, user string) (r Record, err error) {
		var tier sql.NullString
		err = scanRow(ctx, queryRow, query, user, &tier)
		return Record{Tier: tier.String}, err
	}
}

// QueryRecord asks for a whole record, in the same way as Query:
//
//	jobs.QueryRecord(pool.QueryRow, "SELECT tier, jobs_total, jobs_queues FROM tenants WHERE id = $1")
//
// The three columns are the name of a tier; a number, or the text unlimited; and, as JSON, numbers
// by service, such as {"*": 1, "csv": 2, "sync": "unlimited"}. Each may be NULL, and the tier says
// the rest. A number has the bounds that it has in the limit file (1 to 100000). A row that is
// not valid is an error: with a Cache, the last one that was valid goes on counting.
func QueryRecord[R Row](queryRow func(ctx context.Context, query string, args ...any) R, query string) RecordFunc {
	return func(ctx context.Context, user string) (Record, error) {
		// The number as text: a column of numbers converts to that, and one of text may say unlimited.
		var tier, total, queues sql.NullString
		if err := scanRow(ctx, queryRow, query, user, &tier, &total, &queues); err != nil {
			return Record{}, err
		}
		record := Record{Tier: tier.String}
		var err error
		if total.Valid {
			if record.Total, err = parseLimit(total.String); err != nil {
				return Record{}, fmt.Errorf("total %w", err)
			}
		}
		if queues.Valid {
			if record.Queues, err = parseQueues(queues.String); err != nil {
				return Record{}, fmt.Errorf("queues: %w", err)
			}
		}
		return record, nil
	}
}

// scanRow reads the row of a user. Without one the columns stay as they are.
func scanRow[R Row](ctx context.Context, queryRow func(ctx context.Context, query string, args ...any) R, query, user string, columns ...any) error {
	// A hash, which no table of users has.
	if strings.HasPrefix(user, "~") {
		return nil
	}
	// pgx.ErrNoRows is one, too.
	if err := queryRow(ctx, query, user).Scan(columns...); err != nil && !errors.Is(err, sql.ErrNoRows) {
		return fmt.Errorf("query: %w", err)
	}
	return nil
}

// parseLimit reads a number of jobs, or unlimited.
func parseLimit(text string) (int, error) {
	if text == "unlimited" {
		return Unlimited, nil
	}
	return limitfile.ParseJobs(text)
}

// parseQueues reads numbers of jobs by service.
func parseQueues(text string) (map[string]int, error) {
	var values map[string]json.RawMessage
	if err := json.Unmarshal([]byte(text), &values); err != nil {
		return nil, fmt.Errorf("must be a JSON object such as {\"*\": 1}: %w", err)
	}
	queues := make(map[string]int, len(values))
	for service, value := range values {
		// A name that is none would limit nothing, and nobody would see that.
		if service != limits.All && !limitfile.ValidService(service) {
			return nil, fmt.Errorf("the name %.100q is not usable; write * or 1 to 54 of a-z and 0-9, with single _ or - between them", service)
		}
		number := string(value)
		if text, err := strconv.Unquote(number); err == nil {
			number = text
		}
		n, err := parseLimit(number)
		if err != nil {
			return nil, fmt.Errorf("%s %w", service, err)
		}
		queues[service] = n
	}
	return queues, nil
}
