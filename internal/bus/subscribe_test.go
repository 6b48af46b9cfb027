package bus

import (
	"io"
	"testing"
	"time"
)

// A channel that can be done without, and that Redis refuses, is not asked for ten times a second.
func TestRetryWait(t *testing.T) {
	const noperm = redisReply("NOPERM No permissions to access a channel")
	main, own := &subscription{channels: []string{string(UsageChannel)}}, &subscription{channels: []string{"sluice:policies:a"}, own: true}
	polygens := &subscription{channels: []string{string(PolygensChannel)}}
	for _, tt := range []struct {
		name string
		s    *subscription
		err  error
		want time.Duration
	}{
		{"polygens: the users are of before", polygens, noperm, refusedRetryAfter},
		{"polygens: Redis starts", polygens, redisReply("LOADING Redis is loading"), retryAfter},
		{"polygens: the connection is lost", polygens, io.EOF, retryAfter},
		{"own: the users are of before", own, noperm, refusedRetryAfter},
		{"own: Redis is too old", own, redisReply("ERR unknown command"), refusedRetryAfter},
		{"own: another node has it", own, redisReply("MOVED 1 127.0.0.1:1"), retryAfter},
		{"main: nothing goes without it", main, noperm, retryAfter},
	} {
		if got := tt.s.retryWait(tt.err); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}
