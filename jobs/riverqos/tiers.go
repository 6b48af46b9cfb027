package riverqos

import (
	"context"

	"github.com/sluice-qos/sluice/pkg/jobs"
)

// sizesOf returns the sizes of several flows, within one budget.
func (r *resources) sizesOf(ctx context.Context, flows []flow) []sizedFlow {
	budget := r.runner.Budget()
	sized := make([]sizedFlow, len(flows))
	for i, flow := range flows {
		sized[i] = sizedFlow{flow, sizeOf(budget.Tier(ctx, flow.User), flow)}
	}
	return sized
}

// sizeOf returns how many of a flow's jobs may be available or running at a time.
func sizeOf(tier jobs.Tier, flow flow) int { return tier.Limits.Of(service(flow.Queue)) }
