package riverqos_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"

	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/jobs/riverqos"
	"github.com/sluice-qos/sluice/pkg/jobs"
)

// 24 jobs of four users, one of each tier that there is without a limit file: of none more run at
// a time than docs/jobs.md says, 1, 3, 3 and 5, and so many do, although those with the most slots
// came first; a user's jobs come in their order; and all end, without having spent an attempt more.
func TestTwentyFourJobsOfFourUsers(t *testing.T) {
	t.Parallel() // it mostly waits

	// And fred, whom nobody knows.
	tierOf := map[string]string{"emma": "enterprise", "petra": "pro_plus", "paul": "pro"}
	tiers := &jobs.NamedTiers{Name: func(_ context.Context, user string) (string, error) { return tierOf[user], nil }}
	users := []struct {
		name  string
		limit int
	}{{"emma", 5}, {"petra", 3}, {"paul", 3}, {"fred", 1}}
	for _, c := range []struct {
		name    string
		options []option
		ordered bool
	}{
		{"through the gate", nil, true},
		{"parked and woken", []option{ungated}, false},
		{"asleep meanwhile", []option{ungated, snoozing}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := start(t, append(c.options, func(cfg *riverqos.Config, rc *river.Config) {
				cfg.Runner.Tiers = tiers
				// Workers for all that may run, so that only the limits hold jobs back.
				rc.Queues = map[string]river.QueueConfig{"slow_priority": {MaxWorkers: 18}, "slow_default": {MaxWorkers: 6}}
			})...)
			const each = 6
			var all []int64
			ids := map[string][]int64{}
			for _, u := range users {
				queue := r.fair.Route(t.Context(), u.name, "slow", false).Queue
				for i := range each {
					do := "hang"
					if i >= u.limit {
						do = "brief" // behind those that hang
					}
					ids[u.name] = append(ids[u.name], r.insert(1, task{User: u.name, Do: do}, queue)...)
				}
				all = append(all, ids[u.name]...)
			}
			if len(all) != 24 {
				t.Fatalf("%d jobs, want 24", len(all))
			}
			for _, u := range users {
				r.runs(u.name, u.limit) // of all four at once: those that hang fill the limits in the end
			}
			if c.ordered {
				for _, u := range users {
					// A job that found the slots taken is in this state until it is parked.
					testkit.Eventually(t, u.name+"'s first jobs run, and no others", func() error {
						if got, want := r.idsOf("state = 'running'", u.name, "id"), ids[u.name][:u.limit]; !slices.Equal(got, want) {
							return fmt.Errorf("%v run, want %v", got, want)
						}
						return nil
					})
				}
			}
			close(r.gate("hang"))
			r.finished(all)
			for _, u := range users {
				r.atMost(u.name, u.limit)
			}
			if n := r.spent(); n != 1 {
				t.Errorf("a job spent %d attempts, want 1", n)
			}
			if c.ordered {
				testkit.Eventually(t, "River has written that all ended", func() error {
					if got := r.states()["completed"]; got != 24 {
						return fmt.Errorf("%d jobs are completed, want 24", got)
					}
					return nil
				})
				// With one slot the order in which they end is the order in which they ran.
				if got := r.idsOf("state = 'completed'", "fred", "finalized_at"); !slices.Equal(got, ids["fred"]) {
					t.Errorf("fred's jobs ran in the order %v, want %v", got, ids["fred"])
				}
			}
		})
	}
}

// idsOf are the jobs of a user for which a condition holds.
func (r *rig) idsOf(condition, user, order string) []int64 {
	r.Helper()
	rows, err := r.pool.Query(context.Background(), "SELECT id FROM river_job WHERE "+condition+" AND args->>'user' = $1 ORDER BY "+order, user)
	if err != nil {
		r.Fatal(err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		r.Fatal(err)
	}
	return ids
}
