package redisbus

import (
	"context"
	"time"
)

// Time is Redis' clock, to the microsecond.
func (b *Bus) Time(ctx context.Context) (t time.Time, err error) {
	// Polygens have no heartbeat whose answer would bring it.
	err = b.callRedis(ctx, "time", "read the time", func(ctx context.Context) error {
		t, err = b.client.Time(ctx).Result()
		return err
	})
	return t, err
}
