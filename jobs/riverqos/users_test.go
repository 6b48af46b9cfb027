package riverqos_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/riverqueue/river"

	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/jobs/riverqos"
	"github.com/sluice-qos/sluice/pkg/jobs"
	"github.com/sluice-qos/sluice/pkg/jobs/workerapi"
)

// withEachBackEnd runs a test with slots in memory, in PostgreSQL and in Redis. The option is
// for start.
func withEachBackEnd(t *testing.T, test func(t *testing.T, in option)) {
	t.Run("memory", func(t *testing.T) { test(t, func(*riverqos.Config, *river.Config) {}) })
	for _, backend := range []string{"postgres", "redis"} {
		t.Run(backend, func(t *testing.T) {
			var o fleetOptions
			if backend == "redis" {
				_, o.Redis = testkit.Redis(t)
			}
			test(t, func(c *riverqos.Config, _ *river.Config) {
				fleet, err := o.config(context.Background(), c.Pool)
				if err != nil {
					t.Fatal(err)
				}
				c.Runner.Slots = fleet.Runner.Slots
			})
		})
	}
}

// lists asks the handler for users. Lists are good for a second, so it asks until one is as wanted.
func (r *rig) lists(n int, want ...workerapi.UserJobs) (list workerapi.UserList) {
	r.Helper()
	testkit.Eventually(r, "the list of users", func() error {
		w := httptest.NewRecorder()
		r.fair.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, fmt.Sprintf("/jobs?n=%d", n), nil))
		list = workerapi.UserList{}
		if err := json.Unmarshal(w.Body.Bytes(), &list); err != nil || w.Code != http.StatusOK {
			return fmt.Errorf("%d %s: %w", w.Code, w.Body, err)
		}
		if diff := cmp.Diff(want, list.Users); diff != "" {
			return fmt.Errorf("(-want +got):\n%s", diff)
		}
		return nil
	})
	return list
}

// waiting is a job and when it could have run, as Why has it.
func (r *rig) waiting(id int64) *workerapi.WaitingJob {
	r.Helper()
	why, err := r.fair.Why(context.Background(), id)
	if err != nil {
		r.Fatal(err)
	}
	return &workerapi.WaitingJob{ID: id, Since: why.Since.UTC()}
}

// It is told who has jobs that run or wait, since when, and which limit holds them, wherever
// the slots are.
func TestUsersWithJobs(t *testing.T) {
	skipIfShort(t)
	withEachBackEnd(t, func(t *testing.T, in option) {
		r := start(t, in)
		r.tiers.set("ann", jobs.Limits{Total: 3, Queues: map[string]int{"slow": 1}})
		r.tiers.set("eve", jobs.Limits{Total: 2})
		bob := r.insert(5, task{User: "bob", Do: "hang"}, "fast_default")
		ann := r.insert(3, task{User: "ann", Do: "hang"}, "slow_default")
		eve := r.insert(1, task{User: "eve", Do: "hang"}, "fast_default")
		system := r.insert(1, task{Do: "hang"}, "fast_default")
		r.runs("bob", 1)
		r.runs("ann", 1)
		r.runs("eve", 1)
		r.runs("", 1)
		if _, err := r.client.Insert(t.Context(), task{User: "eve"}, &river.InsertOpts{ScheduledAt: time.Now().Add(time.Hour)}); err != nil {
			t.Fatal(err)
		}
		list := r.lists(2,
			workerapi.UserJobs{User: "bob", Tier: "free", Running: bob[:1], Waiting: 4, Oldest: r.waiting(bob[1]), Held: &workerapi.HeldBy{Max: 1}},
			workerapi.UserJobs{User: "ann", Tier: "pro", Running: ann[:1], Waiting: 2, Oldest: r.waiting(ann[1]), Held: &workerapi.HeldBy{Service: "slow", Max: 1}},
		)
		if list.Found != 3 || list.Partial || list.Database == "" {
			t.Errorf("the list is %+v, want 3 users found, not partial, of a database", list)
		}
		r.lists(100, slices.Concat(list.Users, []workerapi.UserJobs{{User: "eve", Tier: "pro", Running: eve}})...)
		close(r.gate("hang"))
		r.finished(slices.Concat(bob, ann, eve, system))
		r.lists(100, []workerapi.UserJobs{}...)
	})
}

// Slots that jobs of another database have, or that are reserved, hold a user's jobs, and do not run here.
func TestUsersWhoseSlotsAreElsewhere(t *testing.T) {
	r := start(t, func(c *riverqos.Config, _ *river.Config) { *c = c.SweptEvery(time.Hour) })
	r.afterTheOnlySweep()
	two := jobs.Limits{Total: 2}
	r.tiers.set("ann", two)
	ids := r.insert(1, task{User: "ann", Do: "hang"}, "slow_default")
	r.runs("ann", 1)
	elsewhere := jobs.Claim{Job: jobs.Job{User: "ann", ID: "elsewhere.7", Queue: "slow"}, Holder: "another worker"}
	if verdict, err := r.slots.Acquire(t.Context(), elsewhere, two, time.Hour, false); err != nil || !verdict.Granted {
		t.Fatalf("Acquire() = %+v, %v, want a slot", verdict, err)
	}
	late := r.insert(1, task{User: "ann"}, "fast_default")
	r.inLine("ann", 1)
	r.explain(late[0], "parked")
	want := workerapi.UserJobs{User: "ann", Tier: "pro", Running: ids, Waiting: 1, Oldest: r.waiting(late[0]), Held: &workerapi.HeldBy{Max: 2}}
	r.lists(1, want)
	if reserved, err := r.slots.Release(t.Context(), elsewhere, two, time.Hour); err != nil || len(reserved) != 1 {
		t.Fatalf("Release() = %v, %v, want a slot reserved for the job that waits", reserved, err)
	}
	// The list of just now is good for a second: another length asks anew.
	r.lists(2, want)
}

// A long backlog of one user is not counted to its end, and the oldest job is found in it all the same:
// the one that has waited for longest may come last.
func TestUsersOfALongBacklog(t *testing.T) {
	r := start(t, func(c *riverqos.Config, _ *river.Config) { *c = c.SweptEvery(time.Hour) })
	r.afterTheOnlySweep()
	_, err := r.pool.Exec(t.Context(), `INSERT INTO river_job (args, kind, max_attempts, queue, state, priority, scheduled_at, metadata)
		SELECT '{"user": "ann"}', 'task', 25, 'slow_default', 'scheduled', CASE i WHEN 1500 THEN 4 ELSE 2 END, now() + interval '1 h',
			jsonb_build_object('sluice:user', 'ann', 'sluice:wait', CASE WHEN i > 400 THEN 'gated' ELSE 'parked' END, 'sluice:since', 1760000000 + 2000 - i)
		FROM generate_series(1, 1500) AS i`)
	if err != nil {
		t.Fatal(err)
	}
	var last int64
	if err := r.pool.QueryRow(t.Context(), "SELECT max(id) FROM river_job").Scan(&last); err != nil {
		t.Fatal(err)
	}
	// Of any program: what the mark has may be no time.
	for i, mark := range []string{`"x"`, `-1`, `1e999`} {
		_, err := r.pool.Exec(t.Context(), `INSERT INTO river_job (args, kind, max_attempts, queue, state, scheduled_at, metadata)
			VALUES ('{}', 'task', 25, 'slow_default', 'scheduled', '2026-01-01 00:00:00Z', jsonb_build_object('sluice:user', $1::text, 'sluice:wait', 'gated', 'sluice:since', $2::jsonb))`,
			fmt.Sprint("user", i), mark)
		if err != nil {
			t.Fatal(err)
		}
	}
	var odd [3]int64
	if err := r.pool.QueryRow(t.Context(), "SELECT $1::int8 + 1, $1::int8 + 2, $1::int8 + 3", last).Scan(&odd[0], &odd[1], &odd[2]); err != nil {
		t.Fatal(err)
	}
	scheduled := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	r.lists(100,
		workerapi.UserJobs{User: "ann", Tier: "free", Running: []int64{}, Waiting: 1401, AtLeast: true, Oldest: &workerapi.WaitingJob{ID: last, Since: time.Unix(1760000500, 0).UTC()}},
		workerapi.UserJobs{User: "user0", Tier: "free", Running: []int64{}, Waiting: 1, Oldest: &workerapi.WaitingJob{ID: odd[0], Since: scheduled}},
		workerapi.UserJobs{User: "user1", Tier: "free", Running: []int64{}, Waiting: 1, Oldest: &workerapi.WaitingJob{ID: odd[1], Since: scheduled}},
		workerapi.UserJobs{User: "user2", Tier: "free", Running: []int64{}, Waiting: 1, Oldest: &workerapi.WaitingJob{ID: odd[2], Since: time.Unix(1e11, 0).UTC()}},
	)
}

// Two workers of a database say so, so that nobody adds up their answers.
func TestUsersNamesTheDatabase(t *testing.T) {
	of := func(name string) (database string) {
		pool, dsn := fresh(t)
		for _, schema := range []string{"", "public", name} {
			fair, err := riverqos.New(riverqos.Config{Pool: pool, Schema: schema, User: riverqos.FromArgs("user"), Runner: jobs.RunnerConfig{Slots: jobs.NewMemory(nil), Tiers: &tiers{}}})
			if err != nil {
				t.Fatal(err)
			}
			list, err := fair.Users(t.Context(), 1)
			if schema == name {
				if err == nil {
					t.Errorf("Users() of the schema %s, which is not there, has no error", name)
				}
				continue
			}
			if err != nil || database != "" && list.Database != database {
				t.Errorf("the database of %s is %q, %v, want %q", dsn, list.Database, err, database)
			}
			database = list.Database
		}
		return database
	}
	if one, other := of("none"), of("nothing"); one == other || one == "" {
		t.Errorf("two databases are called %q and %q, want two names", one, other)
	}
}

// An application's own role of the database may ask, and a database that does not answer is told
// and counted.
func TestUsersOfADatabaseThatIsAway(t *testing.T) {
	r := start(t)
	if _, err := r.pool.Exec(t.Context(), "CREATE ROLE app LOGIN; GRANT SELECT ON river_job TO app"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := r.pool.Exec(context.Background(), "DROP OWNED BY app; DROP ROLE app"); err != nil {
			t.Error(err)
		}
	})
	config := r.pool.Config()
	config.ConnConfig.User = "app"
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	registry := prometheus.NewRegistry()
	fair, err := riverqos.New(riverqos.Config{Pool: pool, User: riverqos.FromArgs("user"), Runner: jobs.RunnerConfig{Slots: jobs.NewMemory(nil), Tiers: &tiers{}, Registry: registry}})
	if err != nil {
		t.Fatal(err)
	}
	ask := func() (int, string) {
		w := httptest.NewRecorder()
		fair.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/jobs?n=3", nil))
		return w.Code, w.Body.String()
	}
	if status, text := ask(); status != http.StatusOK {
		t.Errorf("as a role with few rights: %d %s, want 200", status, text)
	}
	pool.Close()
	// Another length, which the list of just now has not.
	w := httptest.NewRecorder()
	fair.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/jobs", nil))
	if want := `{"error":"the database or the slots do not answer"}` + "\n"; w.Code != http.StatusServiceUnavailable || w.Body.String() != want {
		t.Errorf("without the database: %d %s, want 503 %s", w.Code, w.Body, want)
	}
	if err := testutil.GatherAndCompare(registry, strings.NewReader(`
# HELP sluice_jobs_errors_total Failed operations, all of which are tried again, by operation.
# TYPE sluice_jobs_errors_total counter
sluice_jobs_errors_total{operation="users"} 1
`), "sluice_jobs_errors_total"); err != nil {
		t.Error(err)
	}
}
