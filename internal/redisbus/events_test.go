package redisbus_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/sluice-qos/sluice/internal/redisbus"
	"github.com/sluice-qos/sluice/internal/testkit"
)

// eventsAddUp has several instances report the same second: what is read is the sum.
func eventsAddUp(t *testing.T, s *server) {
	b := s.open(t, redisbus.Options{Shards: 3})
	ctx := context.Background()
	if all, err := b.TierEvents(ctx, 17); len(all) != 0 || err != nil {
		t.Errorf("TierEvents of an empty Redis = %v, %v", all, err)
	}
	classes := []string{"GET", "LIST", "PUT"}
	second := int64(0)
	rapid.Check(t, func(rt *rapid.T) {
		second++
		users, tiers := map[string]redisbus.EventsOf{}, map[string]redisbus.EventsOf{}
		draw := func(name string, sum map[string]redisbus.EventsOf) redisbus.EventsOf {
			of := redisbus.EventsOf{Name: name, Ends: rapid.Int64Range(0, 3).Draw(rt, "ends")}
			for _, class := range classes {
				if n := rapid.Int64Range(0, 2).Draw(rt, class); n > 0 {
					of.Classes = append(of.Classes, redisbus.StartedClass{Class: class, Starts: n})
				}
			}
			sum[name] = add(sum[name], of)
			return of
		}
		name := rapid.SampledFrom([]string{"alice", "@api/bob", "x|y", "end|GET", "\xff"})
		for report := range rapid.IntRange(1, 4).Draw(rt, "reports") {
			e := redisbus.Events{Second: second}
			for range rapid.IntRange(0, 3).Draw(rt, "users") {
				e.Users = append(e.Users, draw(name.Draw(rt, "user"), users))
			}
			for range rapid.IntRange(0, 2).Draw(rt, "tiers") {
				e.Tiers = append(e.Tiers, draw(rapid.SampledFrom([]string{"free", "gold"}).Draw(rt, "tier"), tiers))
			}
			for range rapid.IntRange(1, 2).Draw(rt, "calls") { // one that is repeated counts once
				if err := b.AddEvents(ctx, fmt.Sprint("instance", report), e); err != nil {
					rt.Fatal(err)
				}
			}
		}
		got, err := b.TierEvents(ctx, second)
		if err != nil {
			rt.Fatal(err)
		}
		var want []redisbus.EventsOf
		for _, name := range []string{"free", "gold"} {
			if of := tiers[name]; of.Ends > 0 || len(of.Classes) > 0 {
				want = append(want, of)
			}
		}
		if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
			rt.Fatalf("TierEvents (-want +got):\n%s", diff)
		}
		for name, want := range users {
			got, err := b.UserEvents(ctx, name, []int64{second - 1_000_000, second})
			if err != nil {
				rt.Fatal(err)
			}
			if diff := cmp.Diff([]redisbus.EventsOf{{Name: name}, want}, got, cmpopts.EquateEmpty()); diff != "" {
				rt.Fatalf("UserEvents of %q (-want +got):\n%s", name, diff)
			}
		}
	})

	var many []redisbus.EventsOf // in several calls
	for i := range 3000 {
		many = append(many, redisbus.EventsOf{Name: fmt.Sprint("tier", i), Classes: []redisbus.StartedClass{{Class: "GET", Starts: 1}}, Ends: 1})
	}
	for range 2 {
		testkit.Must(t, b.AddEvents(ctx, "one", redisbus.Events{Second: -1, Tiers: many}))
	}
	all, err := b.TierEvents(ctx, -1)
	if len(all) != len(many) || err != nil {
		t.Errorf("%d tiers, %v; want %d", len(all), err, len(many))
	}
	for _, of := range all {
		if of.Ends != 1 {
			t.Fatalf("%d ends of %s, want 1", of.Ends, of.Name)
		}
	}
}

// A report of which Redis has got a part, and no more, has left a bucket that expires. Told once more, it is whole.
func TestEventsThatWereCutOff(t *testing.T) {
	proxy, s := startProxy(t), startRedis(t)
	proxy.to.Store(&s.addr)
	b, ctx := s.openAt(t, proxy.listener.Addr().String()), context.Background()
	// Of two parts of a report.
	of := []redisbus.EventsOf{{Name: "alice", Ends: 1}, {Name: "bob", Ends: 1}}
	testkit.Must(t, b.AddEvents(ctx, "one", redisbus.Events{Second: 16, Users: of})) // connects
	empty := func() { s.do(t, "FLUSHALL") }
	for _, between := range []struct {
		what   string
		second int64
		lost   bool
		before *func()
		fields int64
	}{{"Redis is emptied", 17, false, &empty, 1}, {"the connection is lost", 18, true, nil, 1}, {"nothing happens", 18, false, nil, 2}} {
		proxy.loseNext.Store(between.lost)
		proxy.before.Store(between.before)
		if err := b.AddEvents(ctx, "one", redisbus.Events{Second: between.second, Users: of}); (err != nil) != between.lost {
			t.Errorf("%s between the parts: AddEvents = %v, want an error: %v", between.what, err, between.lost)
		}
		key := fmt.Sprintf("sluice:{0}:events:%d:reports", between.second)
		fields, ttl := s.do(t, "HLEN", key), s.do(t, "TTL", key).(int64)
		if fields != between.fields || ttl < 1 || ttl > 60 {
			t.Errorf("%s between the parts: Redis has %v fields for %d s, want %d for a minute", between.what, fields, ttl, between.fields)
		}
	}
	if got, err := b.UserEvents(ctx, "bob", []int64{18}); err != nil || got[0].Ends != 1 {
		t.Errorf("UserEvents of bob = %+v, %v; want one end", got, err)
	}
}

// add is the sum of two events of one name.
func add(a, b redisbus.EventsOf) redisbus.EventsOf {
	sum := redisbus.EventsOf{Name: b.Name, Ends: a.Ends + b.Ends, Classes: slices.Clone(a.Classes)}
	for _, c := range b.Classes {
		i := slices.IndexFunc(sum.Classes, func(s redisbus.StartedClass) bool { return s.Class == c.Class })
		if i < 0 {
			sum.Classes = append(sum.Classes, c)
			continue
		}
		sum.Classes[i].Starts += c.Starts
	}
	slices.SortFunc(sum.Classes, func(a, b redisbus.StartedClass) int { return strings.Compare(a.Class, b.Class) })
	return sum
}

func eventsRefused(t *testing.T, s *server) {
	b := s.open(t, redisbus.Options{})
	ctx := context.Background()
	for _, of := range []redisbus.EventsOf{
		{},
		{Name: "alice", Ends: -1},
		{Name: "alice", Classes: []redisbus.StartedClass{{Class: "GET", Starts: -1}}},
		{Name: "alice", Classes: []redisbus.StartedClass{{Class: "A|B", Starts: 1}}},
		{Name: "alice", Classes: []redisbus.StartedClass{{Class: "", Starts: 1}}},
	} {
		for _, e := range []redisbus.Events{{Second: 1, Users: []redisbus.EventsOf{of}}, {Second: 1, Tiers: []redisbus.EventsOf{of}}} {
			if err := b.AddEvents(ctx, "one", e); err == nil {
				t.Errorf("AddEvents(%+v) = nil, want an error", e)
			}
		}
	}
	if err := b.AddEvents(ctx, "one", redisbus.Events{Second: 1}); err != nil { // says nothing
		t.Errorf("AddEvents of nobody = %v", err)
	}
	if n := s.do(t, "DBSIZE"); n != int64(0) {
		t.Errorf("%d keys, want none", n)
	}
	for _, report := range []string{"", "2 4:free 1 0", "1 4:free 1", "1 4:free x 0", "1 4:free 1 1", "1 0: 1 0", "1 4:free 1 1 3:A|B 1"} {
		s.do(t, "FLUSHALL")
		s.do(t, "HSET", "sluice:{cluster}:events:1:reports", "a/1/0", report)
		if all, err := b.TierEvents(ctx, 1); err == nil {
			t.Errorf("with the report %q: %v, want an error", report, all)
		}
	}
}
