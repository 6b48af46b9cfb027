package bus

import (
	"context"
	"fmt"
	"strconv"

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
