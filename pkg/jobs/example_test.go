package jobs_test

import (
	"context"
	"fmt"
	"time"

	"github.com/sluice-qos/sluice/pkg/jobs"
)

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
