package redisbus_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-qos/sluice/internal/redisbus"
	"github.com/sluice-qos/sluice/internal/testkit"
)

// usersFile is a limit file of so many users; the first line is different in each edition.
func usersFile(users, edition int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# edition %d\n", edition)
	for i := range users {
		fmt.Fprintf(&b, "  user-%07d: pro\n", i)
	}
	return b.String()
}

// published are limits of a file alone.
func published(version, file string) redisbus.PublishedLimits {
	return redisbus.PublishedLimits{Version: version, File: []byte(file)}
}

// fileKeys are the keys of limit files.
func (s *server) fileKeys(t *testing.T) (keys []string) {
	t.Helper()
	for _, key := range s.do(t, "KEYS", "sluice:limits:*").([]any) {
		keys = append(keys, key.(string))
	}
	return keys
}

// Agents that read while one file after the other is published have each time one of them,
// whole, and all of them have the last one in the end.
func TestEveryAgentGetsWholeLimits(t *testing.T) {
	s := startRedis(t)
	polygen := s.open(t, redisbus.Options{})
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	version := func(source string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(source))) }
	last := usersFile(60_000, 9)
	var agents sync.WaitGroup
	for range 10 {
		agent := s.open(t, redisbus.Options{})
		agents.Go(func() {
			for {
				limits, err := agent.Limits(ctx, 10)
				switch {
				case errors.Is(err, redisbus.ErrNoLimits):
					time.Sleep(time.Millisecond)
				case err != nil:
					t.Errorf("Limits = %v", err)
					return
				case limits.Version != version(string(limits.File)):
					t.Errorf("%d bytes are said to be of version %s, but are of %s", len(limits.File), limits.Version, version(string(limits.File)))
					return
				case limits.Version == version(last):
					return
				}
			}
		})
	}
	for edition := range 9 {
		source := usersFile(10_000*(edition%3+1), edition)
		if err := polygen.PublishLimits(ctx, published(version(source), source)); err != nil {
			t.Error(err)
		}
	}
	if err := polygen.PublishLimits(ctx, published(version(last), last)); err != nil {
		t.Error(err)
	}
	agents.Wait()
}

// polygen writes a file again at once if it is lost, and within about a minute if it is damaged. A
// superseded file expires. Overrides are read without the file.
func TestLimitFileInRedis(t *testing.T) {
	s := startRedis(t)
	ctx := t.Context()
	polygen, agent := s.open(t, redisbus.Options{}), s.open(t, redisbus.Options{})
	limits := published("1", usersFile(50_000, 1))
	publish := func() {
		t.Helper()
		testkit.Must(t, polygen.PublishLimits(ctx, limits))
	}
	read := func() {
		t.Helper()
		if got, err := agent.Limits(ctx, 1); !reflect.DeepEqual(got, limits) || err != nil {
			t.Fatalf("Limits = %q, %d bytes, %q, %v, want version %s", got.Version, len(got.File), got.Overrides, err, limits.Version)
		}
	}
	keep := func() {
		t.Helper()
		if kept, err := polygen.KeepLimits(ctx, limits.Version); !kept || err != nil {
			t.Fatalf("KeepLimits = %v, %v", kept, err)
		}
	}
	limits.Overrides = []byte("[]")
	publish()
	first := s.fileKeys(t)[0]
	s.do(t, "DEL", first)
	for range 2 {
		if _, err := agent.Limits(ctx, 1); !errors.Is(err, redisbus.ErrNoLimitFile) {
			t.Errorf("Limits without the file = %v, want %v", err, redisbus.ErrNoLimitFile)
		}
	}
	keep()
	read()

	before := s.metric(t, "sluice_bus_limits_read_bytes_total")
	limits.Version, limits.Overrides = "2", []byte("[{}]")
	publish()
	read()
	if n := s.metric(t, "sluice_bus_limits_read_bytes_total") - before; n > 200 {
		t.Errorf("other overrides took %v bytes, want the head alone", n)
	}
	if keys := s.fileKeys(t); len(keys) != 1 {
		t.Errorf("the file is there %d times, want once", len(keys))
	}

	limits = redisbus.PublishedLimits{Version: "3", File: []byte(usersFile(50_000, 2)), Overrides: []byte{}}
	publish()
	for _, key := range s.fileKeys(t) {
		if ttl := s.do(t, "TTL", key).(int64); (ttl <= 600) != (key == first) {
			t.Errorf("%s expires after %d s; the file before has the key %s", key, ttl, first)
		}
	}
	for _, damage := range []string{"x", strings.Repeat("x", 10_000_000)} {
		for _, key := range s.fileKeys(t) {
			s.do(t, "SET", key, damage, "EX", 600)
		}
		if _, err := agent.Limits(ctx, 1); !errors.Is(err, redisbus.ErrDamagedLimits) {
			t.Errorf("Limits with a damaged file = %v, want %v", err, redisbus.ErrDamagedLimits)
		}
	}
	for range 65 {
		keep()
	}
	read()
}

// What another process has published is not kept by this one, and a head that cannot be read is no file.
func TestLimitsOfOthers(t *testing.T) {
	s := startRedis(t)
	polygen, other, agent := s.open(t, redisbus.Options{}), s.open(t, redisbus.Options{}), s.open(t, redisbus.Options{})
	testkit.Must(t, other.PublishLimits(t.Context(), published("0", "x")))
	if kept, err := polygen.KeepLimits(t.Context(), "0"); kept || err != nil {
		t.Errorf("KeepLimits of another's publication = %v, %v, want false: this one does not have its file", kept, err)
	}
	for _, head := range []string{"2 from the future", ""} {
		s.do(t, "HSET", "sluice:limits", "head", head)
		if _, err := agent.Limits(t.Context(), 1); !errors.Is(err, redisbus.ErrDamagedLimits) {
			t.Errorf("Limits with the head %q = %v, want %v", head, err, redisbus.ErrDamagedLimits)
		}
	}
	s.do(t, "HDEL", "sluice:limits", "head")
	if _, err := agent.Limits(t.Context(), 1); !errors.Is(err, redisbus.ErrNoLimits) {
		t.Errorf("Limits of a version alone = %v, want %v", err, redisbus.ErrNoLimits)
	}
}

// What a polygen leaves that dies before all is there changes nothing.
func TestHalfPublishedLimitsAreNotRead(t *testing.T) {
	s := startRedis(t)
	ctx := t.Context()
	whole, agent := s.open(t, redisbus.Options{}), s.open(t, redisbus.Options{})
	testkit.Must(t, whole.PublishLimits(ctx, published("1", usersFile(20_000, 1))))
	// It may write the file, but no head: so it dies in between each time.
	s.do(t, "ACL", "SETUSER", "half", "on", ">half", "+@all", "~sluice:limits:*", "&*")
	half := s.open(t, redisbus.Options{Username: "half", Password: "half"})
	if err := half.PublishLimits(ctx, published("2", usersFile(40_000, 2))); err == nil {
		t.Fatal("PublishLimits without a head = nil, want an error")
	}
	if got, err := agent.Limits(ctx, 1); got.Version != "1" || string(got.File) != usersFile(20_000, 1) || err != nil {
		t.Errorf("Limits = %q, %d bytes, %v, want the whole file before", got.Version, len(got.File), err)
	}
	testkit.Must(t, whole.PublishLimits(ctx, published("2", usersFile(40_000, 2))))
	if got, err := agent.Limits(ctx, 1); got.Version != "2" || string(got.File) != usersFile(40_000, 2) || err != nil {
		t.Errorf("Limits = %q, %d bytes, %v, want the whole file that was published again", got.Version, len(got.File), err)
	}
}

// The reader waits for a slice of a file for longer than for other calls, which are answered at the
// same time. After an error it reads the rest alone.
func TestLimitsOverASlowNetwork(t *testing.T) {
	s := startRedis(t)
	ctx := t.Context()
	file := make([]byte, 400<<10) // not to be compressed: 300 KiB in Redis
	for i := range file {
		file[i] = "abcdefghijklmnopqrstuvwxyz-_0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"[rand.IntN(64)]
	}
	testkit.Must(t, s.open(t, redisbus.Options{}).PublishLimits(ctx, published("1", string(file))))
	stored := float64(s.do(t, "STRLEN", s.fileKeys(t)[0]).(int64))
	const timeout = 250 * time.Millisecond
	registry := prometheus.NewRegistry()
	b, err := redisbus.Open(redisbus.Options{Addresses: []string{testkit.NewLink(t, s.addr, 100<<10).Addr}, Timeout: timeout, Registerer: registry})
	testkit.Must(t, err)
	defer b.Close()
	read := func() float64 { return (&server{registry: registry}).metric(t, "sluice_bus_limits_read_bytes_total") }
	// The first slice is read, and the reader stops in the second.
	brief, cancel := context.WithCancel(ctx)
	var reading sync.WaitGroup
	reading.Go(func() {
		if _, err := b.Limits(brief, 1); err == nil {
			t.Error("Limits = nil, want an error")
		}
	})
	testkit.Eventually(t, "the first slice", func() error {
		if n := read(); n < 64<<10 {
			return fmt.Errorf("%v bytes are read", n)
		}
		return nil
	})
	cancel()
	reading.Wait()
	answered := 0
	done := make(chan struct{})
	reading.Go(func() {
		defer close(done)
		began := time.Now()
		if got, err := b.Limits(ctx, 1); err != nil || !bytes.Equal(got.File, file) {
			t.Errorf("Limits = %d bytes, %v, want %d", len(got.File), err, len(file))
		}
		if took := time.Since(began); took < timeout {
			t.Errorf("reading took %v, want more than %v", took, timeout)
		}
	})
	for {
		select {
		case <-done:
			if n := read(); n > stored+200 || answered == 0 {
				t.Errorf("%v bytes are read, want %v and two heads; %d calls answered meanwhile, want some", n, stored, answered)
			}
			return
		default:
		}
		if _, err := b.Time(ctx); err == nil {
			answered++
		}
	}
}
