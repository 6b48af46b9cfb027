package redisbus_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/internal/redisbus"
)

func overrides(t *testing.T, s *server) {
	b := s.open(t, redisbus.Options{})
	ctx := context.Background()
	read := func(known, version, list string) {
		t.Helper()
		gotVersion, got, err := b.Overrides(ctx, known)
		if err != nil || gotVersion != version || string(got) != list {
			t.Errorf("Overrides(%q) = %q, %q, %v, want %q, %q", known, gotVersion, got, err, version, list)
		}
	}
	keep := func(version, list string, needed time.Duration, want error) {
		t.Helper()
		if err := b.KeepOverrides(ctx, version, []byte(list), needed); !errors.Is(err, want) {
			t.Errorf("KeepOverrides(%q, %q) = %v, want %v", version, list, err, want)
		}
	}
	lives := func(least, most time.Duration) {
		t.Helper()
		if ms := time.Duration(s.do(t, "PTTL", "sluice:{cluster}:overrides").(int64)) * time.Millisecond; ms <= least || ms > most {
			t.Errorf("the overrides live for %v, want above %v, up to %v", ms, least, most)
		}
	}
	read("", "", "")
	read("gone", "", "")
	long := strings.Repeat("\x00ü\xff", 1<<17)
	keep("9-a", long, time.Hour, nil)
	read("", "9-a", long)
	read("another", "9-a", long)
	read("9-a", "9-a", "")
	keep("9-b", "x", time.Hour, redisbus.ErrOverridesChanged)
	keep("8-c", "x", time.Hour, redisbus.ErrOverridesChanged)
	read("", "9-a", long)
	lives(50*time.Minute, time.Hour)
	keep("10-a", "two", time.Minute, nil)
	read("9-a", "10-a", "two")
	lives(50*time.Minute, time.Hour) // as long as the first one would have been
	keep("11-a", "", 3*time.Hour, nil)
	lives(150*time.Minute, 3*time.Hour)
	read("10-a", "11-a", "")
	s.do(t, "DEL", "sluice:{cluster}:overrides")
	read("11-a", "", "")
	keep("1-a", "x", 0, nil)
	s.do(t, "SET", "sluice:{cluster}:overrides", "no hash")
	if _, _, err := b.Overrides(ctx, ""); err == nil || errors.Is(err, redisbus.ErrUnavailable) {
		t.Errorf("Overrides of something else = %v, want an error that time does not cure", err)
	}
}
