package riverqos

import (
	"context"

	"github.com/riverqueue/river"

	"github.com/sluice-qos/sluice/pkg/jobs"
)

// Route says which of a service's queues a job of a user goes to, for River's Insert:
// that of the user's tier, or the one for jobs that a scheduler starts, of any user; or one
// that only workers which are dedicated to the tier or the user take. "" is no user.
func (f *Fairness) Route(ctx context.Context, user, service string, scheduled bool) *river.InsertOpts {
	var tier jobs.Tier
	if user != "" {
		tier = f.runner.Budget().Tier(ctx, jobs.UserKey(user))
	}
	return &river.InsertOpts{Queue: jobs.SelectQueue(service, tier, scheduled)}
}

// QueueConfigs are River's, for river.Config, of the queues that have workers here.
func QueueConfigs(queues jobs.Queues) map[string]river.QueueConfig {
	configs := map[string]river.QueueConfig{}
	for name, workers := range queues.Workers() {
		configs[name] = river.QueueConfig{MaxWorkers: workers}
	}
	return configs
}

func service(queue string) string {
	name, _ := jobs.Split(queue)
	return name
}
