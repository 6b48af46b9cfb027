package bus

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"
)

// ErrOverridesChanged says that another process has replaced the overrides meanwhile: read
// them again, and try again.
var ErrOverridesChanged = errors.New("the overrides have been changed meanwhile")

// KeptOverrides are what is kept of overrides by hand. The zero value is what a Redis that was
// emptied has.
type KeptOverrides struct {
	Version string // "" if nothing is kept
	List    []byte // those that were set
	Removed []byte // those that were removed before their end; nil if nobody has said

	// Unsafe is why Redis may still lose them when it fails over, or "". It is told of what was
	// just kept, and only to who waited for the replicas.
	Unsafe string
}

// Overrides returns what is kept of overrides by hand. The lists are nil if the version is
// the known one.
func (b *Bus) Overrides(ctx context.Context, known string) (kept KeptOverrides, err error) {
	err = b.callRedis(ctx, "overrides", "read overrides", func(ctx context.Context) error {
		reply, err := b.overrides(ctx, b.client, "read", known)
		if err != nil {
			return err
		}
		kept.Version = reply[0]
		// Of the version that is known already Redis says no more: every polygen asks twice a second.
		if len(reply) > 2 {
			kept.List, kept.Removed = []byte(reply[1]), []byte(reply[2])
		}
		return nil
	})
	return kept, err
}

// KeepOverrides replaces what is kept of overrides by hand, and returns it with its version.
// It is kept for the time needed, and at least as long as what it replaces would
// have been. KeepOverrides fails with ErrOverridesChanged if the version in force is
// another than the one to be replaced. It waits for so long until all replicas have it too.
func (b *Bus) KeepOverrides(ctx context.Context, replaced string, keep KeptOverrides, needed, await time.Duration) (KeptOverrides, error) {
	// The version depends on the lists alone, so that a call that failed and ran all the
	// same, and is repeated, ends in the same state.
	// With a byte between them that neither has: what is moved from one list to the other is another version.
	sum := sha256.Sum256(bytes.Join([][]byte{keep.List, keep.Removed}, []byte{0}))
	keep.Version = hex.EncodeToString(sum[:8])
	var changed error
	// Of one connection, for awaitReplicas.
	var conn *redis.Conn
	err := b.callRedis(ctx, "keep_overrides", "keep overrides", func(ctx context.Context) (err error) {
		if conn, err = b.connTo(ctx, overridesKey); err != nil {
			return err
		}
		// A time to live of 0 would delete what was just kept.
		reply, err := b.overrides(ctx, conn, "keep", replaced, keep.Version, keep.List, keep.Removed, max(1, needed.Milliseconds()))
		if err == nil && reply[0] != keep.Version {
			changed = ErrOverridesChanged
		}
		return err
	})
	if conn != nil {
		defer conn.Close()
	}
	// Redis has answered: for the metrics that is no failure of the call.
	if err == nil {
		err = changed
	}
	// Whatever comes of this, they are kept: only the caller can say whether that is enough.
	if err == nil && await > 0 {
		keep.Unsafe = b.awaitReplicas(ctx, conn, await)
	}
	return keep, err
}

func (b *Bus) overrides(ctx context.Context, to pipeliner, args ...any) ([]string, error) {
	replies, err := evalScripts(ctx, to, call{script: overridesScript, keys: []string{overridesKey}, args: args})
	if err != nil {
		return nil, err
	}
	reply, _ := replies[0].([]any)
	texts := make([]string, len(reply))
	for i, v := range reply {
		text, ok := v.(string)
		if !ok {
			return nil, &replyError{replies[0]}
		}
		texts[i] = text
	}
	if len(texts) == 0 {
		return nil, &replyError{replies[0]}
	}
	return texts, nil
}

// Unblock says that an operator lets a user in by hand.
type Unblock struct {
	Polygen string // name of the polygen that was asked to do it
	User    string // the user's key
}

// PublishUnblock tells the polygens that hear the user's shard that the user is let in.
func (b *Bus) PublishUnblock(ctx context.Context, u Unblock) error {
	message := appendText(append(appendText([]byte(wireVersion+" "), u.Polygen), ' '), u.User)
	return b.publishReports(ctx, "publish_unblock", "publish unblock", UnblockChannel, report{b.ShardOf(u.User), message})
}

func decodeUnblock(message string) (Unblock, error) {
	w := words{rest: message}
	w.takeVersion(wireVersion)
	u := Unblock{Polygen: w.takeText(), User: w.takeText()}
	switch {
	case w.rest != "":
		w.failWith(errors.New("more than its words"))
	case u.User == "":
		w.failWith(errors.New("no user"))
	}
	return u, w.err
}
