// Package embedded runs Redis inside the process, for one machine that has no
// Redis server: miniredis on a loopback port, with the clock's time. It answers
// 16 asks in 0.3 ms where the real one takes 0.08, lets a subscriber that does
// not read hold up everybody, lets keys expire some 20 ms early or late, and
// keeps nothing over a restart.
package embedded

import (
	"context"
	"fmt"
	"time"

	"github.com/alicebob/miniredis/v2"
)

// Start starts a server and returns its address, "127.0.0.1:port", and what
// stops it.
func Start() (addr string, stop func(), err error) {
	server := miniredis.NewMiniRedis()
	if err := server.Start(); err != nil {
		return "", nil, fmt.Errorf("start embedded redis: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		age(ctx, server)
	}()
	return server.Addr(), func() {
		cancel()
		<-done
		server.Close()
	}, nil
}

const (
	ageEvery = 20 * time.Millisecond
	idle     = 20 // aging takes at most this part of the time: with very many keys it is less often
)

// age lets keys expire. miniredis can do so by itself, but then sorts all keys
// at every command: half a millisecond for a thousand of them.
func age(ctx context.Context, server *miniredis.Miniredis) {
	last := time.Now()
	for wait := ageEvery; ; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		now := time.Now()
		server.FastForward(now.Sub(last))
		last = now
		wait = max(ageEvery, idle*time.Since(now))
	}
}
