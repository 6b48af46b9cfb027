package riverqos

import (
	"context"
	"maps"
	"time"

	"github.com/sluice-qos/sluice/pkg/jobs"
)

// tierTimeout bounds how long an insert, or a page of a sweep, waits for Tiers that do not
// answer. A worker is more patient: see acquireTimeout.
const tierTimeout = 2 * time.Second

// tierReader asks for the tiers of users. An error has been dealt with when a method
// returns: there always is a usable tier.
type tierReader struct {
	tiers    jobs.Tiers
	failures *failureLog
	timeout  time.Duration // tierTimeout, but in tests
}

// inForce names what the tiers are now, for those that say it (see jobs.FileTiers).
func (r *tierReader) inForce() string {
	if tiers, ok := r.tiers.(interface{ InForce() string }); ok {
		return tiers.InForce()
	}
	return ""
}

// usable raises limits below 1, which no Slots take: jobs are never rejected.
func usable(tier jobs.Tier) jobs.Tier {
	tier.Limits.Total = max(tier.Limits.Total, 1)
	queues := tier.Limits.Queues
	for queue, limit := range queues {
		if limit < 1 {
			// The Tiers' own is shared with other jobs of the tier.
			tier.Limits.Queues = maps.Clone(tier.Limits.Queues)
			tier.Limits.Queues[queue] = 1
		}
	}
	return tier
}

// tierBudget asks for the tiers of several users. Only failures spend its time, so that
// many users whose tiers come slowly have theirs all the same. When it is spent, questions
// fail that are not answered at once.
type tierBudget struct {
	reader *tierReader
	left   time.Duration
}

func (r *tierReader) budget() *tierBudget { return &tierBudget{r, r.timeout} }

// tierOf returns the tier of a user.
func (b *tierBudget) tierOf(ctx context.Context, user string) jobs.Tier {
	tier, _ := b.askTier(ctx, user)
	return tier
}

// askTier is tierOf, and reports whether the Tiers answered without an error.
func (b *tierBudget) askTier(ctx context.Context, user string) (tier jobs.Tier, ok bool) {
	ctx, cancel := context.WithTimeout(ctx, b.left)
	defer cancel()
	began := time.Now()
	tier, err := b.reader.tiers.Tier(ctx, user)
	// However slow: a database that answers late still answers.
	if err == nil {
		return usable(tier), true
	}
	b.reader.failures.report("tier", "the tier of a user could not be found", err)
	// A clock that was read before or after the timer's would leave a rest.
	if b.left -= time.Since(began); ctx.Err() != nil {
		b.left = 0
	}
	return usable(tier), false
}

// sizesOf returns the sizes of several flows, within one budget.
func (r *tierReader) sizesOf(ctx context.Context, flows []flow) []sizedFlow {
	budget := r.budget()
	sized := make([]sizedFlow, len(flows))
	for i, flow := range flows {
		sized[i] = sizedFlow{flow, budget.sizeOf(ctx, flow)}
	}
	return sized
}

// sizeOf returns how many of a flow's jobs may be available or running at a time.
func (b *tierBudget) sizeOf(ctx context.Context, flow flow) int {
	return b.tierOf(ctx, flow.User).Limits.Of(service(flow.Queue))
}
