package bus

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/sluice-qos/sluice/internal/policy"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

// Taken is the answer to a batch of asks.
type Taken struct {
	Grants []ratelimit.Grant // of each ask, in their order
	Now    time.Time         // Redis' clock when it answered, to the microsecond
}

const (
	// maxCount and maxLimit bound the numbers of an ask, so that Lua's, which are
	// float64, stay exact.
	maxCount = 1_000_000_000_000
	maxLimit = 1 << 52

	// maxAsks is how many asks one call of the script gets at most. It keeps
	// other clients from waiting long behind a large batch.
	maxAsks = 256
)

// Take answers asks from the pools in Redis as ratelimit.Take would, one after
// the other, and publishes the totals that changed, all in one round trip. Asks
// may be of different seconds. An ask of only zeros reads the pool's total.
//
// Of the asks of a failed call, all, some or none may have been counted. An ask
// whose class is not policy.ValidClass, or that counts below 0 or above 10^12,
// fails the call before anything is sent. A limit above 2^52 is that.
func (b *Bus) Take(ctx context.Context, instance string, asks []ratelimit.Ask) (Taken, error) {
	if len(asks) == 0 {
		return Taken{}, nil
	}
	for _, a := range asks {
		if err := validate(a); err != nil {
			return Taken{}, fmt.Errorf("take tokens: %w", err)
		}
	}
	batches := b.divide(asks)
	taken := Taken{Grants: make([]ratelimit.Grant, len(asks))}
	err := b.do(ctx, "take", "take tokens", func(ctx context.Context) error {
		calls := make([]call, len(batches))
		for i, batch := range batches {
			calls[i] = batch.call(instance, asks)
		}
		replies, err := b.eval(ctx, calls...)
		if err != nil {
			return err
		}
		for i, batch := range batches {
			if taken.Now, err = batch.read(replies[i], taken.Grants); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return Taken{}, err
	}
	return taken, nil
}

func validate(a ratelimit.Ask) error {
	if !policy.ValidClass(a.Key.Class) {
		return fmt.Errorf("class %.40q holds '|' or a control byte", a.Key.Class)
	}
	for _, n := range [...]int{a.Debt, a.Back, a.Need, a.Ahead, a.Instances} {
		if n < 0 || n > maxCount {
			return fmt.Errorf("count %d is not from 0 to %d", n, maxCount)
		}
	}
	return nil
}

// A batch is what one call of the script gets: asks of one shard, by second.
type batch struct {
	shard   int
	asks    int
	seconds []second
}

type second struct {
	second int64
	asks   []int // indices
}

// divide keeps the order of the asks of each key: all of them are in one second
// of one shard, and a shard's batches are sent in order.
func (b *Bus) divide(asks []ratelimit.Ask) []*batch {
	var batches []*batch
	open := make(map[int]*batch, 1) // by shard
	for i, a := range asks {
		shard := b.shardOf(a.Key.User)
		current := open[shard]
		if current == nil || current.asks == maxAsks {
			current = &batch{shard: shard}
			open[shard] = current
			batches = append(batches, current)
		}
		current.add(a.Second, i)
	}
	return batches
}

func (c *batch) add(of int64, ask int) {
	c.asks++
	for i := range c.seconds {
		if c.seconds[i].second == of {
			c.seconds[i].asks = append(c.seconds[i].asks, ask)
			return
		}
	}
	c.seconds = append(c.seconds, second{second: of, asks: []int{ask}})
}

// call has the keys and arguments that scripts/take.lua describes.
func (c *batch) call(instance string, asks []ratelimit.Ask) call {
	keys := make([]string, len(c.seconds))
	args := make([]any, 0, 2+2*len(c.seconds)+6*c.asks)
	args = append(args, string(appendText([]byte(wireVersion+" "), instance)), int64(requestsTTL/time.Second))
	for i, s := range c.seconds {
		keys[i] = requestsKey(c.shard, s.second)
		args = append(args, len(s.asks), nil)
		usage := strconv.AppendInt(nil, s.second, 10)
		usage = strconv.AppendInt(append(usage, ' '), int64(len(s.asks)), 10)
		usageAt := len(args) - 1
		for _, ask := range s.asks {
			field := asks[ask].Key.Class + "|" + asks[ask].Key.User
			args = append(args, field)
			usage = appendText(append(usage, ' '), field)
		}
		args[usageAt] = usage
		for _, ask := range s.asks {
			a := &asks[ask]
			args = append(args, a.Debt-a.Back, a.Need, a.Ahead, min(a.Limit, maxLimit), max(1, a.Instances))
		}
	}
	return call{script: takeScript, keys: keys, args: args}
}

// read puts a reply's grants into the places of their asks.
func (c *batch) read(reply any, grants []ratelimit.Grant) (time.Time, error) {
	values, ok := reply.([]any)
	if !ok || len(values) != 2+2*c.asks {
		return time.Time{}, &replyError{reply}
	}
	now, ok := readTime(values)
	values = values[2:]
	for _, s := range c.seconds {
		for _, ask := range s.asks {
			tokens, ok1 := values[0].(int64)
			total, ok2 := values[1].(int64)
			ok = ok && ok1 && ok2
			grants[ask] = ratelimit.Grant{Tokens: int(tokens), Total: int(total)}
			values = values[2:]
		}
	}
	if !ok {
		return time.Time{}, &replyError{reply}
	}
	return now, nil
}

// readTime reads the seconds and microseconds that Redis' TIME begins a reply with.
func readTime(values []any) (time.Time, bool) {
	sec, ok1 := values[0].(string)
	micro, ok2 := values[1].(string)
	s, err1 := strconv.ParseInt(sec, 10, 64)
	us, err2 := strconv.ParseInt(micro, 10, 64)
	return time.Unix(s, us*1000).UTC(), ok1 && ok2 && err1 == nil && err2 == nil
}
