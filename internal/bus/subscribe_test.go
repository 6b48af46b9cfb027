package bus

import (
	"io"
	"testing"
	"time"
)

// A channel that can be done without, and that Redis refuses, is not asked for ten times a second.
func TestRetryWait(t *testing.T) {
	const noperm = redisReply("NOPERM No permissions to access a channel")
	main, own := &ear{subscription: &subscription{}, shard: noShard}, &ear{subscription: &subscription{own: true}, shard: noShard}
	for _, tt := range []struct {
		name string
		e    *ear
		err  error
		want time.Duration
	}{
		{"own: Redis refuses", own, noperm, refusedRetryAfter},
		{"own: Redis is too old", own, redisReply("ERR unknown command"), refusedRetryAfter},
		{"own: Redis starts", own, redisReply("LOADING Redis is loading"), retryAfter},
		{"own: the connection is lost", own, io.EOF, retryAfter},
		{"own: another node has it", own, redisReply("MOVED 1 127.0.0.1:1"), retryAfter},
		{"main: nothing goes without it", main, noperm, retryAfter},
	} {
		if got := tt.e.retryWait(tt.err); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}
