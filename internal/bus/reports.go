package bus

import (
	"context"
	"slices"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"
)

// What is reported of a user is published over a channel of the user's shard, for the polygens that have users there. In
// a Redis Cluster only the nodes of the shard's slot carry it; any other message goes to all nodes.

// reportChannel is a channel of a shard, and the command that publishes over it.
type reportChannel struct{ command, name string }

func (b *Bus) reportTo(channel Channel, shard int) reportChannel {
	command := "PUBLISH"
	if b.sharded() {
		command = "SPUBLISH"
	}
	return reportChannel{command, channel.ofShard(shard)}
}

// byShard divides what is about users by their shards, in order.
func byShard[T any](b *Bus, all []T, user func(T) string) [][]T {
	// Nearly everywhere: nobody is hashed, and no list is copied.
	if b.shards == 1 {
		return [][]T{all}
	}
	of := make([][]T, b.shards)
	for _, v := range all {
		shard := b.ShardOf(user(v))
		of[shard] = append(of[shard], v)
	}
	return of
}

// report is a message about users of a shard.
type report struct {
	shard   int
	message []byte
}

// publishReports publishes messages over a channel of their shards, all in one round trip. The loss of one shard's master
// keeps back those of its users alone.
func (b *Bus) publishReports(ctx context.Context, op, what string, channel Channel, all ...report) error {
	if len(all) == 0 {
		return nil
	}
	return b.callRedis(ctx, op, what, func(ctx context.Context) error {
		pipe := b.client.Pipeline()
		sent := make([]*redis.IntCmd, len(all))
		for i, r := range all {
			publish := pipe.Publish
			if b.sharded() {
				publish = pipe.SPublish
			}
			sent[i] = publish(ctx, channel.ofShard(r.shard), r.message)
		}
		_, err := pipe.Exec(ctx)
		// A Redis Cluster before version 7: see subscription.subscribe.
		older := b.client.Pipeline()
		for i, r := range all {
			if isUnknownCommand(sent[i].Err()) {
				older.Publish(ctx, channel.ofShard(r.shard), r.message)
			}
		}
		if older.Len() > 0 {
			_, err = older.Exec(ctx)
		}
		return err
	})
}

// isUnknownCommand reports whether Redis says that it has no such command.
func isUnknownCommand(err error) bool {
	return err != nil && strings.HasPrefix(err.Error(), "ERR unknown command")
}

// Heard says that reports about the users of a shard may have been missed before it, and that none are from now on; if
// Lost, that they are not heard now, until one says otherwise.
type Heard struct {
	Shard int
	Lost  bool
}

func (Heard) isEvent() {}

// reportChannels are those of each shard.
var reportChannels = []Channel{UsageChannel, ProgressChannel, DemandChannel, StartsChannel, UnblockChannel}

// SubscribeReports hands what is reported of the users of some shards to handle, as Subscribe does with other
// channels. Which shards these are is said by the last value of the channel wanted; before the first one they are none.
//
// Each shard has a connection of its own, in a Redis Cluster to the node that has it: the loss of one concerns the
// users of its shards alone, and Heard says so.
//
// Starts are handed out beside all else, by a second goroutine, and may be overtaken. All shards together have the 8 MiB
// of Subscribe for them, and as much for the rest.
func (b *Bus) SubscribeReports(ctx context.Context, wanted <-chan []int, handle func(Event)) error {
	s := &subscription{bus: b, queue: newQueue(), starts: newQueue(), handle: handle}
	return s.run(ctx, func(ctx context.Context) { s.followShards(ctx, wanted) })
}

// followShards reads what is reported of the wanted shards until ctx ends.
func (s *subscription) followShards(ctx context.Context, wanted <-chan []int) {
	var readers sync.WaitGroup
	defer readers.Wait()
	stops := map[int]context.CancelFunc{}
	for {
		var shards []int
		select {
		case <-ctx.Done():
			return
		case shards = <-wanted:
		}
		for shard, stop := range stops {
			// What it has read already is still handed out: who decides leaves out users of others.
			if !slices.Contains(shards, shard) {
				stop()
				delete(stops, shard)
			}
		}
		for _, shard := range shards {
			if stops[shard] != nil {
				continue
			}
			// They end with the first context, or when the shard is not wanted any more.
			shardContext, stop := context.WithCancel(ctx)
			stops[shard] = stop
			readers.Go(func() { s.earOf(shard).keepReading(shardContext) })
		}
	}
}

func (s *subscription) earOf(shard int) *ear {
	e := &ear{subscription: s, shard: shard, channels: make(map[string]Channel, len(reportChannels))}
	for _, channel := range reportChannels {
		e.channels[channel.ofShard(shard)] = channel
	}
	// All of them have the tag of their shard, so that one connection to one node hears them.
	e.sharded = s.bus.sharded()
	return e
}
