package redisbus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sluice-qos/sluice/pkg/concurrency"
)

// Slotted is the answer to a batch of asks for slots.
type Slotted struct {
	Grants []concurrency.Grant // of each ask, in their order
	Now    time.Time           // Redis' clock when it answered, to the microsecond
}

// Slots answers asks from the pools in Redis as concurrency.Take would, one
// after the other, all in one round trip. The instances that are live are those that the
// shard has heard (see Alive), or the given number if that is more. Where an ask leaves less than
// three tenths of the limit, the instances that are gone are dropped from the user's pool before: those
// that the shard has heard before, but that have neither called Alive nor asked lately; of whom it has
// never heard, those that have not asked for 30 s. The
// instance itself is never gone. A field that is as old as the pool's time to live does not
// count, whose ever it is. An ask that is newer than the one before is
// published when its user is near the limit, see Progress.
//
// Of the asks of a failed call, all, some or none may have been heard. An ask
// without a user, with a count below 0 or above 10^12, with a limit below 1 or
// with a Seq that is 0 or not below 2^53 fails the call before anything is sent.
// A limit above 2^52 counts as 2^52.
func (b *Bus) Slots(ctx context.Context, instance string, instances int, asks []concurrency.Ask) (Slotted, error) {
	if len(asks) == 0 {
		return Slotted{}, nil
	}
	// Before anything is sent: an error in the caller must not leave some asks of a batch counted and others not.
	for _, a := range asks {
		if err := validateSlots(a); err != nil {
			return Slotted{}, fmt.Errorf("ask for slots: %w", err)
		}
	}
	batches := b.divideSlots(asks)
	slotted := Slotted{Grants: make([]concurrency.Grant, len(asks))}
	err := b.callRedis(ctx, "slots", "ask for slots", func(ctx context.Context) error {
		calls := make([]call, len(batches))
		for i, batch := range batches {
			calls[i] = batch.scriptCall(b.reportTo(ProgressChannel, batch.shard), instance, instances, asks)
		}
		replies, err := b.evalScripts(ctx, calls...)
		if err != nil {
			return err
		}
		for i, batch := range batches {
			if slotted.Now, err = batch.readReply(replies[i], slotted.Grants); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return Slotted{}, err
	}
	return slotted, nil
}

func validateSlots(a concurrency.Ask) error {
	switch {
	case a.User == "":
		return errors.New("no user")
	case a.Limit < 1:
		return fmt.Errorf("limit %d is below 1", a.Limit)
	// Lua's numbers are float64, and not exact from 2^53 on: an ask could look older than the one before.
	case a.Seq == 0 || a.Seq >= 1<<53:
		return fmt.Errorf("sequence number %d is not from 1 to %d", a.Seq, 1<<53-1)
	}
	// Below 0 a pool would hand out more than its limit.
	for _, n := range [...]int{a.Want, a.Active, a.Refused, a.Portion} {
		if n < 0 || n > maxCount {
			return fmt.Errorf("count %d is not from 0 to %d", n, maxCount)
		}
	}
	return nil
}

// A slotBatch is what one call of the script gets: asks of one shard.
type slotBatch struct {
	shard int
	asks  []int // indices
}

func (b *Bus) divideSlots(asks []concurrency.Ask) []*slotBatch {
	// The asks of a user stay in their order: a shard's batches are sent in the order in which they were opened.
	var batches []*slotBatch
	open := make(map[int]*slotBatch, 1) // by shard
	for i, a := range asks {
		shard := b.ShardOf(a.User)
		current := open[shard]
		// Redis serves nobody else while a script runs.
		if current == nil || len(current.asks) == maxAsks {
			current = &slotBatch{shard: shard}
			open[shard] = current
			batches = append(batches, current)
		}
		current.asks = append(current.asks, i)
	}
	return batches
}

func (c *slotBatch) scriptCall(to reportChannel, instance string, instances int, asks []concurrency.Ask) call {
	prefix := slotsPrefix(c.shard)
	keys := make([]string, 0, 1+len(c.asks))
	keys = append(keys, aliveKey(c.shard))
	// An instance that holds no slots here tells the shard more seldom, by AliveEvery, and its portion is reserved for as
	// much longer.
	args := make([]any, 0, 10+6*len(c.asks))
	args = append(args, instance, string(appendText([]byte(wireVersion+" "), instance)), len(prefix)+1,
		int64(slotsTTL/time.Second), slotsFresh.Milliseconds(),
		instances, aliveTimeout.Milliseconds(), (aliveTimeout + AliveEvery(instances) - heldAliveEvery).Milliseconds(), to.command, to.name)
	for _, ask := range c.asks {
		a := &asks[ask]
		keys = append(keys, prefix+a.User)
		args = append(args, a.Want, a.Active, a.Seq, a.Refused, min(a.Limit, maxLimit), a.Portion)
	}
	return call{script: slotsScript, keys: keys, args: args}
}

func (c *slotBatch) readReply(reply any, grants []concurrency.Grant) (time.Time, error) {
	values, ok := reply.([]any)
	// Counted before anything is taken: a grant in the place of another would be somebody else's slots.
	if !ok || len(values) != 2+2*len(c.asks) {
		return time.Time{}, &replyError{reply}
	}
	now, ok := readTime(values)
	values = values[2:]
	for _, ask := range c.asks {
		held, ok1 := values[0].(int64)
		free, ok2 := values[1].(int64)
		ok = ok && ok1 && ok2
		grants[ask] = concurrency.Grant{Held: int(held), Free: int(free)}
		values = values[2:]
	}
	if !ok {
		return time.Time{}, &replyError{reply}
	}
	return now, nil
}
