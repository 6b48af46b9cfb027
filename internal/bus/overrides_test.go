package bus_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-qos/sluice/internal/bus"
)

func overrides(t *testing.T, s *server) {
	b := s.open(t, bus.Options{})
	ctx := context.Background()
	read := func(known, version, list string) {
		t.Helper()
		got, err := b.Overrides(ctx, known)
		if err != nil || got.Version != version || string(got.List) != list || list != "" && string(got.Removed) != "without "+list {
			t.Errorf("Overrides(%q) = %q, %v, want %q, %q", known, got, err, version, list)
		}
	}
	keep := func(replaced, list string, needed time.Duration, want error) string {
		t.Helper()
		kept, err := b.KeepOverrides(ctx, replaced, bus.KeptOverrides{List: []byte(list), Removed: []byte("without " + list)}, needed, time.Millisecond)
		if !errors.Is(err, want) {
			t.Errorf("KeepOverrides(%q, %q) = %v, want %v", replaced, list, err, want)
		}
		if kept.Unsafe != "" {
			t.Errorf("KeepOverrides(%q, %q) = %+v, want it safe", replaced, list, kept)
		}
		return kept.Version
	}
	lives := func(least, most time.Duration) {
		t.Helper()
		if ms := time.Duration(s.do(t, "PTTL", "sluice:overrides").(int64)) * time.Millisecond; ms <= least || ms > most {
			t.Errorf("the overrides live for %v, want above %v, up to %v", ms, least, most)
		}
	}
	read("", "", "")
	read("gone", "", "")
	long := strings.Repeat("\x00ü\xff", 1<<17)
	one := keep("", long, time.Hour, nil)
	read("", one, long)
	read("another", one, long)
	read(one, one, "")
	keep("", "x", time.Hour, bus.ErrOverridesChanged)
	keep("another", "x", time.Hour, bus.ErrOverridesChanged)
	read("", one, long)
	lives(50*time.Minute, time.Hour)
	two := keep(one, "two", time.Minute, nil)
	read(one, two, "two")
	lives(50*time.Minute, time.Hour) // as long as the first one would have been
	none := keep(two, "", 3*time.Hour, nil)
	lives(150*time.Minute, 3*time.Hour)
	read(two, none, "")
	if none == two || none == one || none == "" {
		t.Errorf("versions %q, %q and %q, want three", one, two, none)
	}
	if again := keep(none, long, 1, nil); again != one {
		t.Errorf("the same list has the versions %q and %q", one, again)
	}
	s.do(t, "DEL", "sluice:overrides")
	read(one, "", "")
	keep(one, "x", time.Hour, bus.ErrOverridesChanged)
	s.do(t, "SET", "sluice:overrides", "no hash")
	if _, err := b.Overrides(ctx, ""); err == nil || errors.Is(err, bus.ErrUnavailable) {
		t.Errorf("Overrides of something else = %v, want an error that time does not cure", err)
	}
}

// Several write at a time, each reading again when it was not the first.
func overridesTogether(t *testing.T, s *server) {
	const writers, each = 4, 10
	ctx := context.Background()
	var all sync.WaitGroup
	for w := range writers {
		b := s.open(t, bus.Options{})
		all.Go(func() {
			for i := range each {
				for {
					kept, err := b.Overrides(ctx, "")
					if err == nil {
						more := bus.KeptOverrides{List: append(kept.List, fmt.Sprintf("%d-%d\n", w, i)...)}
						_, err = b.KeepOverrides(ctx, kept.Version, more, time.Hour, 0)
					}
					if err == nil {
						break
					}
					if !errors.Is(err, bus.ErrOverridesChanged) {
						t.Errorf("KeepOverrides = %v", err)
						return
					}
				}
			}
		})
	}
	all.Wait()
	kept, err := s.open(t, bus.Options{}).Overrides(ctx, "")
	if err != nil {
		t.Fatal(err)
	}
	lines := slices.Sorted(strings.Lines(string(kept.List)))
	if distinct := len(slices.Compact(lines)); distinct != writers*each {
		t.Errorf("%d of %d writes are there", distinct, writers*each)
	}
}

func unblocks(t *testing.T, s *server) {
	b := s.open(t, bus.Options{})
	ear := listenToReports(t, b, bus.Unblock{})
	want := []bus.Event{}
	for _, user := range []string{"alice", "@up/a b:c\x00\xff", " "} {
		u := bus.Unblock{Polygen: "one two", User: user}
		if err := b.PublishUnblock(context.Background(), u); err != nil {
			t.Fatal(err)
		}
		want = append(want, u)
	}
	for _, bad := range []string{"", "2 1:a 1:u", "1 1:a", "1 1:a 0:", "1 1:a 1:u 1:v"} {
		s.publish(t, "sluice:{0}:unblock", bad)
	}
	last := bus.Unblock{User: "last"}
	if err := b.PublishUnblock(context.Background(), last); err != nil {
		t.Fatal(err)
	}
	got := []bus.Event{ear.next(t), ear.next(t), ear.next(t), ear.next(t)}
	if diff := cmp.Diff(append(want, last), got); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

func letters(t *testing.T, s *server) {
	b := s.open(t, bus.Options{})
	ear := listen(t, b, bus.PolygensChannel)
	want := []bus.Event{}
	for _, l := range []bus.Letter{{To: "", Body: []byte(`{"a": 1}`)}, {To: "one two#X", Body: []byte("\x00ü 3:abc")}} {
		if err := b.Send(context.Background(), l); err != nil {
			t.Fatal(err)
		}
		want = append(want, l)
	}
	for _, bad := range []string{"", "2 0: x", "1 0:", "1 5:x y"} {
		s.do(t, "PUBLISH", "sluice:polygens", bad)
	}
	last := bus.Letter{To: "last", Body: []byte("x")}
	if err := b.Send(context.Background(), last); err != nil {
		t.Fatal(err)
	}
	got := []bus.Event{ear.next(t), ear.next(t), ear.next(t)}
	if diff := cmp.Diff(append(want, last), got); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}
