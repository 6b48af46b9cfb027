package redisbus_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/sluice-qos/sluice/internal/redisbus"
	"github.com/sluice-qos/sluice/internal/testkit"
)

var startsOf = rapid.Custom(func(t *rapid.T) redisbus.Started {
	number := rapid.Int64Min(0)
	s := redisbus.Started{User: user.Filter(func(u string) bool { return len(u) < 1000 }).Draw(t, "user"), Active: rapid.IntMin(0).Draw(t, "active"), Starts: number.Draw(t, "starts")}
	for range rapid.IntRange(0, 3).Draw(t, "classes") {
		class := rapid.SampledFrom([]string{"GET", "LIST objects", "*", "Ü\xff"}).Draw(t, "class")
		s.Classes = append(s.Classes, redisbus.StartedClass{Class: class, Starts: number.Draw(t, "of it")})
	}
	return s
})

func startsPublished(t *testing.T, s *server) {
	b := s.open(t, redisbus.Options{})
	ear := listenToReports(t, b, redisbus.Starts{})
	rapid.Check(t, func(rt *rapid.T) {
		instance := rapid.SampledFrom([]string{"a", "b 1:x\x00\xff", "7"}).Draw(rt, "instance")
		span := time.Duration(rapid.IntRange(1, 5000).Draw(rt, "ms")) * time.Millisecond
		users := rapid.SliceOfN(startsOf, 1, 5).Draw(rt, "users")
		if err := b.Started(context.Background(), instance, span, users); err != nil {
			rt.Fatalf("Started(%+v) = %v", users, err)
		}
		want := redisbus.Starts{Instance: instance, Span: span, Users: users}
		if diff := cmp.Diff(redisbus.Event(want), ear.next(t)); diff != "" {
			rt.Fatalf("Started(%+v) is heard as (-want +got):\n%s", users, diff)
		}
	})
	if n := s.do(t, "DBSIZE"); n != int64(0) {
		t.Errorf("%d keys, want none", n)
	}

	if err := b.Started(t.Context(), "a", time.Second, nil); err != nil { // says nothing
		t.Errorf("Started of nobody = %v", err)
	}
	if err := b.Started(t.Context(), "a", 0, []redisbus.Started{{User: "alice"}}); err == nil {
		t.Error("Started in no time = nil, want an error")
	}
	// Many users come in several messages, each of which says all of its users.
	var many []redisbus.Started
	for i := range 3000 {
		many = append(many, redisbus.Started{User: fmt.Sprint(strings.Repeat("x", 100), i), Starts: 1, Classes: []redisbus.StartedClass{{Class: "GET", Starts: 1}}})
	}
	testkit.Must(t, b.Started(t.Context(), "a", time.Second, many))
	var heard []redisbus.Started
	for messages := 0; len(heard) < len(many); messages++ {
		starts, ok := ear.next(t).(redisbus.Starts)
		if !ok || len(starts.Users) > 1000 || starts.Span != time.Second {
			t.Fatalf("message %d has %d users in %v", messages, len(starts.Users), starts.Span)
		}
		heard = append(heard, starts.Users...)
	}
	if diff := cmp.Diff(many, heard); diff != "" {
		t.Errorf("heard (-want +got):\n%s", diff)
	}
}
