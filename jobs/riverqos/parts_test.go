package riverqos

import (
	"context"
	"log/slog"
	"time"

	"github.com/sluice-qos/sluice/pkg/jobs"
)

// oneAtATime are Tiers in which each user may run one job.
type oneAtATime struct{}

func (oneAtATime) Tier(context.Context, string) (jobs.Tier, error) {
	return jobs.Tier{Name: "free", Limits: jobs.Limits{Total: 1}}, nil
}

// sharedOf are resources without a database.
func sharedOf(slots jobs.Slots) *resources {
	metrics, log := newMetrics(nil), slog.New(slog.DiscardHandler)
	failures := &failureLog{log: log, metrics: metrics}
	return &resources{
		cfg:      Config{Slots: slots, Lease: 15 * time.Second, Reserve: 5 * time.Second, Logger: log, Ungated: true},
		names:    "app",
		tiers:    &tierReader{tiers: oneAtATime{}, failures: failures, timeout: tierTimeout},
		failures: failures,
		metrics:  metrics,
	}
}

func claimOf(user, job, holder string) jobs.Claim {
	return jobs.Claim{Job: jobs.Job{User: user, ID: job, Queue: "slow"}, Holder: holder}
}
