package redisbus

import (
	"context"
	"errors"
	"sync"
	"time"
)

const (
	// heldAliveEvery is how often a shard hears of an instance that may hold slots there.
	heldAliveEvery = 500 * time.Millisecond
	// tellers of all instances tell a shard in heldAliveEvery at least, so that time in which nobody
	// was heard is time in which nobody could be.
	tellers = 16
	// slowestAlive bounds for how long a portion stays reserved for an instance that is gone.
	slowestAlive = 5 * time.Second
)

// AliveEvery is how often one of so many instances tells a shard that it is alive while it holds
// no slots there but portions, which are reserved for it in any case. The others count it by the same number.
func AliveEvery(instances int) time.Duration {
	return min(heldAliveEvery*time.Duration(max(1, instances/tellers)), slowestAlive)
}

// Alive tells a shard that an instance is alive. One that is in the registry tells all of them before
// it serves, then every 500 ms those where it may hold slots, and the others after AliveEvery. Slots of an
// instance that has neither told nor asked for 1.75 s are free, and its portions when it has not told
// for so much longer than AliveEvery is than 500 ms; time in which no instance was heard does not count.
func (b *Bus) Alive(ctx context.Context, instance string, shard int) error {
	_, err := b.runScripts(ctx, "alive", "tell a shard of an instance", call{
		script: aliveScript, keys: []string{aliveKey(shard)},
		// For as long as the registry may list an instance a shard tells one that is gone from one that it never heard of.
		args: []any{instance, aliveTimeout.Milliseconds(), registryTTL.Milliseconds()},
	})
	return err
}

// EachShard calls a function for each shard, for all of them at the same time.
func (b *Bus) EachShard(call func(shard int) error) error {
	// Nearly everywhere: one call needs no goroutine.
	if b.shards == 1 {
		return call(0)
	}
	// One that is away takes the whole time-out, which is as long as from one heartbeat to the next: it delays no other.
	errs := make([]error, b.shards)
	var calls sync.WaitGroup
	for shard := range errs {
		calls.Go(func() { errs[shard] = call(shard) })
	}
	calls.Wait()
	return errors.Join(errs...)
}
