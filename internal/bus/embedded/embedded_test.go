package embedded_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-qos/sluice/internal/bus/embedded"
	"github.com/sluice-qos/sluice/internal/proctest"
)

func TestStart(t *testing.T) {
	addr, stop, err := embedded.Start()
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	client := redis.NewClient(&redis.Options{Addr: addr})
	defer client.Close()
	ctx := context.Background()

	if now, err := client.Time(ctx).Result(); err != nil || time.Since(now).Abs() > time.Hour {
		t.Errorf("TIME = %v, %v, want the clock's", now, err)
	}
	if err := client.Set(ctx, "long", "x", time.Hour).Err(); err != nil {
		t.Fatal(err)
	}
	if err := client.Set(ctx, "short", "x", 20*time.Millisecond).Err(); err != nil {
		t.Fatal(err)
	}
	proctest.Eventually(t, "a key expires with the clock", func() error {
		if v, err := client.Get(ctx, "short").Result(); !errors.Is(err, redis.Nil) {
			return fmt.Errorf("short = %q, %v, want it gone", v, err)
		}
		return nil
	})
	if v, err := client.Get(ctx, "long").Result(); v != "x" || err != nil {
		t.Errorf("long = %q, %v, want it still there", v, err)
	}

	stop()
	if err := client.Ping(ctx).Err(); err == nil {
		t.Error("Ping after stop = nil, want an error")
	}
}
