package jobs

import (
	"context"
	"maps"
	"time"
)

// tierReader asks for the tiers of users. An error has been dealt with when a method
// returns: there always is a usable tier.
type tierReader struct {
	tiers    Tiers
	failures *failureLog
}

// inForce names what the tiers are now, for those that say it (see FileTiers.InForce).
func (r *tierReader) inForce() string {
	if tiers, ok := r.tiers.(interface{ InForce() string }); ok {
		return tiers.InForce()
	}
	return ""
}

// usable raises limits below 1, which no Slots take: jobs are never rejected.
func usable(tier Tier) Tier {
	tier.Limits.Total = max(tier.Limits.Total, 1)
	// Zero is none.
	if tier.Limits.EachQueue < 0 {
		tier.Limits.EachQueue = 1
	}
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

// TierBudget asks for the tiers of several users. Only failures spend its time, so that
// many users whose tiers come slowly have theirs all the same. When it is spent, questions
// fail that are not answered at once.
type TierBudget struct {
	reader *tierReader
	left   time.Duration
}

func (r *tierReader) budget(timeout time.Duration) *TierBudget { return &TierBudget{r, timeout} }

// Tier returns the tier of the user with this key. An error is logged and counted; what comes
// then is the best that is known. Each limit is at least 1.
func (b *TierBudget) Tier(ctx context.Context, user string) Tier {
	tier, _ := b.askTier(ctx, user)
	return tier
}

// askTier is Tier, and reports whether the Tiers answered without an error.
func (b *TierBudget) askTier(ctx context.Context, user string) (tier Tier, ok bool) {
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
