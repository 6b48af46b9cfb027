package bus

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// connTo is one connection to the server that has a key. The caller closes it.
func (b *Bus) connTo(ctx context.Context, key string) (*redis.Conn, error) {
	// WAIT is about what was written on the connection that asks.
	switch c := b.client.(type) {
	case *redis.ClusterClient:
		node, err := c.MasterForKey(ctx, key)
		if err != nil {
			return nil, err
		}
		return node.Conn(), nil
	case *redis.Client:
		return c.Conn(), nil
	}
	return nil, fmt.Errorf("a Redis client of type %T has no connections of its own", b.client)
}

// awaitReplicas waits until all replicas have what was written on a connection, for some time
// at most. It returns why that is not so, or "". A Redis without replicas has nothing to wait for.
func (b *Bus) awaitReplicas(ctx context.Context, conn *redis.Conn, most time.Duration) (unsafe string) {
	var replicas, have int64
	// Redis itself answers after that time, and then it needs as long as any call.
	err := b.callRedisWithin(ctx, most+b.timeout, "wait_replicas", "wait for replicas", func(ctx context.Context) (err error) {
		// All of them, and not only one: any of them may be the next master.
		if replicas, err = countReplicas(ctx, conn); err == nil && replicas > 0 {
			have, err = conn.Wait(ctx, int(replicas), most).Result()
		}
		return err
	})
	switch {
	case err != nil:
		return "redis does not say whether its replicas have it: " + err.Error()
	case have < replicas:
		return fmt.Sprintf("%d of %d replicas of Redis have it", have, replicas)
	}
	return ""
}

// countReplicas is how many replicas are connected to the server of a connection.
func countReplicas(ctx context.Context, conn *redis.Conn) (int64, error) {
	reply, err := conn.Do(ctx, "ROLE").Slice()
	var refused redis.Error
	// The embedded Redis, and proxies, which replicate by themselves if at all.
	if errors.As(err, &refused) && strings.HasPrefix(refused.Error(), "ERR unknown command") {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	// The reply of a replica, or of a Sentinel, has other words: what was written was not written there.
	if len(reply) == 3 {
		if replicas, ok := reply[2].([]any); ok && reply[0] == "master" {
			return int64(len(replicas)), nil
		}
	}
	return 0, &replyError{reply}
}
