package bus_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/internal/bus"
	"github.com/sluice-qos/sluice/internal/proctest"
)

// usersFile is a limit file of so many users, of a size that takes several chunks; the first
// lines are different in each edition.
func usersFile(users, edition int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# edition %d\n", edition)
	for i := range users {
		fmt.Fprintf(&b, "  user-%07d: pro\n", i)
	}
	return b.String()
}

// chunkKeys are the keys of chunks.
func (s *server) chunkKeys(t *testing.T) (keys []string) {
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
	polygen := s.open(t, bus.Options{})
	ctx, cancel := context.WithTimeout(t.Context(), proctest.Patience)
	defer cancel()
	version := func(source string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(source))) }
	last := usersFile(60_000, 9)
	var agents sync.WaitGroup
	for range 10 {
		agent := s.open(t, bus.Options{})
		agents.Go(func() {
			for {
				v, source, err := agent.Limits(ctx)
				switch {
				case errors.Is(err, bus.ErrNoLimits):
					time.Sleep(time.Millisecond)
				case err != nil:
					t.Errorf("Limits = %v", err)
					return
				case v != version(string(source)):
					t.Errorf("%d bytes are said to be of version %s, but are of %s", len(source), v, version(string(source)))
					return
				case v == version(last):
					return
				}
			}
		})
	}
	for edition := range 9 {
		source := usersFile(10_000*(edition%3+1), edition)
		if err := polygen.PublishLimits(ctx, version(source), []byte(source)); err != nil {
			t.Error(err)
		}
	}
	if err := polygen.PublishLimits(ctx, version(last), []byte(last)); err != nil {
		t.Error(err)
	}
	agents.Wait()
}

// Who has a file reads of the next one only what is different, and after an error only what is
// missing. What is lost or damaged, polygen writes anew, a part at a time.
func TestChunksOfLimits(t *testing.T) {
	s := startRedis(t)
	ctx := t.Context()
	polygen := s.open(t, bus.Options{})
	if err := polygen.PublishLimits(ctx, "1", []byte(usersFile(200_000, 1))); err != nil {
		t.Fatal(err)
	}
	keys := s.chunkKeys(t)
	agent := s.open(t, bus.Options{})
	read := func(version string, edition int) {
		t.Helper()
		got, source, err := agent.Limits(ctx)
		if got != version || string(source) != usersFile(200_000, edition) || err != nil {
			t.Fatalf("Limits = %q, %d bytes, %v, want version %s", got, len(source), err, version)
		}
	}
	repaired := func() {
		t.Helper()
		for range 64 {
			if kept, err := polygen.KeepLimits(ctx, "1"); !kept || err != nil {
				t.Fatalf("KeepLimits = %v, %v", kept, err)
			}
		}
	}
	calls := func() float64 { return s.metric(t, "sluice_bus_requests_total") }

	gone := keys[0]
	s.do(t, "DEL", gone)
	if _, _, err := agent.Limits(ctx); !errors.Is(err, bus.ErrNoChunk) {
		t.Errorf("Limits without a chunk = %v, want %v", err, bus.ErrNoChunk)
	}
	if _, _, err := agent.Limits(ctx); !errors.Is(err, bus.ErrNoChunk) {
		t.Errorf("Limits without a chunk = %v, want %v", err, bus.ErrNoChunk)
	}
	repaired()
	if n := s.do(t, "EXISTS", gone); n != int64(1) {
		t.Fatalf("the chunk that was lost is not written again")
	}
	read("1", 1)
	// Each chunk once and the missing one twice more; three heads.
	if got, want := calls(), float64(len(keys)+2+3); got != want {
		t.Errorf("reading took %v calls, want %v: chunks are read once", got, want)
	}

	before := s.metric(t, "sluice_bus_limits_read_bytes_total")
	if err := polygen.PublishLimits(ctx, "2", []byte(usersFile(200_000, 2))); err != nil {
		t.Fatal(err)
	}
	read("2", 2)
	if n := s.metric(t, "sluice_bus_limits_read_bytes_total") - before; n > before/4 {
		t.Errorf("one line that changed took %v bytes, the whole %v", n, before)
	}
	soon := 0
	for _, key := range keys {
		if ttl := s.do(t, "TTL", key).(int64); ttl <= 600 {
			soon++
		}
	}
	if soon != 1 {
		t.Errorf("%d chunks of the file before expire soon, want the one that is not in the new one", soon)
	}

	// Both are damaged before anybody has read them.
	for _, key := range s.chunkKeys(t) {
		s.do(t, "SET", key, "x", "EX", 600)
	}
	other := s.open(t, bus.Options{})
	if _, _, err := other.Limits(ctx); !errors.Is(err, bus.ErrDamagedLimits) {
		t.Errorf("Limits with damaged chunks = %v, want %v", err, bus.ErrDamagedLimits)
	}
	for range 64 {
		if kept, err := polygen.KeepLimits(ctx, "2"); !kept || err != nil {
			t.Fatalf("KeepLimits = %v, %v", kept, err)
		}
	}
	agent = other
	read("2", 2)
}

// What another process has published is not kept by this one, and a head that cannot be read is no file.
func TestLimitsOfOthers(t *testing.T) {
	s := startRedis(t)
	polygen, other, agent := s.open(t, bus.Options{}), s.open(t, bus.Options{}), s.open(t, bus.Options{})
	if err := other.PublishLimits(t.Context(), "0", []byte("x")); err != nil {
		t.Fatal(err)
	}
	if kept, err := polygen.KeepLimits(t.Context(), "0"); kept || err != nil {
		t.Errorf("KeepLimits of another's publication = %v, %v, want false: which chunks it has is not known", kept, err)
	}
	for _, head := range []string{"2 from the future", ""} {
		s.do(t, "HSET", "sluice:limits", "head", head)
		if _, _, err := agent.Limits(t.Context()); !errors.Is(err, bus.ErrDamagedLimits) {
			t.Errorf("Limits with the head %q = %v, want %v", head, err, bus.ErrDamagedLimits)
		}
	}
	s.do(t, "HDEL", "sluice:limits", "head")
	if _, _, err := agent.Limits(t.Context()); !errors.Is(err, bus.ErrNoLimits) {
		t.Errorf("Limits of a version alone = %v, want %v", err, bus.ErrNoLimits)
	}
}

// What a polygen leaves that dies before all is there changes nothing.
func TestHalfPublishedLimitsAreNotRead(t *testing.T) {
	s := startRedis(t)
	ctx := t.Context()
	whole, agent := s.open(t, bus.Options{}), s.open(t, bus.Options{})
	if err := whole.PublishLimits(ctx, "1", []byte(usersFile(20_000, 1))); err != nil {
		t.Fatal(err)
	}
	// It may write chunks, but no head: so it dies in between each time.
	s.do(t, "ACL", "SETUSER", "half", "on", ">half", "+@all", "~sluice:limits:*", "&*")
	half := s.open(t, bus.Options{Username: "half", Password: "half"})
	if err := half.PublishLimits(ctx, "2", []byte(usersFile(40_000, 2))); err == nil {
		t.Fatal("PublishLimits without a head = nil, want an error")
	}
	if version, source, err := agent.Limits(ctx); version != "1" || string(source) != usersFile(20_000, 1) || err != nil {
		t.Errorf("Limits = %q, %d bytes, %v, want the whole file before", version, len(source), err)
	}
	if err := whole.PublishLimits(ctx, "2", []byte(usersFile(40_000, 2))); err != nil {
		t.Fatal(err)
	}
	if version, source, err := agent.Limits(ctx); version != "2" || string(source) != usersFile(40_000, 2) || err != nil {
		t.Errorf("Limits = %q, %d bytes, %v, want the whole file that was published again", version, len(source), err)
	}
}

// A chunk that takes longer than any other call may is waited for, and other calls are answered
// meanwhile.
func TestLimitsOverASlowNetwork(t *testing.T) {
	s := startRedis(t)
	ctx := t.Context()
	source := make([]byte, 128<<10) // of one line, and not to be compressed: one chunk
	for i := range source {
		source[i] = "abcdefghijklmnopqrstuvwxyz-_0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"[rand.IntN(64)]
	}
	if err := s.open(t, bus.Options{}).PublishLimits(ctx, "1", append([]byte("x\n"), source...)); err != nil {
		t.Fatal(err)
	}
	const timeout = 250 * time.Millisecond
	slow := proctest.NewLink(t, s.addr, 200<<10).Addr
	b, err := bus.Open(bus.Options{Addresses: []string{slow}, Timeout: timeout})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	var reading sync.WaitGroup
	defer reading.Wait()
	read := make(chan time.Duration)
	reading.Go(func() {
		defer close(read)
		if err := proctest.Poll(proctest.Patience, func() error { // on a machine that stands still it may fail
			began := time.Now()
			_, got, err := b.Limits(ctx)
			if err == nil && len(got) != len(source)+2 {
				err = fmt.Errorf("%d bytes, want %d", len(got), len(source)+2)
			}
			if err == nil {
				read <- time.Since(began)
			}
			return err
		}); err != nil {
			t.Error(err)
		}
	})
	answered := 0
	for {
		select {
		case took := <-read:
			if took < timeout || answered == 0 {
				t.Errorf("reading took %v, with %d calls answered meanwhile, want more than %v and some", took, answered, timeout)
			}
			return
		default:
		}
		if _, err := b.Time(ctx); err == nil {
			answered++
		}
	}
}
