package redisbus

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/sluice-qos/sluice/pkg/limits"
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

	// maxAsks is how many asks one call of the script gets at most. Redis serves nobody
	// else while a script runs, so a large batch is divided.
	maxAsks = 256

	// maxCalls and maxSeq keep a call's number, which is the batch's times maxCalls plus its
	// place in the batch, below 2^53.
	maxCalls = 1 << 13
	maxSeq   = 1<<40 - 1
)

// Take answers asks from the pools in Redis as ratelimit.Take would, and those
// with a burst as ratelimit.Account.Take at Redis' time, one after the other, all in one
// round trip. Totals of at least half of the limit and the burst are published when they
// change, and when they leave less than an ask with Untold needs. Of windows longer than a
// second, whose use polygen cannot add up, they also are when they begin, and when they pass
// another 32nd of the limit. Asks may be of different windows and seconds. An ask of only
// zeros reads the pool's total.
//
// Of the asks of a failed call, all, some or none may have been counted, or may be
// later: a Redis that was stopped goes on with what it was sent. So the asks of one
// call have the number of their batch, Seq, which grows with each batch of this Bus and
// instance. A batch that failed may be sent again, with the asks in the same order: each
// counts once, and one that was counted before is granted nothing. Redis remembers the
// numbers for an hour. Asks with the number 0 are of no batch.
//
// A call waits for all masters of a Redis Cluster that it asks, and fails if one of them does: so
// agents ask for the users of one shard at a time.
//
// An ask whose class is not policy.ValidClass, that counts below 0 or above 10^12, or that
// has a burst over more than a second, fails the call before anything is sent. A limit or
// burst above 2^52 counts as 2^52.
func (b *Bus) Take(ctx context.Context, instance string, asks []ratelimit.Ask) (Taken, error) {
	if len(asks) == 0 {
		return Taken{}, nil
	}
	// Before anything is sent: an error in the caller must not leave some asks of a batch counted and others not.
	for _, a := range asks {
		if err := validate(a); err != nil {
			return Taken{}, fmt.Errorf("take tokens: %w", err)
		}
		// Scripts remember one number for all asks of a call.
		if a.Seq != asks[0].Seq || a.Seq > maxSeq {
			return Taken{}, fmt.Errorf("take tokens: batch %d in batch %d, of at most %d", a.Seq, asks[0].Seq, uint64(maxSeq))
		}
	}
	batches := b.divide(asks)
	// The numbers of the calls of one batch must not reach those of the next, which would count as heard.
	if len(batches) > maxCalls {
		return Taken{}, fmt.Errorf("take tokens: %d calls at a time, of at most %d", len(batches), maxCalls)
	}
	taken := Taken{Grants: make([]ratelimit.Grant, len(asks))}
	err := b.callRedis(ctx, "take", "take tokens", func(ctx context.Context) error {
		calls := make([]call, len(batches))
		for i, batch := range batches {
			// The same asks in the same order are divided into the same calls, so a batch that is sent again has the same
			// numbers.
			if asks[0].Seq > 0 {
				batch.number = int64(asks[0].Seq*maxCalls) + int64(i)
				batch.last = heardKey(batch.shard, batch.name(), instance, b.session)
			}
			calls[i] = batch.scriptCall(b.reportTo(UsageChannel, batch.shard), instance, asks)
		}
		replies, err := b.evalScripts(ctx, calls...)
		if err != nil {
			return err
		}
		for i, batch := range batches {
			if taken.Now, err = batch.readReply(replies[i], taken.Grants); err != nil {
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
	// The bar and the slash divide a field into limit and user: with one in a class, two keys could have one field.
	if !ValidClass(a.Key.Class) {
		return fmt.Errorf("class %.40q holds '|', '/' or a control byte", a.Key.Class)
	}
	// An account is filled each second: it has no other window.
	if a.Burst != 0 && a.Key.Window != limits.Second {
		return fmt.Errorf("burst in a window of one %s", a.Key.Window)
	}
	if a.Burst < 0 {
		return fmt.Errorf("burst %d is negative", a.Burst)
	}
	// Below 0 a pool would hand out more than its limit, and above it Lua does not count exactly.
	for _, n := range [...]int{a.Debt, a.Back, a.Need, a.Ahead, a.Instances, a.Reserve} {
		if n < 0 || n > maxCount {
			return fmt.Errorf("count %d is not from 0 to %d", n, maxCount)
		}
	}
	return nil
}

// A batch is what one call of a script gets: asks of one shard, either all with bursts or
// all without, by the hash that their pools are in.
type batch struct {
	batchKind
	asks   int
	hashes []hash
	number int64  // of the call; 0: it is not remembered
	last   string // the key of the last call's number
}

type batchKind struct {
	shard int
	burst bool
}

func (k batchKind) name() string {
	if k.burst {
		return "burst"
	}
	return "take"
}

// A hash holds the pools of a part of the users in one window. Accounts of bursts have
// keys of their own; the asks of a batch with bursts share one hash without a name.
type hash struct {
	hashName
	asks []int // indices
}

type hashName struct {
	second int64
	window limits.Window
	part   int
}

func (b *Bus) divide(asks []ratelimit.Ask) []*batch {
	// The asks of a key stay in their order: all of them are in one hash of one shard, and a shard's batches are sent in
	// the order in which they were opened.
	var batches []*batch
	open := make(map[batchKind]*batch, 1)
	for i := range asks {
		a := &asks[i]
		// An account is another type of key than a pool, with a script of its own.
		kind := batchKind{shard: b.ShardOf(a.Key.User), burst: a.Burst > 0}
		current := open[kind]
		if current == nil || current.asks == maxAsks {
			current = &batch{batchKind: kind}
			open[kind] = current
			batches = append(batches, current)
		}
		if kind.burst {
			current.addAsk(hashName{}, i)
		} else {
			current.addAsk(hashName{second: a.WindowStart, window: a.Key.Window, part: partOf(a.Key.User, a.Key.Window)}, i)
		}
	}
	return batches
}

func (c *batch) addAsk(of hashName, ask int) {
	c.asks++
	// There are two of them where limits are per second: this second and the next one. A map would cost more.
	for i := range c.hashes {
		if c.hashes[i].hashName == of {
			c.hashes[i].asks = append(c.hashes[i].asks, ask)
			return
		}
	}
	c.hashes = append(c.hashes, hash{hashName: of, asks: []int{ask}})
}

// usageHead begins an instance's usage messages; the scripts put Redis' time behind it.
func usageHead(instance string) string {
	return string(appendText([]byte(wireVersion+" "), instance))
}

func (c *batch) scriptCall(to reportChannel, instance string, asks []ratelimit.Ask) call {
	if c.burst {
		return c.burstCall(to, instance, asks)
	}
	return c.takeCall(to, instance, asks)
}

func (c *batch) burstCall(to reportChannel, instance string, asks []ratelimit.Ask) call {
	keys := make([]string, 0, c.asks+1)
	args := make([]any, 0, 5+10*c.asks)
	args = append(args, usageHead(instance), to.command, to.name, c.number, int64(heardTTL/time.Second))
	for _, ask := range c.hashes[0].asks {
		a := &asks[ask]
		field := fieldOf(a.Key)
		keys = append(keys, burstKey(c.shard, field))
		usage := appendText(append(strconv.AppendInt(nil, a.WindowStart, 10), " 1 "...), field)
		// Debt and what comes back stand apart: of a second that is over only the debt counts.
		args = append(args, a.WindowStart, usage, a.Debt, a.Back, a.Need, a.Ahead,
			min(a.Limit, maxLimit), min(a.Burst, maxLimit), max(1, a.Instances), a.Untold)
	}
	return call{script: burstScript, keys: c.withLast(keys), args: args}
}

func (c *batch) takeCall(to reportChannel, instance string, asks []ratelimit.Ask) call {
	keys := make([]string, len(c.hashes), len(c.hashes)+1)
	args := make([]any, 0, 6+3*len(c.hashes)+8*c.asks)
	args = append(args, usageHead(instance), to.command, to.name, int64(requestsSpare/time.Second), c.number, int64(heardTTL/time.Second))
	for i, s := range c.hashes {
		keys[i] = requestsKey(c.shard, s.part, s.window, s.second)
		args = append(args, s.second, s.window.Seconds(), len(s.asks))
		for _, ask := range s.asks {
			args = append(args, fieldOf(asks[ask].Key))
		}
		for _, ask := range s.asks {
			a := &asks[ask]
			// Instances are what is divided by.
			args = append(args, a.Debt-a.Back, a.Need, a.Ahead, min(a.Limit, maxLimit), max(1, a.Instances), a.Reserve, a.Untold)
		}
	}
	return call{script: takeScript, keys: c.withLast(keys), args: args}
}

// withLast adds the key of the last call's number, if this call has one.
func (c *batch) withLast(keys []string) []string {
	// A call without a number is sent once, and need not be known again.
	if c.number == 0 {
		return keys
	}
	return append(keys, c.last)
}

func (c *batch) readReply(reply any, grants []ratelimit.Grant) (time.Time, error) {
	numbers := 2 // of each ask
	// Of an account the limit of the second too, which what was saved up has raised.
	if c.burst {
		numbers = 3
	}
	values, ok := reply.([]any)
	// Counted before anything is taken: a grant in the place of another would be somebody else's tokens.
	if !ok || len(values) != 2+numbers*c.asks {
		return time.Time{}, &replyError{reply}
	}
	now, ok := readTime(values)
	values = values[2:]
	for _, s := range c.hashes {
		for _, ask := range s.asks {
			var n [3]int64
			for i := range numbers {
				var is bool
				n[i], is = values[i].(int64)
				ok = ok && is
			}
			grants[ask] = ratelimit.Grant{Tokens: int(n[0]), Total: int(n[1]), Limit: int(n[2])}
			values = values[numbers:]
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
