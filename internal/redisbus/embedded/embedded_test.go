package embedded_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-qos/sluice/internal/redisbus/embedded"
	"github.com/sluice-qos/sluice/internal/testkit"
)

func TestStart(t *testing.T) {
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "redis.sock"))
	testkit.Must(t, err)
	stop, err := embedded.Start(l, "a password")
	testkit.Must(t, err)
	defer stop()
	client := redis.NewClient(&redis.Options{Addr: l.Addr().String(), Password: "a password"})
	defer client.Close()
	ctx := context.Background()
	for _, password := range []string{"", "another"} {
		stranger := redis.NewClient(&redis.Options{Addr: l.Addr().String(), Password: password})
		defer stranger.Close()
		if err := stranger.Set(ctx, "sluice:limits", "x", 0).Err(); err == nil || !strings.Contains(err.Error(), "NOAUTH") && !strings.Contains(err.Error(), "WRONGPASS") {
			t.Errorf("SET with the password %q = %v, want that it is refused", password, err)
		}
	}

	if now, err := client.Time(ctx).Result(); err != nil || time.Since(now).Abs() > time.Hour {
		t.Errorf("TIME = %v, %v, want the clock's", now, err)
	}
	testkit.Must(t, client.Set(ctx, "long", "x", time.Hour).Err())
	testkit.Must(t, client.Set(ctx, "short", "x", 20*time.Millisecond).Err())
	testkit.Eventually(t, "a key expires with the clock", func() error {
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
