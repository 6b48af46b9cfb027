package redisbus

import (
	"context"
	"fmt"
	"time"
)

// Leader is a polygen that leads, or would.
type Leader struct {
	Name    string // no other's; "" for none
	Address string // where other polygens reach its admin API, as a URL
}

// Lead asks for the lead, or to keep it, for a time from now, and returns the polygen that leads after that. If calls come
// every quarter of the time, three may be lost. A polygen whose Lead has not succeeded for so long must assume that it was
// replaced. Lead fails with ErrShards while processes with another number of shards are there.
func (b *Bus) Lead(ctx context.Context, candidate Leader, span time.Duration) (Leader, error) {
	// Redis counts in milliseconds, and refuses a time to live of none.
	if span < time.Millisecond {
		return Leader{}, fmt.Errorf("lead: %v is below a millisecond", span)
	}
	return b.changeLead(ctx, "lead", candidate.Name, b.shards, span.Milliseconds(), shardsTTL.Milliseconds(), candidate.Address)
}

// Resign ends a polygen's lead at once.
func (b *Bus) Resign(ctx context.Context, name string) error {
	_, err := b.changeLead(ctx, "resign", name, b.shards)
	return err
}

func (b *Bus) changeLead(ctx context.Context, action string, args ...any) (leader Leader, err error) {
	err = b.callRedis(ctx, action, action, func(ctx context.Context) error {
		replies, err := b.evalScripts(ctx, call{script: leadScript, keys: []string{leaderKey, shardsKey}, args: append([]any{action}, args...)})
		if err != nil {
			return err
		}
		reply, ok := replies[0].([]any)
		if !ok || len(reply) == 0 {
			return &replyError{replies[0]}
		}
		// Nothing was done then, and the reply ends here.
		if err := b.checkShards(reply[0]); err != nil {
			return err
		}
		texts, ok := readTexts(reply)
		if !ok || len(texts) != 3 {
			return &replyError{reply}
		}
		leader = Leader{Name: texts[1], Address: texts[2]}
		return nil
	})
	return leader, err
}
