package jobs_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/sluice-qos/sluice/pkg/jobs"
	"github.com/sluice-qos/sluice/pkg/limits"
)

// TestRecords: what a record says replaces what the tier says, as an entry of the file would.
func TestRecords(t *testing.T) {
	const file = `version: 1
default_tier: free
tiers:
  free: {}
  pro: {jobs: {total: 4, queues: {csv: 1}}}
  each: {jobs: {queues: {"*": 2, sync: 3}}}
  trial: {jobs: 1, mode: dry-run}
users: {alice: pro}
`
	limitsOf := func(total, each int, queues map[string]int) jobs.Limits {
		return jobs.Limits{Total: total, EachQueue: each, Queues: queues}
	}
	type queues = map[string]int
	for _, tt := range []struct {
		name   string
		record jobs.Record
		tier   string
		want   jobs.Limits
	}{
		{"nothing", jobs.Record{}, "free", limitsOf(1, 0, nil)},
		{"a name alone", jobs.Record{Tier: "pro"}, "pro", limitsOf(4, 0, queues{"csv": 1})},
		{"a total", jobs.Record{Tier: "pro", Total: 7}, "pro", limitsOf(7, 0, queues{"csv": 1})},
		{"not the environment's total", jobs.Record{Tier: "each", Total: 7}, "each", limitsOf(7, 2, queues{"sync": 3})},
		{"the environment's total", jobs.Record{Tier: "each"}, "each", limitsOf(9, 2, queues{"sync": 3})},
		{"a total that is lifted", jobs.Record{Tier: "pro", Total: jobs.Unlimited}, "pro", limitsOf(jobs.Unlimited, 0, queues{"csv": 1})},
		{"of the default tier", jobs.Record{Total: 2}, "free", limitsOf(2, 0, nil)},
		{"each queue, in the place of a total that nobody states", jobs.Record{Queues: queues{"*": 1}}, "free", limitsOf(jobs.Unlimited, 1, nil)},
		{"each queue, beside the tier's total", jobs.Record{Tier: "pro", Queues: queues{"*": 2, "sync": 3}}, "pro", limitsOf(4, 2, queues{"csv": 1, "sync": 3})},
		{"each queue, beside its own total", jobs.Record{Total: 5, Queues: queues{"*": 2}}, "free", limitsOf(5, 2, nil)},
		{"a queue that is lifted", jobs.Record{Tier: "pro", Queues: queues{"csv": jobs.Unlimited}}, "pro", limitsOf(4, 0, nil)},
		{"each queue lifted", jobs.Record{Tier: "each", Total: 6, Queues: queues{"*": jobs.Unlimited}}, "each", limitsOf(6, 0, queues{"sync": 3})},
		{"numbers that would let nothing run", jobs.Record{Tier: "pro", Total: -1, Queues: queues{"csv": 0, "sync": -5}}, "pro", limitsOf(1, 0, queues{"csv": 1, "sync": 1})},
		{"a dry run", jobs.Record{Tier: "trial", Total: 2, Queues: queues{"*": 1}}, "trial", limitsOf(jobs.Unlimited, 0, nil)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tiers := jobs.NamedTiers{
				File:   jobs.FileTiers{Set: setOf(t, file), Totals: map[string]int{"each": 9}},
				Record: func(context.Context, string) (jobs.Record, error) { return tt.record, nil },
			}
			for range 2 { // the second time what it says is the same
				got, err := tiers.Tier(context.Background(), "paul")
				if diff := cmp.Diff(tt.want, got.Limits); diff != "" || err != nil || got.Name != tt.tier {
					t.Errorf("Tier = %q, %v, want %q (-want +got):\n%s", got.Name, err, tt.tier, diff)
				}
				for service := range got.Limits.Queues {
					got.Limits.Queues[service] = 99 // the caller's
				}
				claim := jobs.Claim{Job: jobs.Job{User: "paul", ID: "1", Queue: "csv"}, Holder: "worker"}
				if _, err := jobs.NewMemory(nil).Acquire(t.Context(), claim, got.Limits, time.Minute, false); err != nil {
					t.Errorf("%+v are limits that no Slots take: %v", got.Limits, err)
				}
			}
			if got, err := tiers.Tier(context.Background(), "alice"); got.Limits.Total != 4 || got.Name != "pro" || err != nil {
				t.Errorf("Tier(alice), whom the file names, = %+v, %v, want the file's", got, err)
			}
		})
	}
}

// TestARecordOfAnUnknownTier: what it says in numbers still counts.
func TestARecordOfAnUnknownTier(t *testing.T) {
	tiers := jobs.NamedTiers{Record: func(context.Context, string) (jobs.Record, error) { return jobs.Record{Tier: "gold", Total: 2}, nil }}
	if got, err := tiers.Tier(context.Background(), "paul"); got.Name != "free" || got.Limits.Total != 2 || err == nil {
		t.Errorf("Tier = %+v, %v, want the default tier with 2 jobs, and an error", got, err)
	}
}

func TestQueryRecord(t *testing.T) {
	broken := errors.New("no connection")
	for _, tt := range []struct {
		name string
		row  row
		want jobs.Record
		err  string
	}{
		{"all of it", rowOf("pro", int64(3), []byte(`{"csv": 1, "*": 2, "sync": "unlimited"}`)), jobs.Record{Tier: "pro", Total: 3, Queues: map[string]int{"csv": 1, "*": 2, "sync": jobs.Unlimited}}, ""},
		{"a name alone", rowOf("pro", nil, nil), jobs.Record{Tier: "pro"}, ""},
		{"numbers alone", rowOf(nil, "5", "{}"), jobs.Record{Total: 5, Queues: map[string]int{}}, ""},
		{"no total", rowOf(nil, "unlimited", nil), jobs.Record{Total: jobs.Unlimited}, ""},
		{"nothing", rowOf(nil, nil, nil), jobs.Record{}, ""},
		{"no row", row{err: sql.ErrNoRows}, jobs.Record{}, ""},
		{"an error", row{err: broken}, jobs.Record{}, "query: no connection"},
		{"a total of zero", rowOf("pro", int64(0), nil), jobs.Record{}, "total must be 1 or more, got 0; a job that may never run waits for ever"},
		{"a total that is too large", rowOf("pro", int64(100_001), nil), jobs.Record{}, "total must be at most 100000, got 100001"},
		{"a total that is no number", rowOf("pro", "some", nil), jobs.Record{}, `total must be a whole number from 1 to 100000, got "some"`},
		{"no object", rowOf("pro", nil, "[1]"), jobs.Record{}, "queues: must be a JSON object such as {\"*\": 1}: json: cannot unmarshal array into Go value of type map[string]json.RawMessage"},
		{"a queue of zero", rowOf("pro", nil, `{"csv": 0}`), jobs.Record{}, "queues: csv must be 1 or more, got 0; a job that may never run waits for ever"},
		{"a queue that is no number", rowOf("pro", nil, `{"csv": 1.5}`), jobs.Record{}, `queues: csv must be a whole number from 1 to 100000, got "1.5"`},
		{"a service that is none", rowOf("pro", nil, `{"CSV": 1}`), jobs.Record{}, `queues: the name "CSV" is not usable; write * or 1 to 54 of a-z and 0-9, with single _ or - between them`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := jobs.QueryRecord(func(context.Context, string, ...any) row { return tt.row }, "")(context.Background(), "paul")
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if (err != nil || tt.err != "") && fmt.Sprint(err) != tt.err {
				t.Errorf("error %q, want %q", err, tt.err)
			}
		})
	}
}

// TestACacheRemembersRecords: the last one that was valid goes on counting, all of it.
func TestACacheRemembersRecords(t *testing.T) {
	answer := rowOf("pro", int64(3), `{"*": 1}`)
	cache := jobs.NewCache(jobs.QueryRecord(func(context.Context, string, ...any) row { return answer }, ""), jobs.CacheConfig{TTL: 1, Retry: 1})
	want := jobs.Record{Tier: "pro", Total: 3, Queues: map[string]int{"*": 1}}
	for _, next := range []row{{err: errors.New("no connection")}, rowOf("pro", int64(-1), nil), answer} {
		got, err := cache.Record(context.Background(), "paul")
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("after %v: %v (-want +got):\n%s", answer, err, diff)
		}
		answer = next
	}
}

// FuzzQueryRecord: a row is refused, or says what all Slots take.
func FuzzQueryRecord(f *testing.F) {
	f.Add("3", `{"*": 1, "csv": "unlimited"}`)
	f.Add("unlimited", `{}`)
	f.Fuzz(func(t *testing.T, total, queues string) {
		record := jobs.QueryRecord(func(context.Context, string, ...any) row { return rowOf("pro", total, queues) }, "")
		tiers := jobs.NamedTiers{Record: record}
		got, err := tiers.Tier(t.Context(), "paul")
		if stored, invalid := record(t.Context(), "paul"); (invalid == nil) != (err == nil) || stored.Total > jobs.Unlimited {
			t.Fatalf("the record is %+v, %v, and the tier %+v, %v", stored, invalid, got, err)
		}
		claim := jobs.Claim{Job: jobs.Job{User: "paul", ID: "1"}, Holder: "worker"}
		if _, err := jobs.NewMemory(nil).Acquire(t.Context(), claim, got.Limits, time.Minute, false); err != nil {
			t.Fatalf("%q, %q make limits that no Slots take: %v", total, queues, err)
		}
	})
}

// row is a row of a database: values, or none.
type row struct {
	values []any // nil is NULL
	err    error
}

func rowOf(values ...any) row { return row{values: values} }

func (r row) Scan(dest ...any) error {
	if r.err != nil {
		return r.err
	}
	if len(dest) != len(r.values) {
		return fmt.Errorf("%d columns for %d values", len(dest), len(r.values))
	}
	for i, value := range r.values {
		if err := dest[i].(sql.Scanner).Scan(value); err != nil {
			return err
		}
	}
	return nil
}

func TestQuery(t *testing.T) {
	broken := errors.New("no connection")
	for _, tt := range []struct {
		name, user string
		row        row
		tier       string
		err        error
		asked      bool
	}{
		{"a tier", "paul", rowOf("pro"), "pro", nil, true},
		{"NULL", "paul", rowOf(nil), "", nil, true},
		{"no row", "paul", row{err: sql.ErrNoRows}, "", nil, true},
		{"no row of pgx", "paul", row{err: pgx.ErrNoRows}, "", nil, true},
		{"an error", "paul", row{err: broken}, "", broken, true},
		{"the name is not known", limits.Key(strings.Repeat("x", 200)), rowOf("pro"), "", nil, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var query string
			var args []any
			record := jobs.Query(func(_ context.Context, q string, a ...any) row {
				query, args = q, a
				return tt.row
			}, "SELECT tier")
			got, err := record(context.Background(), tt.user)
			if got.Tier != tt.tier || got.Total != 0 || got.Queues != nil || !errors.Is(err, tt.err) || (err == nil) != (tt.err == nil) {
				t.Errorf("Query(%s) = %+v, %v, want %q, %v", tt.user, got, err, tt.tier, tt.err)
			}
			if asked := query == "SELECT tier" && len(args) == 1 && args[0] == tt.user; asked != tt.asked {
				t.Errorf("it asked %q with %v, want %v", query, args, tt.asked)
			}
		})
	}
}

// Both kinds of databases fit.
var (
	_ = func(db *sql.DB) jobs.RecordFunc { return jobs.Query(db.QueryRowContext, "") }
	_ = func(c *pgx.Conn) jobs.RecordFunc { return jobs.Query(c.QueryRow, "") }
)
