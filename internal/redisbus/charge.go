package redisbus

import (
	"context"
	"fmt"
	"time"

	"github.com/sluice-qos/sluice/pkg/cost"
	"github.com/sluice-qos/sluice/pkg/limits"
)

// Charged is the answer to a batch of asks of costs.
type Charged struct {
	Grants []cost.Grant // of each ask, in their order
	Now    time.Time    // Redis' clock when it answered, to the microsecond
}

// costPrefix is what a unit has in front where usage names a class: no class has it. The script
// writes it.
const costPrefix = "$"

// Charge answers asks from the pools of costs in Redis as cost.Pools.Take would, one after the
// other, in one call of a script. Pools are published as usage (see CostUnit) when they begin
// and when they pass another 32nd of the limit.
//
// The asks are of users of one shard, and of one batch, whose number, Seq, is at least 1 and
// grows with each batch of this Bus and instance and shard. A batch whose call failed may be
// counted, or be counted later: a Redis that was stopped goes on with what it was sent. It may
// be sent again with the same asks: each counts once, and is granted or not as it was then;
// the totals are those of now. Redis remembers the number for an hour.
//
// An ask that cannot be fails the call before anything is sent.
func (b *Bus) Charge(ctx context.Context, instance string, asks []cost.Ask) (Charged, error) {
	if len(asks) == 0 {
		return Charged{}, nil
	}
	shard := b.ShardOf(asks[0].User)
	if err := b.validateCharges(shard, asks); err != nil {
		return Charged{}, fmt.Errorf("charge costs: %w", err)
	}
	var charged Charged
	err := b.callRedis(ctx, "charge", "charge costs", func(ctx context.Context) error {
		replies, err := b.evalScripts(ctx, b.chargeCall(shard, instance, asks))
		if err != nil {
			return err
		}
		charged, err = readCharged(replies[0], asks)
		return err
	})
	return charged, err
}

func (b *Bus) validateCharges(shard int, asks []cost.Ask) error {
	if len(asks) > cost.MaxBatch {
		return fmt.Errorf("%d asks at a time, of at most %d", len(asks), cost.MaxBatch)
	}
	for _, a := range asks {
		// The script remembers one number, in a key of one shard.
		if a.Seq == 0 || a.Seq != asks[0].Seq || a.Seq > maxSeq {
			return fmt.Errorf("batch %d in batch %d, of 1 to %d", a.Seq, asks[0].Seq, uint64(maxSeq))
		}
		if b.ShardOf(a.User) != shard {
			return fmt.Errorf("users of several shards")
		}
		if len(a.Entries) > limits.MaxCosts {
			return fmt.Errorf("%d entries, of at most %d", len(a.Entries), limits.MaxCosts)
		}
		for _, e := range a.Entries {
			if err := validateEntry(a, e); err != nil {
				return err
			}
		}
	}
	return nil
}

func validateEntry(a cost.Ask, e cost.Entry) error {
	lowest := int64(0)
	if a.Forced {
		lowest = -limits.MaxCost
	}
	switch {
	// The bar divides a field into unit and user: with one in a unit, two pools could have one field.
	case !ValidClass(e.Unit):
		return fmt.Errorf("unit %.40q holds '|', '/' or a control byte", e.Unit)
	// Above it Lua does not count exactly.
	case e.Limit < 1 || e.Limit > limits.MaxCost:
		return fmt.Errorf("limit %d is not from 1 to %d", e.Limit, int64(limits.MaxCost))
	case e.Change < lowest || e.Change > limits.MaxCost:
		return fmt.Errorf("change %d is not from %d to %d", e.Change, lowest, int64(limits.MaxCost))
	}
	return nil
}

type costHash struct {
	window limits.Window
	part   int
	start  int64
	before int64 // when the window before begins
}

func (b *Bus) chargeCall(shard int, instance string, asks []cost.Ask) call {
	numbers := map[costHash]int{}
	keys := []string{heardKey(shard, "charge", instance, b.session)}
	var windows, entries []any
	for _, a := range asks {
		entries = append(entries, len(a.Entries), a.Forced)
		for _, e := range a.Entries {
			h := costHash{e.Window, partOf(a.User, e.Window), e.Start, e.Before}
			number, known := numbers[h]
			if !known {
				number = len(numbers) + 1
				numbers[h] = number
				keys = append(keys, costKey(shard, h.part, h.window, h.start), costKey(shard, h.part, h.window, h.before))
				windows = append(windows, h.start, h.window.Seconds(), limits.RateName("", h.window))
			}
			entries = append(entries, number, costField(e.Unit, a.User), e.Change, e.Limit, e.DryRun)
		}
	}
	to := b.reportTo(UsageChannel, shard)
	args := []any{usageHead(instance), to.command, to.name, asks[0].Seq, int64(heardTTL / time.Second), int64(requestsSpare / time.Second), len(numbers)}
	return call{script: chargeScript, keys: keys, args: append(append(args, windows...), entries...)}
}

// costField is the field of a user's pool in its hash.
func costField(unit, user string) string { return unit + "|" + user }

func readCharged(reply any, asks []cost.Ask) (Charged, error) {
	values, ok := reply.([]any)
	length := 2
	for _, a := range asks {
		length += 1 + len(a.Entries)
	}
	// Counted before anything is taken: an answer in the place of another would be somebody else's.
	if !ok || len(values) != length {
		return Charged{}, &replyError{reply}
	}
	now, ok := readTime(values)
	c := Charged{Grants: make([]cost.Grant, len(asks)), Now: now}
	values = values[2:]
	for i, a := range asks {
		totals := make([]int64, 1+len(a.Entries))
		for k := range totals {
			n, is := values[k].(int64)
			totals[k], ok = n, ok && is
		}
		c.Grants[i] = cost.Grant{Granted: totals[0] == 1, Totals: totals[1:]}
		values = values[len(totals):]
	}
	if !ok {
		return Charged{}, &replyError{reply}
	}
	return c, nil
}
