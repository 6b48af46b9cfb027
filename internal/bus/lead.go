package bus

import (
	"context"
	"fmt"
	"time"
)

// Lead asks to become the one polygen that decides, or to remain it, for ttl from now. If
// calls come every third of ttl, two may be lost. A leader whose Lead has not succeeded
// for ttl must assume that it was replaced. It fails with ErrShards while processes with
// another number of shards are there.
func (b *Bus) Lead(ctx context.Context, candidate string, ttl time.Duration) (leader bool, err error) {
	if ttl < time.Millisecond {
		return false, fmt.Errorf("lead: ttl %v is below a millisecond", ttl)
	}
	return b.changeLead(ctx, "lead", candidate, ttl)
}

// Resign ends a candidate's leadership at once. It changes nothing when another
// one leads.
func (b *Bus) Resign(ctx context.Context, candidate string) error {
	_, err := b.changeLead(ctx, "resign", candidate, 0)
	return err
}

func (b *Bus) changeLead(ctx context.Context, action, candidate string, ttl time.Duration) (leader bool, err error) {
	err = b.callRedis(ctx, action, action, func(ctx context.Context) error {
		replies, err := b.evalScripts(ctx, call{
			script: leadScript,
			keys:   []string{leaderKey, shardsKey},
			args:   []any{action, candidate, b.shards, ttl.Milliseconds(), shardsTTL.Milliseconds()},
		})
		if err != nil {
			return err
		}
		reply, ok := replies[0].([]any)
		if !ok || len(reply) != 2 {
			return &replyError{replies[0]}
		}
		leader = reply[1] == int64(1)
		return b.checkShards(reply[0])
	})
	return leader && err == nil, err
}
