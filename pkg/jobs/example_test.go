package jobs_test

import (
	"context"
	"fmt"
	"time"

	"github.com/sluice-qos/sluice/pkg/jobs"
	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/limits/limitfile"
)

// The limit file says how many of a user's jobs run at a time, and which queues they go to.
func ExampleSelectQueue() {
	set, err := limitfile.Parse("limits.yaml", []byte(`
version: 1
default_tier: free
tiers:
  free: {jobs: 1}
  pro: {jobs: {total: 3, queues: {analysis: 2}}}
users:
  ann: pro
`))
	if err != nil {
		fmt.Println(err)
		return
	}
	tiers := jobs.FileTiers{Set: func() *limits.Set { return set }}
	for _, user := range []string{"ann", "bob"} {
		tier, err := tiers.Tier(context.Background(), user)
		fmt.Println(user, tier.Name, tier.Limits.Total, tier.Limits.Of("analysis"), jobs.SelectQueue("analysis", tier, false), err)
	}
	// Output:
	// ann pro 3 2 analysis_priority <nil>
	// bob free 1 1 analysis_default <nil>
}

// A user may run one job at a time. A second job is parked, and its slot is reserved when
// the first one ends.
func Example() {
	ctx := context.Background()
	slots := jobs.NewMemory(nil) // workers of several processes share redisslots or pgslots
	limits := jobs.Limits{Total: 1}
	const lease, reserve = 15 * time.Second, 5 * time.Second

	first := jobs.Claim{Job: jobs.Job{User: "ann", ID: "1", Queue: "analysis"}, Holder: "worker-a"}
	second := jobs.Claim{Job: jobs.Job{User: "ann", ID: "2", Queue: "analysis"}, Holder: "worker-b"}

	verdict, err := slots.Acquire(ctx, first, limits, lease, true)
	fmt.Println("job 1 granted:", verdict.Granted, err)
	verdict, err = slots.Acquire(ctx, second, limits, lease, true)
	fmt.Println("job 2 granted:", verdict.Granted, "place in line:", verdict.Place, err)

	woken, err := slots.Release(ctx, first, limits, reserve)
	for _, job := range woken {
		fmt.Println("slot reserved for job", job.ID, err)
	}
	verdict, err = slots.Acquire(ctx, second, limits, lease, true)
	fmt.Println("job 2 granted:", verdict.Granted, err)
	// Output:
	// job 1 granted: true <nil>
	// job 2 granted: false place in line: 1 <nil>
	// slot reserved for job 2 <nil>
	// job 2 granted: true <nil>
}
