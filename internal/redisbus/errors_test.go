package redisbus

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

func TestErrUnavailable(t *testing.T) {
	server := miniredis.RunT(t)
	b, err := Open(Options{Addresses: []string{server.Addr()}, Timeout: testkit.Patience})
	testkit.Must(t, err)
	defer b.Close()
	asks := []ratelimit.Ask{{Key: ratelimit.Key{Class: "GET", User: "alice"}, Limit: 5, Need: 1}}
	tests := []struct {
		reply string
		want  bool
	}{
		{"LOADING Redis is loading the dataset in memory", true},
		{"READONLY You can't write against a read only replica.", true},
		{"MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.", true},
		{"CLUSTERDOWN Hash slot not served", true},
		{"BUSY Redis is busy running a script.", true},
		{"OOM command not allowed when used memory > 'maxmemory'.", true},
		{"ERR max number of clients reached", true},
		{"NOAUTH Authentication required.", false},
		{"NOPERM this user has no permissions to run the 'evalsha' command", false},
		{"WRONGTYPE Operation against a key holding the wrong kind of value", false},
		{"ERR unknown command 'evalsha'", false},
	}
	for _, tt := range tests {
		t.Run(strings.Fields(tt.reply)[0], func(t *testing.T) {
			server.SetError(tt.reply)
			defer server.SetError("")
			_, err := b.Take(context.Background(), "a", asks)
			if errors.Is(err, ErrUnavailable) != tt.want || err == nil || !strings.Contains(err.Error(), tt.reply) {
				t.Errorf("Take = %v; unavailable: %v, want %v", err, errors.Is(err, ErrUnavailable), tt.want)
			}
		})
	}

	t.Run("nobody listens", func(t *testing.T) {
		server.Close()
		_, err := b.Register(context.Background(), "a", "", "")
		if !errors.Is(err, ErrUnavailable) || !errors.As(err, new(*net.OpError)) {
			t.Errorf("Register = %v, want it unavailable and to say why", err)
		}
	})
	t.Run("the caller gave up", func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if _, err := b.Register(ctx, "a", "", ""); !errors.Is(err, context.Canceled) || errors.Is(err, ErrUnavailable) {
			t.Errorf("Register = %v, want only context.Canceled", err)
		}
	})
	t.Run("closed", func(t *testing.T) {
		closed, err := Open(Options{Addresses: []string{"127.0.0.1:1"}})
		testkit.Must(t, err)
		closed.Close()
		if _, err := closed.Register(context.Background(), "a", "", ""); !errors.Is(err, redis.ErrClosed) || errors.Is(err, ErrUnavailable) {
			t.Errorf("Register = %v, want only %v", err, redis.ErrClosed)
		}
	})
}

func TestOpenRefuses(t *testing.T) {
	tests := []struct {
		name    string
		options Options
		err     string
	}{
		{"no address", Options{}, "redis: no address"},
		{"a negative number of shards", Options{Addresses: []string{"x:1"}, Shards: -1}, "redis: -1 shards are not from 1 to 1024"},
		{"too many shards", Options{Addresses: []string{"x:1"}, Shards: 1025}, "redis: 1025 shards are not from 1 to 1024"},
		{"a negative timeout", Options{Addresses: []string{"x:1"}, Timeout: -1}, "redis: timeout -1ns is negative"},
		{"a database of a cluster", Options{Addresses: []string{"x:1", "y:1"}, DB: 2}, "redis: a cluster has no database 2"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := Open(tt.options); err == nil || err.Error() != tt.err {
				t.Errorf("Open = %v, want %s", err, tt.err)
			}
		})
	}
	b, err := Open(Options{Addresses: []string{"x:1", "y:1"}, MasterName: "m", DB: 2})
	if err != nil {
		t.Fatalf("Open(Sentinels and a database) = %v", err)
	}
	b.Close()
}

func TestLimitErrorReason(t *testing.T) {
	for reason, err := range map[string]error{
		"checksum": fmt.Errorf("read: %w", ErrDamagedLimits),
		"missing":  fmt.Errorf("read: %w", ErrNoLimitFile),
		"redis":    fmt.Errorf("read: %w", ErrUnavailable),
	} {
		if got := LimitErrorReason(err); got != reason {
			t.Errorf("LimitErrorReason(%v) = %q, want %q", err, got, reason)
		}
	}
	if got := LimitErrorReason(ErrNoLimits); got != "missing" {
		t.Errorf("LimitErrorReason(%v) = %q, want missing", ErrNoLimits, got)
	}
}
