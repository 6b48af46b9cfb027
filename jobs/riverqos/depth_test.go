package riverqos_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/riverqueue/river"

	"github.com/sluice-qos/sluice/internal/testkit"
)

// depthBecomes counts until the series say so much of each "queue state", and 0 of all other
// states of these queues.
func (r *rig) depthBecomes(jobs map[string]int, queues ...string) {
	r.Helper()
	want := "# HELP sluice_jobs_depth Unfinished jobs by queue and state, those that are held back as parked or gated. Of the process that sweeps.\n# TYPE sluice_jobs_depth gauge\n"
	for _, queue := range queues {
		for _, state := range []string{"available", "gated", "parked", "pending", "retryable", "running", "scheduled"} {
			want += fmt.Sprintf("sluice_jobs_depth{queue=%q,state=%q} %d\n", queue, state, jobs[queue+" "+state])
		}
	}
	testkit.Eventually(r, "the depth", func() error {
		if err := r.fair.CountDepth(context.Background()); err != nil {
			return err
		}
		return testutil.GatherAndCompare(r.reg, strings.NewReader(want), "sluice_jobs_depth")
	})
}

// A queue that is empty has series that say 0: an alert on series that vanish would say
// nothing. Queues are those that are worked, and those that have jobs.
func TestTheDepthOfAnEmptyQueueIsNought(t *testing.T) {
	r := start(t)
	r.depthBecomes(nil, river.QueueDefault, "fast_default", "slow_default")
	later, err := r.client.Insert(context.Background(), task{User: "ann"}, &river.InsertOpts{Queue: "nobodys", ScheduledAt: time.Now().Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	r.depthBecomes(map[string]int{"nobodys scheduled": 1}, river.QueueDefault, "fast_default", "nobodys", "slow_default")
	// Nobody works it, so that it is known by its job alone.
	if _, err := r.client.JobDelete(context.Background(), later.Job.ID); err != nil {
		t.Fatal(err)
	}
	r.depthBecomes(nil, river.QueueDefault, "fast_default", "slow_default")
}
