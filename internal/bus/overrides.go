package bus

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"time"
)

// ErrOverridesChanged says that another process has replaced the overrides meanwhile: read
// them again, and try again.
var ErrOverridesChanged = errors.New("the overrides have been changed meanwhile")

// Overrides returns what was set by hand, as KeepOverrides kept it, and its version, ""
// if nothing is kept. The list is nil if its version is the known one.
func (b *Bus) Overrides(ctx context.Context, known string) (version string, list []byte, err error) {
	err = b.callRedis(ctx, "overrides", "read overrides", func(ctx context.Context) error {
		reply, err := b.overrides(ctx, "read", known)
		if err != nil {
			return err
		}
		version = reply[0]
		if len(reply) > 1 {
			list = []byte(reply[1])
		}
		return nil
	})
	return version, list, err
}

// KeepOverrides replaces what was set by hand, and returns the version of the list. The
// list is kept for the time needed, and at least as long as the one that it replaces would
// have been. KeepOverrides fails with ErrOverridesChanged if the version in force is
// another than the one to be replaced.
func (b *Bus) KeepOverrides(ctx context.Context, replaced string, list []byte, needed time.Duration) (version string, err error) {
	// The version depends on the list alone, so that a call that failed and ran all the
	// same, and is repeated, ends in the same state.
	sum := sha256.Sum256(list)
	version = hex.EncodeToString(sum[:8])
	var changed error
	err = b.callRedis(ctx, "keep_overrides", "keep overrides", func(ctx context.Context) error {
		reply, err := b.overrides(ctx, "keep", replaced, version, list, max(1, needed.Milliseconds()))
		if err == nil && reply[0] != version {
			changed = ErrOverridesChanged
		}
		return err
	})
	if err == nil {
		err = changed // Redis has answered: this is no error of do, which would count it
	}
	return version, err
}

func (b *Bus) overrides(ctx context.Context, args ...any) ([]string, error) {
	replies, err := b.evalScripts(ctx, call{script: overridesScript, keys: []string{overridesKey}, args: args})
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

// PublishUnblock tells all polygens that a user is let in.
func (b *Bus) PublishUnblock(ctx context.Context, u Unblock) error {
	message := appendText(append(appendText([]byte(wireVersion+" "), u.Polygen), ' '), u.User)
	return b.callRedis(ctx, "publish_unblock", "publish unblock", func(ctx context.Context) error {
		return b.client.Publish(ctx, string(UnblockChannel), message).Err()
	})
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
