package riverqos_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"

	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/jobs/riverqos"
	"github.com/sluice-qos/sluice/pkg/jobs"
	"github.com/sluice-qos/sluice/pkg/jobs/pgslots"
)

// From the environment to a job that waits, without a limit file: the variables say what tiers
// may do and how many workers there are, a table says who has which tier,
// River runs the jobs in the queues of the tiers, and what is over the limit is delayed and
// then runs.
func TestFromTheEnvironmentToADelayedJob(t *testing.T) {
	t.Parallel() // it mostly waits
	for _, c := range []struct {
		name   string
		snooze bool
	}{
		{"parked, with the gate", false},
		{"asleep meanwhile", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			variables := map[string]string{
				"FAIRNESS_FREE_LIMIT": "2", "FAIRNESS_PRO_LIMIT": "3", "FAIRNESS_SNOOZE_DURATION": "100ms", "FAIRNESS_SNOOZE_JITTER": "0.1",
				"ANALYZER_QUEUE_PRIORITY_WORKERS": "12",
			}
			lookup := func(name string) (string, bool) { text, ok := variables[name]; return text, ok }
			env, err := jobs.FromEnv(lookup)
			if err != nil {
				t.Fatal(err)
			}
			queues, err := jobs.QueuesOf(nil, map[string]string{"analysis": "ANALYZER"}, lookup)
			if err != nil {
				t.Fatal(err)
			}
			r := start(t, func(cfg *riverqos.Config, rc *river.Config) {
				createUsers(t, cfg.Pool)
				cfg.Runner.Tiers = &jobs.NamedTiers{File: jobs.FileTiers{Totals: env.Totals}, Name: jobs.Query(cfg.Pool.QueryRow, "SELECT tier FROM users WHERE id = $1")}
				cfg.Runner.Slots = pgslots.New(cfg.Pool, "")
				cfg.Runner.Snooze, cfg.Ungated = c.snooze, c.snooze
				for name, text := range variables {
					cfg.Runner.Environ = append(cfg.Runner.Environ, name+"="+text)
				}
				rc.Queues, rc.FetchPollInterval = riverqos.QueueConfigs(queues), river.FetchCooldownDefault
			})
			// 12 as the variable says, and what is built in for the other two queues.
			if got, want := queues.Workers(), map[string]int{"analysis_priority": 12, "analysis_default": 3, "analysis_scheduled": 2}; fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("Workers() = %v, want %v", got, want)
			}
			users := []struct {
				name, queue string
				most        int
			}{
				{"fred", "analysis_default", 2},    // nobody knows him
				{"paula", "analysis_priority", 3},  // pro
				{"petra", "analysis_priority", 3},  // pro_plus, of which no variable says anything
				{"enrico", "analysis_priority", 5}, // enterprise, with the number that is built in
			}
			const each = 7
			var ids []int64
			delayed := 0
			for _, u := range users {
				opts := r.fair.Route(t.Context(), u.name, "analysis", false)
				if opts.Queue != u.queue {
					t.Errorf("Route(%s) = %s, want %s", u.name, opts.Queue, u.queue)
				}
				ids = append(ids, r.insert(each, task{User: u.name, Do: "hang"}, opts.Queue)...)
				delayed += each - u.most
			}
			for _, u := range users {
				r.runs(u.name, u.most)
			}
			if !c.snooze {
				testkit.Eventually(t, "the others wait", func() error {
					if got := r.states(); got["running"] != len(ids)-delayed {
						return fmt.Errorf("states are %v, want %d that wait", got, delayed)
					}
					return nil
				})
			} else {
				testkit.Eventually(t, "the others sleep", func() error {
					var slept int
					err := r.pool.QueryRow(context.Background(), "SELECT count(*) FROM river_job WHERE (metadata->>'snoozes')::int > 0").Scan(&slept)
					if err == nil && slept != delayed {
						err = fmt.Errorf("%d jobs have slept, want %d", slept, delayed)
					}
					return err
				})
			}
			close(r.gate("hang"))
			r.finished(ids)
			for _, u := range users {
				r.atMost(u.name, u.most)
			}
			if n := r.spent(); n != 1 {
				t.Errorf("a job spent %d attempts, want 1: to be delayed costs none", n)
			}
		})
	}
}

// createUsers makes the application's table of users, and the tables of the slots.
func createUsers(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	ctx := context.Background()
	if err := pgslots.Migrate(ctx, pool, ""); err != nil {
		t.Fatal(err)
	}
	_, err := pool.Exec(ctx, "CREATE TABLE users (id text PRIMARY KEY, tier text); INSERT INTO users VALUES ('paula', 'pro'), ('petra', 'pro_plus'), ('enrico', 'enterprise')")
	if err != nil {
		t.Fatal(err)
	}
}
