package redisbus

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"
)

var (
	// ErrUnavailable is in the errors of calls that Redis did not answer, or answered only to
	// say that it cannot serve now. The caller goes on alone. A refused password is not among
	// them, because waiting does not help.
	ErrUnavailable = errors.New("redis is unavailable")

	// ErrNoLimits says that no limits are published, or not any more.
	ErrNoLimits = errors.New("no limits are published")

	// ErrOverridesChanged says that another process has replaced the overrides meanwhile: read them again, and try again.
	ErrOverridesChanged = errors.New("the overrides have been changed meanwhile")

	// ErrShards says that another process runs with another number of shards.
	ErrShards = errors.New("processes differ in their number of shards")
)

// cannotServe begins the replies of a Redis that is there but cannot serve now.
var cannotServe = []string{
	"LOADING ", "READONLY ", "MASTERDOWN ", "NOREPLICAS ", "CLUSTERDOWN ", "TRYAGAIN ", "MOVED ", "ASK ",
	"BUSY ", "OOM ", "ERR max number of clients",
}

// wrapError names what failed, and marks what is unavailable. It returns nil for nil.
func wrapError(operation string, err error) error {
	switch {
	case err == nil:
		return nil
	case unavailable(err):
		return fmt.Errorf("%s: %w: %w", operation, ErrUnavailable, err)
	default:
		return fmt.Errorf("%s: %w", operation, err)
	}
}

func unavailable(err error) bool {
	// A call that was cancelled, or came after Close, says nothing about Redis. The others
	// of these errors are about answers of Redis, so it is there.
	if errors.Is(err, context.Canceled) || errors.Is(err, redis.ErrClosed) || errors.As(err, new(*replyError)) ||
		errors.Is(err, ErrShards) || errors.Is(err, ErrNoLimits) {
		return false
	}
	var reply redis.Error
	// No answer: refused, reset, timed out, no such node.
	if !errors.As(err, &reply) {
		return true
	}
	// By the words, because Redis has no other names for its errors.
	for _, prefix := range cannotServe {
		if strings.HasPrefix(reply.Error(), prefix) {
			return true
		}
	}
	return false
}

// A replyError says that a reply is not what the script returns.
type replyError struct{ reply any }

func (e *replyError) Error() string { return fmt.Sprintf("unexpected reply %.100v", e.reply) }
