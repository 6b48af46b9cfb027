package redisbus_test

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/sluice-qos/sluice/internal/redisbus"
	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/pkg/concurrency"
)

func slotsIsConcurrencyTake(t *testing.T, s *server) {
	b := s.open(t, redisbus.Options{})
	ear := listenToReports(t, b, redisbus.Progress{})
	ctx := context.Background()
	end := concurrency.Ask{User: "end", Refused: 1, Limit: 1}
	heard := func(rt *rapid.T) (all []redisbus.Progress) {
		end.Seq++
		if _, err := b.Slots(ctx, "end", 0, []concurrency.Ask{end}); err != nil {
			rt.Fatal(err)
		}
		for {
			p, ok := ear.next(t).(redisbus.Progress)
			if !ok || p.Instance == "end" {
				return all
			}
			all = append(all, p)
		}
	}
	rapid.Check(t, func(rt *rapid.T) {
		s.do(t, "FLUSHALL")
		heard(rt) // what another history left
		instances := []string{"a", "b 1:x\x00\xff", "", "7"}
		users := rapid.SliceOfNDistinct(user.Filter(func(u string) bool { return u != "" }), 1, 3, rapid.ID).Draw(rt, "users")
		pools := map[string]slotPool{}
		for _, u := range users {
			pools[u] = slotPool{}
		}
		type seqOf struct{ instance, user string }
		seqs := map[seqOf]uint64{}   // the newest
		var told []redisbus.Progress // what polygen should be told
		shard := heardInstances{}

		call := func(rt *rapid.T) {
			instance := rapid.SampledFrom(instances).Draw(rt, "instance")
			known := rapid.OneOf(rapid.IntRange(0, 6), rapid.Just(1000)).Draw(rt, "known")
			var asks []concurrency.Ask
			for range rapid.IntRange(1, 6).Draw(rt, "asks") {
				a := slotAsk.Draw(rt, "ask")
				a.User = rapid.SampledFrom(users).Draw(rt, "user")
				of := seqOf{instance, a.User}
				if a.Seq = rapid.Uint64Range(1, seqs[of]+10).Draw(rt, "seq"); rapid.IntRange(0, 3).Draw(rt, "late") > 0 {
					a.Seq = seqs[of] + 1
				}
				seqs[of] = max(seqs[of], a.Seq)
				asks = append(asks, a)
			}
			slotted, err := b.Slots(ctx, instance, known, asks)
			if err != nil {
				rt.Fatalf("Slots(%q, %d, %+v) = %v", instance, known, asks, err)
			}
			var want []concurrency.Grant
			tell := redisbus.Progress{Instance: instance}
			for _, a := range asks {
				a.Limit = min(a.Limit, 1<<52)
				g, near := pools[a.User].ask(instance, known, shard, a, slotted.Now)
				want = append(want, g)
				if near {
					tell.Entries = append(tell.Entries, redisbus.ProgressEntry{User: a.User, Held: g.Held, Active: a.Active, Refused: a.Refused, Limit: a.Limit})
				}
			}
			if diff := cmp.Diff(want, slotted.Grants); diff != "" {
				rt.Fatalf("Slots(%q, %d, %+v) with %v (-concurrency.Take +got):\n%s", instance, known, asks, shard, diff)
			}
			if len(tell.Entries) > 0 {
				told = append(told, tell)
			}
		}
		store := func(rt *rapid.T) { // as if time had passed, or somebody else had written
			u, name := rapid.SampledFrom(users).Draw(rt, "user"), rapid.SampledFrom(instances).Draw(rt, "instance")
			value := rapid.OneOf(rapid.SampledFrom(malformedHoldings), rapid.Custom(func(t *rapid.T) string {
				n := rapid.IntRange(0, 12)
				written := time.Now().Add(rapid.SampledFrom([]time.Duration{-time.Hour, -29 * time.Second, -1001 * time.Millisecond, -500 * time.Millisecond, 500 * time.Millisecond, time.Hour}).Draw(t, "age"))
				return fmt.Sprintf("%d %d %d %d", n.Draw(t, "held"), n.Draw(t, "active"), n.Draw(t, "seq"), written.UnixMilli())
			})).Draw(rt, "value")
			s.do(t, "HSET", slotsKey(u), name, value)
			pools[u][name] = value
		}
		hear := func(rt *rapid.T) {
			name := rapid.SampledFrom(append(instances, "idle")).Draw(rt, "heard")
			ago := rapid.SampledFrom([]time.Duration{-time.Hour, -2 * time.Second, 0, time.Second, 2 * time.Second, 3 * time.Second, time.Hour}).Draw(rt, "ago")
			// No step is at the edge of the lapse, so that it does not matter how long the test takes.
			shard[name] = time.Now().Add(-ago).UnixMilli()
			s.do(t, "ZADD", "sluice:{0}:alive", shard[name], name)
		}
		for range rapid.IntRange(1, 12).Draw(rt, "steps") {
			rapid.SampledFrom([]func(*rapid.T){call, call, store, hear}).Draw(rt, "step")(rt)
		}

		for u, pool := range pools {
			stored := slotPool{}
			fields := s.do(t, "HGETALL", slotsKey(u)).([]any)
			for i := 0; i < len(fields); i += 2 {
				stored[fields[i].(string)] = fields[i+1].(string)
			}
			if diff := cmp.Diff(pool, stored); diff != "" {
				rt.Fatalf("the pool of %.60q (-want +got):\n%s", u, diff)
			}
		}
		if diff := cmp.Diff(told, heard(rt)); diff != "" {
			rt.Fatalf("progress (-want +got):\n%s", diff)
		}
	})
}

// slotAsk lacks its user and its Seq.
var slotAsk = rapid.Custom(func(t *rapid.T) concurrency.Ask {
	// Mostly small, so that limits are met; sometimes as large as may be.
	count := rapid.OneOf(rapid.IntRange(0, 12), rapid.IntRange(0, 12), rapid.IntRange(0, 1_000_000_000_000))
	return concurrency.Ask{
		Want:    count.Draw(t, "want"),
		Active:  rapid.OneOf(rapid.IntRange(0, 12), count).Draw(t, "active"),
		Refused: rapid.OneOf(rapid.Just(0), rapid.Just(0), count).Draw(t, "refused"),
		Limit:   rapid.OneOf(rapid.IntRange(1, 30), rapid.IntRange(1, 30), rapid.IntMin(1)).Draw(t, "limit"),
		Portion: rapid.OneOf(rapid.Just(0), rapid.IntRange(0, 12), count).Draw(t, "portion"),
	}
})

var malformedHoldings = []string{
	"", "x", "1 2 3", "1 2 3 4 5", "-1 0 1 4", "1.5 0 1 4", "1e3 0 1 4", " 1 2 3 4", "1  2 3 4", "1 2 3 4\n", "0x1 2 3 4",
	"9007199254740993 0 1 4", "0 9007199254740992 1 4", "0 99999999999999999999 1 4", "0 0 9223372036854775808 4", "0 0 1 9007199254740994",
}

var holdingPattern = regexp.MustCompile(`^[0-9]{1,16} [0-9]{1,16} [0-9]{1,16} [0-9]{1,16}$`)

// A slotPool is the hash of one user.
type slotPool map[string]string

// heardInstances is when the shard heard of instances, in milliseconds.
type heardInstances map[string]int64

// silent is since when who has not been heard is gone: time in which nobody was is no silence.
func (heard heardInstances) silent(now int64) int64 {
	last := now
	if len(heard) > 0 {
		last = slices.Max(slices.Collect(maps.Values(heard)))
	}
	return min(now, last+583) - 1750 // a third of 1750
}

func (heard heardInstances) count(now int64, known int) (n int) {
	for _, at := range heard {
		if at > heard.silent(now)-redisbus.AliveEvery(known).Milliseconds()+500 && at < now+1750 {
			n++
		}
	}
	return n
}

func (heard heardInstances) gone(name string, now, written int64) bool {
	if at, known := heard[name]; known && at-now < 1750 {
		if written <= now {
			at = max(at, written)
		}
		return at <= heard.silent(now)
	}
	return max(now-written, written-now) >= 30_000
}

// ask is what Slots does: where slots are short it drops instances that are gone, and it
// calls concurrency.Take. It also reports whether the user is near the limit and the ask is new.
func (p slotPool) ask(instance string, known int, shard heardInstances, a concurrency.Ask, at time.Time) (g concurrency.Grant, near bool) {
	now := at.UnixMilli()
	pool := map[string]concurrency.Holding{}
	stale := map[string]int64{} // when they were written
	for name, value := range p {
		var h concurrency.Holding
		var written int64
		_, err := fmt.Sscanf(value, "%d %d %d %d", &h.Held, &h.Active, &h.Seq, &written)
		large := max(uint64(h.Held), uint64(h.Active), h.Seq, uint64(written)) >= 1<<53
		expired := name != instance && now-written >= 30_000
		if err != nil || large || expired || !holdingPattern.MatchString(value) {
			delete(p, name)
			continue
		}
		pool[name] = h
		if name != instance && max(now-written, written-now) > 1000 {
			stale[name] = written
		}
	}
	live := max(1, known, shard.count(now, known))
	was := pool[instance]
	others := a.Portion * max(0, live-1-(len(pool)-1))
	if _, there := pool[instance]; !there {
		others = a.Portion * max(0, live-1-len(pool))
	}
	for name, h := range pool {
		if name != instance {
			others += h.Held
		}
	}
	if 10*(others+max(a.Want, a.Active, was.Held)) >= 7*a.Limit {
		for name, written := range stale {
			if shard.gone(name, now, written) {
				delete(pool, name)
				delete(p, name)
			}
		}
	}
	before := 0
	for _, h := range pool {
		before += h.Active
	}
	g = concurrency.Take(pool, live, instance, a)
	h := pool[instance]
	if h.Seq == was.Seq {
		return g, false
	}
	p[instance] = fmt.Sprintf("%d %d %d %d", h.Held, h.Active, h.Seq, now)
	running := max(before, before-was.Active+h.Active)
	return g, running*10 >= a.Limit*7 || a.Refused > 0
}

// slotsKey is that of a bus of one shard.
func slotsKey(user string) string { return "sluice:{0}:slots:" + user }

func slotsRefuses(t *testing.T, s *server) {
	b := s.open(t, redisbus.Options{})
	ctx := context.Background()
	good := concurrency.Ask{User: "alice", Seq: 1, Want: 3, Limit: 10}
	tests := []struct {
		name  string
		spoil func(*concurrency.Ask)
		err   string
	}{
		{"nobody", func(a *concurrency.Ask) { a.User = "" }, "no user"},
		{"no limit", func(a *concurrency.Ask) { a.Limit = 0 }, "limit 0 is below 1"},
		{"no sequence number", func(a *concurrency.Ask) { a.Seq = 0 }, "sequence number 0 is not from 1 to 9007199254740991"},
		{"a sequence number beyond Lua", func(a *concurrency.Ask) { a.Seq = 1 << 53 }, "sequence number 9007199254740992 is not from 1 to 9007199254740991"},
		{"a negative want", func(a *concurrency.Ask) { a.Want = -1 }, "count -1 is not from 0 to 1000000000000"},
		{"a negative active", func(a *concurrency.Ask) { a.Active = -2 }, "count -2 is not from 0 to 1000000000000"},
		{"a negative portion", func(a *concurrency.Ask) { a.Portion = -1 }, "count -1 is not from 0 to 1000000000000"},
		{"a negative refused", func(a *concurrency.Ask) { a.Refused = -3 }, "count -3 is not from 0 to 1000000000000"},
		{"a want beyond Lua", func(a *concurrency.Ask) { a.Want = 1e12 + 1 }, "count 1000000000001 is not from 0 to 1000000000000"},
	}
	for _, tt := range tests {
		bad := good
		tt.spoil(&bad)
		_, err := b.Slots(ctx, "a", 0, []concurrency.Ask{good, bad})
		if want := "ask for slots: " + tt.err; err == nil || err.Error() != want {
			t.Errorf("Slots(%s) = %v, want %s", tt.name, err, want)
		}
	}
	if n := s.do(t, "DBSIZE"); n != int64(0) {
		t.Errorf("%v keys, want none: nothing was sent", n)
	}
	if slotted, err := b.Slots(ctx, "a", 0, nil); err != nil || len(slotted.Grants) != 0 {
		t.Errorf("Slots(nothing) = %+v, %v", slotted, err)
	}
	good.Seq = 1<<53 - 1
	for range 2 { // the second time it is not newer
		slotted, err := b.Slots(ctx, "a", 0, []concurrency.Ask{good})
		if want := (concurrency.Grant{Held: 3, Free: 7}); err != nil || slotted.Grants[0] != want {
			t.Errorf("Slots(the largest sequence number) = %+v, %v, want %+v", slotted.Grants, err, want)
		}
	}
}

func slotsDivides(t *testing.T, s *server) {
	b := s.open(t, redisbus.Options{Shards: 2})
	ear := listenToReports(t, b, redisbus.Progress{})
	var asks []concurrency.Ask
	for i := range 2000 { // each user wants a slot more each time
		asks = append(asks, concurrency.Ask{User: fmt.Sprint(i % 700), Seq: uint64(1 + i/700), Want: 1 + i/700, Active: 1, Limit: 2, Refused: 1 + i})
	}
	slotted, err := b.Slots(context.Background(), "a", 1, asks)
	testkit.Must(t, err)
	for i, g := range slotted.Grants {
		held := min(2, 1+i/700)
		if want := (concurrency.Grant{Held: held, Free: 2 - held}); g != want {
			t.Fatalf("grant %d of user %d = %+v, want %+v", i, i%700, g, want)
		}
	}
	refused := map[int]bool{}
	for entries := 0; entries < len(asks); {
		p := ear.next(t).(redisbus.Progress)
		if len(p.Entries) > 256 {
			t.Errorf("a message of %d entries: one script ran for so many", len(p.Entries))
		}
		for _, e := range p.Entries {
			refused[e.Refused] = true
			if e.User != fmt.Sprint((e.Refused-1)%700) {
				t.Fatalf("progress of user %s is %+v", e.User, e)
			}
		}
		entries += len(p.Entries)
	}
	if len(refused) != len(asks) {
		t.Errorf("%d asks were published, want each of %d once", len(refused), len(asks))
	}
}

// heardAgo is for how long the shard has not heard of an instance. Where it never has, it
// is not there.
type heardAgo map[string]time.Duration

// hear has the shard of a bus with one have heard exactly these.
func (s *server) hear(t *testing.T, heard heardAgo) {
	t.Helper()
	s.do(t, "DEL", "sluice:{0}:alive")
	for name, ago := range heard {
		s.do(t, "ZADD", "sluice:{0}:alive", time.Now().Add(-ago).UnixMilli(), name)
	}
}

// A shard hears of instances until they leave or are silent, not counting time in which all
// stood still. Where slots are not short, who is gone is not looked for.
func shardsHear(t *testing.T, s *server) {
	b := s.open(t, redisbus.Options{})
	ctx := context.Background()
	free := func(want int) (err error) { // what another one holds of 10 is 6, or nothing
		s.do(t, "DEL", slotsKey("alice"))
		s.do(t, "HSET", slotsKey("alice"), "other", fmt.Sprintf("6 6 1 %d", time.Now().Add(-2*time.Second).UnixMilli()))
		slotted, err := b.Slots(ctx, "a", 1, []concurrency.Ask{{User: "alice", Seq: 1, Want: 10, Limit: 10}})
		if err == nil && slotted.Grants[0].Held != want {
			err = fmt.Errorf("Slots = %+v, want %d held", slotted.Grants, want)
		}
		return err
	}
	for _, tt := range []struct {
		name  string
		heard heardAgo
		do    func() error
		want  int
	}{
		{"it is alive", nil, func() error { return b.Alive(ctx, "other", 0) }, 4},
		{"it has left, and its HAProxy goes on", heardAgo{"a": 0, "other": 0}, func() error { return b.Leave(ctx, "other") }, 4},
		{"it was silent", heardAgo{"a": 0, "other": 3 * time.Second}, func() error { return b.Alive(ctx, "a", 0) }, 10},
		{"all stood still, and the first is back", heardAgo{"a": 20 * time.Second, "other": 21 * time.Second}, func() error { return b.Alive(ctx, "a", 0) }, 4},
		{"it was silent before", heardAgo{"a": 20 * time.Second, "other": 23 * time.Second}, func() error { return b.Alive(ctx, "a", 0) }, 10},
		{"a new one does not know whether all stood still", heardAgo{"other": 3 * time.Second}, func() error { return b.Alive(ctx, "a", 0) }, 10},
	} {
		t.Run(tt.name, func(t *testing.T) {
			testkit.Eventually(t, "grant", func() error {
				s.hear(t, tt.heard)
				if err := tt.do(); err != nil {
					return err
				}
				return free(tt.want)
			})
		})
	}
	s.hear(t, heardAgo{"a": 0, "other": 3 * time.Second})
	s.do(t, "DEL", slotsKey("alice"))
	s.do(t, "HSET", slotsKey("alice"), "other", fmt.Sprintf("3 3 1 %d", time.Now().Add(-2*time.Second).UnixMilli()))
	slotted, err := b.Slots(ctx, "a", 1, []concurrency.Ask{{User: "alice", Seq: 1, Want: 3, Limit: 10}})
	if want := (concurrency.Grant{Held: 3, Free: 4}); err != nil || slotted.Grants[0] != want {
		t.Errorf("Slots(with plenty) = %+v, %v, want %+v", slotted.Grants, err, want)
	}
}

func slotsExpire(t *testing.T, s *server) {
	b := s.open(t, redisbus.Options{})
	soon := func() bool { return s.do(t, "PTTL", slotsKey("alice")).(int64) < 20_000 }
	for _, step := range []struct {
		name string
		ask  concurrency.Ask
		soon bool
	}{
		{"the first ask", concurrency.Ask{User: "alice", Seq: 2, Want: 3, Limit: 10}, false},
		{"one that is not newer", concurrency.Ask{User: "alice", Seq: 2, Want: 4, Limit: 10}, true},
		{"one that changes nothing else", concurrency.Ask{User: "alice", Seq: 3, Want: 3, Limit: 10}, false},
		{"one that gives all back", concurrency.Ask{User: "alice", Seq: 4, Limit: 10}, false},
	} {
		if _, err := b.Slots(context.Background(), "a", 0, []concurrency.Ask{step.ask}); err != nil {
			t.Fatal(err)
		}
		if got := soon(); got != step.soon {
			t.Errorf("after %s the pool expires soon: %v, want %v", step.name, got, step.soon)
		}
		s.do(t, "PEXPIRE", slotsKey("alice"), 10_000)
	}

	// Nothing is held, but the sequence number is still known.
	late := concurrency.Ask{User: "alice", Seq: 4, Want: 9, Limit: 10}
	slotted, err := b.Slots(context.Background(), "a", 0, []concurrency.Ask{late})
	if want := (concurrency.Grant{Held: 0, Free: 10}); err != nil || slotted.Grants[0] != want {
		t.Errorf("Slots(a late ask) = %+v, %v, want %+v", slotted.Grants, err, want)
	}

	// A pool that is gone is forgotten, what runs is not.
	s.do(t, "PEXPIRE", slotsKey("alice"), 1)
	testkit.Eventually(t, "expiry", func() error {
		if n := s.do(t, "EXISTS", slotsKey("alice")); n != int64(0) {
			return fmt.Errorf("the pool is still there")
		}
		return nil
	})
	again := concurrency.Ask{User: "alice", Seq: 1, Want: 1, Active: 12, Limit: 10}
	slotted, err = b.Slots(context.Background(), "a", 0, []concurrency.Ask{again})
	if want := (concurrency.Grant{Held: 12, Free: -2}); err != nil || slotted.Grants[0] != want {
		t.Errorf("Slots(after the expiry) = %+v, %v, want %+v", slotted.Grants, err, want)
	}
}
