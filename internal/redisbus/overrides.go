package redisbus

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"
)

// Overrides returns what is kept of overrides by hand, and its version, "" if nothing is kept. The list is nil if the version
// is the known one.
func (b *Bus) Overrides(ctx context.Context, known string) (version string, list []byte, err error) {
	err = b.callRedis(ctx, "overrides", "read overrides", func(ctx context.Context) error {
		// The version alone comes back, mostly: every polygen asks twice a second.
		version, err = b.client.HGet(ctx, overridesKey, "version").Result()
		if errors.Is(err, redis.Nil) {
			return nil
		}
		if err != nil || version == known {
			return err
		}
		reply, err := b.client.HMGet(ctx, overridesKey, "version", "list").Result()
		if err != nil {
			return err
		}
		texts, ok := readTexts(reply)
		// They have ended since.
		if !ok {
			version = ""
			return nil
		}
		version, list = texts[0], []byte(texts[1])
		return nil
	})
	return version, list, err
}

// KeepOverrides replaces what is kept of overrides by hand by a later version: versions begin with a number, and the later one has the
// higher number. They are kept for the time needed, and at least as long as what they replace would have been: a polygen that was
// cut off for a while finds out that one was removed. KeepOverrides fails with ErrOverridesChanged if Redis has as late a version.
func (b *Bus) KeepOverrides(ctx context.Context, version string, list []byte, needed time.Duration) error {
	// A time to live of 0 would delete what was just kept.
	replies, err := b.runScripts(ctx, "keep_overrides", "keep overrides", call{
		script: overridesScript, keys: []string{overridesKey}, args: []any{version, list, max(1, needed.Milliseconds())},
	})
	if err == nil && replies[0] != int64(1) {
		return ErrOverridesChanged
	}
	return err
}
