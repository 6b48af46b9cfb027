package riverqos_test

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/jobs/riverqos"
	"github.com/sluice-qos/sluice/pkg/jobs"
	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/limits/limitfile"
)

const dedicatedFile = `version: 1
default_tier: free
queues: {slow: [1, 2, 1]}
tiers:
  free: {jobs: 2}
  pro: {jobs: 2}
  enterprise: {jobs: {total: 3, queues: {slow: 2}}}
workers:
  enterprise: {priority: 2}
  users: {alice: {default: 1}}
users: {emma: enterprise, paul: pro, petra: pro}
`

// While other users' jobs have all workers, a job of a tier or a user with workers of their own is
// taken by one of these at once. None of the others' is, also while they stand idle. The limit of
// a service is of all its queues together.
func TestDedicatedWorkers(t *testing.T) {
	t.Parallel() // it mostly waits
	set, err := limitfile.Parse("limits.yaml", []byte(dedicatedFile))
	if err != nil {
		t.Fatal(err)
	}
	queues, err := jobs.QueuesOf(set, nil, func(string) (string, bool) { return "", false })
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name    string
		options []option
	}{
		{"through the gate", nil},
		{"parked and woken", []option{ungated}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var strangers atomic.Int64 // jobs in the queue of somebody else
			r := start(t, append(c.options, func(cfg *riverqos.Config, rc *river.Config) {
				cfg.Runner.Tiers = jobs.FileTiers{Set: func() *limits.Set { return set }}
				rc.Queues = riverqos.QueueConfigs(queues)
				rc.Hooks = append(rc.Hooks, river.HookWorkBeginFunc(func(_ context.Context, row *rivertype.JobRow) error {
					_, class := jobs.Split(row.Queue)
					if user, _ := riverqos.FromArgs("user")(row.Kind, row.EncodedArgs, nil); class == "priority-enterprise" && user != "emma" || class == "default-user-alice" && user != "alice" {
						strangers.Add(1)
					}
					return nil
				}))
			})...)
			insert := func(n int, user, do string) []int64 {
				return r.insert(n, task{User: user, Do: do}, r.fair.Route(t.Context(), user, "slow", false).Queue)
			}
			// The only shared worker of the priority queue, and both of the default one.
			ids := slices.Concat(insert(2, "paul", "hang"), insert(2, "fred", "hang"))
			r.runs("paul", 1)
			r.runs("fred", 2)
			waiting := slices.Concat(insert(2, "petra", ""), insert(2, "frieda", ""))
			r.finished(slices.Concat(insert(1, "emma", ""), insert(1, "alice", "")))
			if got := r.queues("emma", "alice"); got != "map[alice:slow_default-user-alice emma:slow_priority-enterprise]" {
				t.Errorf("the jobs were in %s", got)
			}
			// Two by the limit of the service, which her job that waits in another of its queues has a share in.
			more := insert(2, "emma", "gate")
			r.runs("emma", 2)
			more = append(more, r.insert(1, task{User: "emma"}, "slow_scheduled")...)
			testkit.Eventually(t, "the job of another queue is refused a slot", func() error {
				if n := len(r.usage("emma").Parked); n != 1 {
					return fmt.Errorf("%d are parked, want 1", n)
				}
				return nil
			})
			close(r.gate("gate"))
			r.finished(more)
			r.atMost("emma", 2)
			// All dedicated workers are idle again, and those who wait for shared ones wait.
			for _, user := range []string{"petra", "frieda"} {
				r.atMost(user, 0)
			}
			close(r.gate("hang"))
			r.finished(append(ids, waiting...))
			if n := strangers.Load(); n != 0 {
				t.Errorf("dedicated workers took %d jobs of others", n)
			}
		})
	}
}

// queues are the queues of users' jobs.
func (r *rig) queues(users ...string) string {
	r.Helper()
	found := map[string]string{}
	for _, user := range users {
		var queue string
		err := r.pool.QueryRow(context.Background(), "SELECT string_agg(DISTINCT queue, ' ') FROM river_job WHERE args->>'user' = $1", user).Scan(&queue)
		if err != nil {
			r.Fatal(err)
		}
		found[user] = queue
	}
	return fmt.Sprint(found)
}
