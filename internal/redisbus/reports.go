package redisbus

import (
	"context"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"
)

// What is reported of a user is published over a channel of the user's shard. In
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

type report struct {
	shard   int
	message []byte
}

func (b *Bus) publishReports(ctx context.Context, op, what string, channel Channel, all ...report) error {
	messages := make([]published, len(all))
	for i, r := range all {
		messages[i] = published{channel.ofShard(r.shard), r.message}
	}
	return b.publishSharded(ctx, op, what, messages...)
}

type published struct {
	channel string
	message []byte
}

// publishSharded publishes messages in one round trip: in a Redis Cluster by the nodes of their channels' slots alone, where any
// other message goes to all nodes. The loss of one master keeps back the messages of its slots alone.
func (b *Bus) publishSharded(ctx context.Context, op, what string, all ...published) error {
	if len(all) == 0 {
		return nil
	}
	return b.callRedis(ctx, op, what, func(ctx context.Context) error {
		pipe := b.client.Pipeline()
		sent := make([]*redis.IntCmd, len(all))
		for i, p := range all {
			publish := pipe.Publish
			if b.sharded() {
				publish = pipe.SPublish
			}
			sent[i] = publish(ctx, p.channel, p.message)
		}
		_, err := pipe.Exec(ctx)
		// A Redis Cluster before version 7: see subscription.subscribe.
		older := b.client.Pipeline()
		for i, p := range all {
			if isUnknownCommand(sent[i].Err()) {
				older.Publish(ctx, p.channel, p.message)
			}
		}
		if older.Len() > 0 {
			_, err = older.Exec(ctx)
		}
		return err
	})
}

// sharded reports whether channels of single instances and shards are channels of a Redis Cluster's slots.
func (b *Bus) sharded() bool {
	_, cluster := b.client.(*redis.ClusterClient)
	return cluster
}

func isUnknownCommand(err error) bool {
	return err != nil && strings.HasPrefix(err.Error(), "ERR unknown command")
}

// reportChannels are those of each shard.
var reportChannels = []Channel{UsageChannel, ProgressChannel, DemandChannel, StartsChannel}

// SubscribeReports hands what is reported of users to handle, as Subscribe does with other channels.
//
// Each shard has a connection of its own, in a Redis Cluster to the node that has it, and a Connected of its own: the loss of
// one concerns the users of its shards alone.
//
// Starts are handed out by a second goroutine, and other reports may overtake them. All shards together have the 8 MiB
// of Subscribe for them, and as much for the rest.
func (b *Bus) SubscribeReports(ctx context.Context, handle func(Event)) error {
	s := &subscription{bus: b, queue: newQueue(), starts: newQueue(), handle: handle}
	return s.run(ctx, func(ctx context.Context) {
		var readers sync.WaitGroup
		defer readers.Wait()
		for shard := range b.shards {
			readers.Go(func() { s.earOf(shard).keepReading(ctx) })
		}
	})
}

func (s *subscription) earOf(shard int) *ear {
	e := &ear{subscription: s, channels: make(map[string]Channel, len(reportChannels))}
	for _, channel := range reportChannels {
		e.channels[channel.ofShard(shard)] = channel
	}
	// All of them have the tag of their shard, so that one connection to one node hears them.
	e.sharded = s.bus.sharded()
	return e
}
