// Package embedded runs Redis inside the process, for one machine that has no
// Redis server: miniredis, with the clock's time. It answers
// 16 asks in 0.3 ms where the real one takes 0.08, lets a subscriber that does
// not read hold up everybody, lets keys expire some 20 ms early or late, with very
// many of them up to a second, and keeps nothing over a restart.
package embedded

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/sluice-qos/sluice/internal/daemon"
)

// Start starts a server on the connections of a listener, which it closes in the end.
// Clients need the password; "" lets everybody in. It returns what stops the server.
func Start(l net.Listener, password string) (stop func(), err error) {
	redis := miniredis.NewMiniRedis()
	redis.RequireAuth(password)
	// Dialed once, it has a server without a listener of its own: that would be a TCP port.
	first, err := redis.Dial()
	if err != nil {
		return nil, fmt.Errorf("start embedded redis: %w", err)
	}
	_ = first.Close()
	server := redis.Server()
	ctx, cancel := context.WithCancel(context.Background())
	var loops sync.WaitGroup
	loops.Go(func() { expireKeys(ctx, redis) })
	loops.Go(func() {
		for {
			conn, err := l.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			// As when descriptors are short: without a pause this would take a processor until there are some.
			if err != nil {
				time.Sleep(expireEvery)
				continue
			}
			server.ServeConn(conn)
		}
	})
	return func() {
		cancel()
		// No connection comes to a server that is closed after this.
		_ = l.Close()
		loops.Wait()
		redis.Close()
	}, nil
}

const (
	expireEvery  = 20 * time.Millisecond
	idle         = 20          // aging takes at most this part of the time, unless that were a longer pause
	longestPause = time.Second // less than the shortest time to live, 2 s of the key of who leads
)

func expireKeys(ctx context.Context, server *miniredis.Miniredis) {
	// miniredis can do so by itself, but then sorts all keys at every command: half a millisecond for a thousand of them.
	last := time.Now()
	for wait := expireEvery; ; {
		if !daemon.Sleep(ctx, wait) {
			return
		}
		now := time.Now()
		// What has passed, and not what was waited for: a machine that stands still would keep keys for longer.
		server.FastForward(now.Sub(last))
		last = now
		wait = pauseAfter(time.Since(now))
	}
}

// pauseAfter is the time between a pass over all keys that took so long and the next one.
func pauseAfter(pass time.Duration) time.Duration {
	// With very many keys a pass takes long, and nobody is served meanwhile. But a pass ages what has just been
	// written by the whole pause, and a machine that stands still may seem to have very many keys.
	return min(max(expireEvery, idle*pass), longestPause)
}
