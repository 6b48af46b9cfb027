package bus

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/sluice-qos/sluice/pkg/bandwidth"
)

// Demand keeps reports of one instance in Redis, and publishes them. The reports of a
// failed call may have been heard or not; each one is complete, so the next one repairs
// that. A report without a user or with a negative number fails the call before anything
// is sent.
func (b *Bus) Demand(ctx context.Context, instance string, reports []bandwidth.Report) error {
	if len(reports) == 0 {
		return nil
	}
	for _, r := range reports {
		if err := validateReport(r); err != nil {
			return fmt.Errorf("report demand: %w", err)
		}
	}
	calls := b.demandCalls(instance, reports)
	return b.callRedis(ctx, "demand", "report demand", func(ctx context.Context) error {
		_, err := b.evalScripts(ctx, calls...)
		return err
	})
}

// numbers are those of a report, in the order of the message.
func numbers(r bandwidth.Report) [7]int64 {
	return [...]int64{int64(r.Active), r.Moved[0], r.Moved[1], r.Most[0], r.Most[1], r.Share[0], r.Share[1]}
}

func validateReport(r bandwidth.Report) error {
	if r.User == "" {
		return errors.New("no user")
	}
	for _, n := range numbers(r) {
		if n < 0 {
			return fmt.Errorf("number %d is negative", n)
		}
	}
	return nil
}

// demandCalls has the keys and arguments that scripts/demand.lua describes, for
// maxAsks reports of a shard each.
func (b *Bus) demandCalls(instance string, reports []bandwidth.Report) []call {
	byShard := make(map[int][]bandwidth.Report, 1)
	for _, r := range reports {
		shard := b.shardOf(r.User)
		byShard[shard] = append(byShard[shard], r)
	}
	var calls []call
	for shard := range b.shards { // in the order of shards, not of the map, so that calls are deterministic
		for rest := byShard[shard]; len(rest) > 0; {
			n := min(len(rest), maxAsks)
			calls = append(calls, demandCall(instance, shard, rest[:n]))
			rest = rest[n:]
		}
	}
	return calls
}

func demandCall(instance string, shard int, reports []bandwidth.Report) call {
	message := appendText([]byte(wireVersion+" "), instance)
	args := []any{int64(demandTTL / time.Second), nil}
	var keys []string
	for _, r := range reports {
		message = appendText(append(message, ' '), r.User)
		for _, n := range numbers(r) {
			message = strconv.AppendInt(append(message, ' '), n, 10)
		}
		kept := "" // deletes the key: of a user with nothing in progress there is nothing to keep
		if r.Active > 0 {
			kept = fmt.Sprint(r.Active, " ", r.Moved[bandwidth.Down], " ", r.Moved[bandwidth.Up])
		}
		keys, args = append(keys, demandKey(shard, instance, r.User)), append(args, kept)
	}
	args[1] = message
	return call{script: demandScript, keys: keys, args: args}
}
