package redisbus

import (
	"context"
	"errors"
	"iter"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-qos/sluice/pkg/cost"
	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

// Charges reads what a user was charged of some limits, in their windows of a second and in
// the ones before. What is not among them has not begun.
func (b *Bus) Charges(ctx context.Context, user string, of iter.Seq[limits.Cost], second int64) (cost.Pools, error) {
	pools := cost.Pools{}
	err := b.callRedis(ctx, "charges", "read costs", func(ctx context.Context) error {
		pipe, shard := b.client.Pipeline(), b.ShardOf(user)
		read := map[cost.Pool]*redis.StringCmd{}
		for c := range of {
			for _, start := range [...]int64{c.WindowStart(second), c.Previous(second)} {
				p := cost.Pool{User: user, Unit: c.Unit, Window: c.Window, Start: start}
				read[p] = pipe.HGet(ctx, costKey(shard, partOf(user, c.Window), c.Window, start), costField(c.Unit, user))
			}
		}
		// An empty pipeline is no call.
		if len(read) == 0 {
			return nil
		}
		// Of a pool that has not begun the error is that there is none.
		if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
			return err
		}
		for p, text := range read {
			if errors.Is(text.Err(), redis.Nil) {
				continue
			}
			if text.Err() != nil {
				return text.Err()
			}
			total, ok := decodeCharged(text.Val())
			if !ok {
				return &replyError{text.Val()}
			}
			pools[p] = total
		}
		return nil
	})
	return pools, err
}

// Totals reads how many requests of a user the pools of some limits have handed out, in their windows of a second and in the
// ones before. Seconds are not among them.
func (b *Bus) Totals(ctx context.Context, user string, of iter.Seq[limits.Rate], second int64) ([]UsageEntry, error) {
	var all []UsageEntry
	for r := range of {
		if r.Window == limits.Second {
			continue
		}
		begin, _ := r.Bounds(second)
		for _, start := range [...]int64{r.Calendar.Previous(r.Window, second), begin} {
			all = append(all, UsageEntry{Second: start, Key: ratelimit.Key{Class: r.Class, User: user, Window: r.Window}})
		}
	}
	// An empty pipeline is no call.
	if len(all) == 0 {
		return nil, nil
	}
	err := b.callRedis(ctx, "totals", "read totals", func(ctx context.Context) error {
		pipe, shard := b.client.Pipeline(), b.ShardOf(user)
		read := make([]*redis.StringCmd, len(all))
		for i, e := range all {
			read[i] = pipe.HGet(ctx, requestsKey(shard, partOf(user, e.Key.Window), e.Key.Window, e.Second), fieldOf(e.Key))
		}
		if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
			return err
		}
		for i, text := range read {
			n, err := text.Int()
			// A pool that is not there has handed out nothing.
			if err != nil && !errors.Is(err, redis.Nil) {
				return &replyError{text.Val()}
			}
			all[i].Total = n
		}
		return nil
	})
	return all, err
}

func decodeCharged(text string) (total cost.Total, ok bool) {
	w := words{rest: text}
	total = cost.Total{Charged: w.takeNumber(), Due: w.takeNumber()}
	return total, w.err == nil && w.rest == ""
}
