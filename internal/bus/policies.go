package bus

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/sluice-qos/sluice/internal/policy"
)

// maxPublish bounds the bytes of one published batch of policies. A longer one
// would delay what is published after it.
const maxPublish = 64 << 10

// PublishPolicies sends policies to all agents, in order. A policy longer than
// policy.MaxLine, which no agent would read, is left out, and PublishPolicies fails after
// it has sent the others.
func (b *Bus) PublishPolicies(ctx context.Context, policies []policy.Message) error {
	batches, tooLong := encode(policies)
	if len(batches) > 0 {
		err := b.callRedis(ctx, "publish_policies", "publish policies", func(ctx context.Context) error {
			_, err := b.evalScripts(ctx, call{script: publishScript, keys: []string{limitsKey}, args: batches})
			return err
		})
		if err != nil {
			return err
		}
	}
	if tooLong > 0 {
		return fmt.Errorf("publish policies: %d are longer than %d bytes", tooLong, policy.MaxLine)
	}
	return nil
}

// encode joins policies to batches of about maxPublish bytes.
func encode(policies []policy.Message) (batches []any, tooLong int) {
	var batch, line []byte
	for _, p := range policies {
		if line = policy.Append(line[:0], p); len(line) > policy.MaxLine {
			tooLong++
			continue
		}
		if batch = append(batch, line...); len(batch) >= maxPublish {
			batches = append(batches, batch)
			batch = nil
		}
	}
	if len(batch) > 0 {
		batches = append(batches, batch)
	}
	return batches, tooLong
}

// PublishLimits keeps a limit file in Redis for 24 hours from now and tells all
// agents of its version.
func (b *Bus) PublishLimits(ctx context.Context, version string, source []byte) error {
	message := policy.Append(nil, policy.Limits{Version: version})
	return b.callRedis(ctx, "publish_limits", "publish limits", func(ctx context.Context) error {
		_, err := b.evalScripts(ctx, call{
			script: limitsScript,
			keys:   []string{limitsKey},
			args:   []any{version, source, int64(limitsTTL / time.Second), message},
		})
		return err
	})
}

// KeepLimits keeps published limits for another 24 hours, and reports whether
// they are still the ones of the version. If not, Redis has forgotten them, or another
// process published others.
func (b *Bus) KeepLimits(ctx context.Context, version string) (kept bool, err error) {
	err = b.callRedis(ctx, "keep_limits", "keep limits", func(ctx context.Context) error {
		replies, err := b.evalScripts(ctx, call{
			script: keepScript,
			keys:   []string{limitsKey},
			args:   []any{version, int64(limitsTTL / time.Second)},
		})
		if err != nil {
			return err
		}
		kept = replies[0] == int64(1)
		return nil
	})
	return kept, err
}

// Limits returns what was last published, or ErrNoLimits.
func (b *Bus) Limits(ctx context.Context) (version string, source []byte, err error) {
	err = b.callRedis(ctx, "limits", "read limits", func(ctx context.Context) error {
		values, err := b.client.HMGet(ctx, limitsKey, "version", "source").Result()
		if err != nil {
			return err
		}
		v, ok1 := values[0].(string)
		s, ok2 := values[1].(string)
		if !ok1 || !ok2 { // HMGET answers nil for a key or field that does not exist
			return ErrNoLimits
		}
		version, source = v, []byte(s)
		return nil
	})
	return version, source, err
}

// Confirm answers policy.Confirm: this instance's HAProxy refuses the key by itself
// in the window that begins at c.Second, since c.At.
func (b *Bus) Confirm(ctx context.Context, c Confirmed) error {
	message := appendText([]byte(wireVersion+" "), c.Instance)
	for _, n := range [...]int64{c.At.Unix(), int64(c.At.Nanosecond() / 1000), c.Second} {
		message = strconv.AppendInt(append(message, ' '), n, 10)
	}
	message = appendText(append(message, ' '), fieldOf(c.Key))
	return b.callRedis(ctx, "confirm", "confirm a throttle", func(ctx context.Context) error {
		return b.client.Publish(ctx, string(ConfirmedChannel), message).Err()
	})
}
