package bus

import (
	"context"
	"errors"
	"sync"
)

// Alive tells a shard that an instance is alive. One that is in the registry tells all of
// them before it serves, and then every 500 ms. Slots of an instance that has been silent for
// 1.75 s are free; time in which no instance was heard does not count.
func (b *Bus) Alive(ctx context.Context, instance string, shard int) error {
	return b.tellShard(ctx, "alive", instance, shard, "")
}

func (b *Bus) tellShard(ctx context.Context, op, instance string, shard int, left string) error {
	return b.callRedis(ctx, op, "tell a shard of an instance", func(ctx context.Context) error {
		_, err := b.evalScripts(ctx, call{
			script: aliveScript, keys: []string{aliveKey(shard)},
			args: []any{instance, aliveTimeout.Milliseconds(), registryTTL.Milliseconds(), left},
		})
		return err
	})
}

// EachShard calls a function for each shard, for all of them at the same time: one that is away
// delays no other.
func (b *Bus) EachShard(call func(shard int) error) error {
	if b.shards == 1 {
		return call(0)
	}
	errs := make([]error, b.shards)
	var calls sync.WaitGroup
	for shard := range errs {
		calls.Go(func() { errs[shard] = call(shard) })
	}
	calls.Wait()
	return errors.Join(errs...)
}
