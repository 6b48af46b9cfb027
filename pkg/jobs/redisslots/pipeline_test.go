package redisslots

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/redis/go-redis/v9"
)

// Calls that come up while others are on their way share the next pipeline, each has its own
// reply, and a call whose caller has given up is not sent.
func TestCallsSharePipelines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		var sizes []int
		p := newPipelines(func(ctx context.Context, calls []call) []*redis.Cmd {
			sizes = append(sizes, len(calls))
			<-release
			replies := make([]*redis.Cmd, len(calls))
			for i, c := range calls {
				replies[i] = redis.NewCmd(ctx)
				replies[i].SetVal(c.keys[0])
			}
			return replies
		})
		var callers sync.WaitGroup
		defer callers.Wait()
		ask := func(ctx context.Context, name string, want error) {
			callers.Go(func() {
				got, err := p.call(ctx, call{keys: []string{name}}).Text()
				if !errors.Is(err, want) || want == nil && got != name {
					t.Errorf("call %s = %q, %v, want it and %v", name, got, err, want)
				}
			})
			synctest.Wait()
		}
		// Those that find room are sent alone, at once.
		for i := range maxPipelines {
			ask(t.Context(), fmt.Sprint("first", i), nil)
		}
		alone, end := context.WithCancel(t.Context())
		ask(alone, "given up, alone in its pipeline", context.Canceled)
		end()
		synctest.Wait()
		some, end := context.WithCancel(t.Context())
		ask(some, "given up", context.Canceled)
		for i := range 5 {
			ask(t.Context(), fmt.Sprint("shares", i), nil)
		}
		end()
		synctest.Wait()
		release <- struct{}{} // one of the first
		synctest.Wait()
		if want := append(slices.Repeat([]int{1}, maxPipelines), 5); !slices.Equal(sizes, want) {
			t.Errorf("pipelines of %v calls were sent, want %v", sizes, want)
		}
		close(release)
	})
}
