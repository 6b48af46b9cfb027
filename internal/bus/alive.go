package bus

import "context"

// Alive tells all shards that an instance is alive. One that is in the registry calls it
// before it serves, and then every 500 ms. Slots of an instance that has been silent for
// 1.75 s are free; time in which no instance was heard does not count. It may have told some
// of the shards when it fails.
func (b *Bus) Alive(ctx context.Context, instance string) error {
	return b.tellShards(ctx, "alive", instance, "")
}

func (b *Bus) tellShards(ctx context.Context, op, instance, left string) error {
	return b.callRedis(ctx, op, "tell the shards of an instance", func(ctx context.Context) error {
		calls := make([]call, b.shards)
		for shard := range calls {
			calls[shard] = call{script: aliveScript, keys: []string{aliveKey(shard)}, args: []any{instance, aliveTimeout.Milliseconds(), registryTTL.Milliseconds(), left}}
		}
		_, err := b.evalScripts(ctx, calls...)
		return err
	})
}
