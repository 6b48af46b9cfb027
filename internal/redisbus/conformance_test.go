package redisbus_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"pgregory.net/rapid"

	"github.com/sluice-qos/sluice/internal/redisbus"

	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/pkg/concurrency"
	rates "github.com/sluice-qos/sluice/pkg/limits" // limits is a test here
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

// TestConformance holds every kind of Redis that Sluice runs on to the same
// behaviour.
func TestConformance(t *testing.T) {
	servers := []struct {
		name  string
		start func(*testing.T) *server
	}{
		{"embedded", startEmbedded},
		{"redis", startRedis},
		{"cluster", func(t *testing.T) *server { return startCluster(t) }},
	}
	cases := []struct {
		name string
		run  func(*testing.T, *server)
	}{
		{"take is ratelimit.Take", takeIsRatelimitTake},
		{"take of bursts is ratelimit.Account.Take", takeIsAccountTake},
		{"an account's second ends early", accountsRoll},
		{"accounts are kept until they are full", accountsExpire},
		{"take refuses what would merge or miscount", takeRefuses},
		{"a batch that comes again counts once", takeCountsOnce},
		{"charge is cost.Pools.Take", chargeIsPoolsTake},
		{"charge refuses what would merge or miscount", chargeRefuses},
		{"what was charged can be read", chargesAreRead},
		{"pools of costs are kept for the next window", chargesExpire},
		{"slots is concurrency.Take", slotsIsConcurrencyTake},
		{"slots refuses what would miscount", slotsRefuses},
		{"large batches of slots are divided", slotsDivides},
		{"shards hear who is alive", shardsHear},
		{"slots expire", slotsExpire},
		{"demand is published, and nothing of it kept", demand},
		{"demand refuses what would not be read", demandRefuses},
		{"large batches of demand are divided", demandDivides},
		{"starts are published, and nothing is kept", startsPublished},
		{"events add up", eventsAddUp},
		{"events that cannot be are refused", eventsRefused},
		{"scripts that Redis forgot are sent again", scriptsForgotten},
		{"instances register, leave and lapse", registry},
		{"nobody is gone because all stood still", standstill},
		{"heartbeats catch up with what was missed", heartbeatsCatchUp},
		{"several changes at a time", changesTogether},
		{"a change that an answer has overtaken", overtakenChange},
		{"a registry that goes back", registryGoesBack},
		{"instances say which limits they enforce", versions},
		{"instances say why they do not fully work", problems},
		{"one candidate leads", lead},
		{"another number of shards is refused", shards},
		{"limits are kept and announced", limits},
		{"overrides are kept, and replaced by later ones", overrides},
		{"policies arrive in order", policies},
		{"each instance hears its own part", policiesToEach},
		{"malformed messages are counted", malformed},
		{"a slow handler loses messages and is told", slowHandler},
		{"every key expires", everyKeyExpires},
		{"the time is Redis'", redisTime},
	}
	for _, srv := range servers {
		t.Run(srv.name, func(t *testing.T) {
			s := srv.start(t)
			for _, c := range cases {
				t.Run(c.name, func(t *testing.T) {
					s.do(t, "FLUSHALL")
					c.run(t, s)
				})
			}
		})
	}
}

func takeIsRatelimitTake(t *testing.T, s *server) {
	b := s.open(t, redisbus.Options{Shards: 3})
	ear := listenToReports(t, b, redisbus.Usage{})
	iteration := 0
	rapid.Check(t, func(rt *rapid.T) {
		iteration++
		s.do(t, "FLUSHALL")
		type pool struct {
			key    ratelimit.Key
			second int64
		}
		totals := map[pool]int{} // ratelimit.Take's
		near := map[pool]int{}   // those to be told, as they were last
		told := map[pool]int{}   // polygen's
		calls := rapid.SliceOfN(rapid.SliceOfN(ask, 1, 12), 1, 5).Draw(rt, "calls")
		instance := user.Draw(rt, "instance") + fmt.Sprint(iteration)
		for _, asks := range calls {
			var want []ratelimit.Grant
			for _, a := range asks {
				p := pool{a.Key, a.WindowStart}
				total, ok := totals[p]
				if !ok {
					total = a.Reserve
				}
				g := ratelimit.Take(total, a)
				if ok || g.Total+a.Reserve > 0 { // else there is still no pool
					totals[p] = g.Total
				}
				if isTold(a, ok || a.Reserve == 0, total, g) {
					near[p] = g.Total
				}
				want = append(want, g)
			}
			taken, err := b.Take(context.Background(), instance, asks)
			if err != nil {
				rt.Fatalf("Take(%+v) = %v", asks, err)
			}
			if diff := cmp.Diff(want, taken.Grants); diff != "" {
				rt.Fatalf("Take(%+v) (-ratelimit.Take +got):\n%s", asks, diff)
			}
		}

		for _, u := range ear.usage(t, b) {
			if u.Instance != instance {
				rt.Fatalf("usage of %q, want %q", u.Instance, instance)
			}
			for _, e := range u.Entries {
				told[pool{e.Key, e.Second}] = e.Total
			}
		}
		if diff := cmp.Diff(near, told); diff != "" {
			rt.Fatalf("usage of %+v (-near the limits +told):\n%s", calls, diff)
		}

		// A probe reads and changes nothing, so it is not published.
		for p, total := range totals {
			taken, err := b.Take(context.Background(), "probe", []ratelimit.Ask{{Key: p.key, WindowStart: p.second}})
			if want := (ratelimit.Grant{Total: total}); err != nil || taken.Grants[0] != want {
				rt.Fatalf("Take(probe of %+v) = %+v, %v, want %+v", p, taken.Grants, err, want)
			}
		}
		if u := ear.usage(t, b); len(u) > 0 {
			rt.Fatalf("a probe was published: %+v", u)
		}
	})
}

// usage is what is heard of all shards until now.
func (e ear) usage(t *testing.T, b *redisbus.Bus) (heard []redisbus.Usage) {
	t.Helper()
	// Messages of a shard are in order, so those of calls before are before this one's.
	ended := map[int]bool{}
	for i := 0; len(ended) < b.Shards(); i++ {
		if user := fmt.Sprint("end-", i); !ended[b.ShardOf(user)] {
			ended[b.ShardOf(user)] = true
			if _, err := b.Take(context.Background(), "end", []ratelimit.Ask{{Key: ratelimit.Key{Class: "end", User: user}, Debt: 1}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	for len(ended) > 0 {
		u := e.next(t).(redisbus.Usage)
		if u.Instance != "end" {
			heard = append(heard, u)
			continue
		}
		delete(ended, b.ShardOf(u.Entries[0].Key.User))
	}
	return heard
}

// isTold is whether an ask is published, of a pool that had handed out so much before. One that did
// not exist had nothing, and its reserve is new.
func isTold(a ratelimit.Ask, existed bool, before int, g ratelimit.Grant) bool {
	changed := !existed || g.Total != before
	if 2*g.Total >= a.Limit {
		return changed || a.Untold && g.Tokens < a.Need
	}
	return a.Key.Window != rates.Second && changed && (!existed || before == 0 || 32*g.Total/a.Limit != 32*before/a.Limit)
}

var (
	user = rapid.OneOf(
		rapid.SampledFrom([]string{"alice", "bob", "", "|", "a|b", "a\x00b", "\xff\xfe", "a\nb\r\n", "3:a b", "{x}", "größe"}),
		rapid.Map(rapid.SliceOfN(rapid.Byte(), 0, 20), func(b []byte) string { return string(b) }),
		rapid.Map(rapid.IntRange(1, 100_000), func(n int) string { return strings.Repeat("\xfe", n) }),
	)
	window = rapid.SampledFrom([]rates.Window{rates.Second, rates.Second, rates.Minute, rates.Hour, rates.Day, rates.Month})
	ask    = rapid.Custom(func(t *rapid.T) ratelimit.Ask {
		// Mostly small, so that limits are met; sometimes as large as may be.
		count := rapid.OneOf(rapid.Just(0), rapid.IntRange(0, 12), rapid.IntRange(0, 12), rapid.IntRange(0, 1_000_000_000_000))
		return ratelimit.Ask{
			Key: ratelimit.Key{
				Class:  rapid.SampledFrom([]string{"GET", "*", "", "LIST all"}).Draw(t, "class"),
				User:   user.Draw(t, "user"),
				Window: window.Draw(t, "window"),
			},
			WindowStart: 1760000000 + rapid.Int64Range(0, 2).Draw(t, "second"),
			Limit:       rapid.OneOf(rapid.IntRange(1, 30), rapid.IntRange(0, 1<<52)).Draw(t, "limit"),
			Debt:        count.Draw(t, "debt"),
			Back:        count.Draw(t, "back"),
			Need:        count.Draw(t, "need"),
			Ahead:       count.Draw(t, "ahead"),
			Reserve:     rapid.OneOf(rapid.Just(0), rapid.IntRange(0, 20), rapid.IntRange(0, 1_000_000_000)).Draw(t, "reserve"),
			Instances:   rapid.IntRange(0, 20).Draw(t, "instances"),
			Untold:      rapid.Bool().Draw(t, "untold"),
		}
	})
)

func takeIsAccountTake(t *testing.T, s *server) {
	b := s.open(t, redisbus.Options{})
	ear := listenToReports(t, b, redisbus.Usage{})
	name := rapid.OneOf(rapid.SampledFrom([]string{"alice", "bob"}), user)
	small := rapid.OneOf(rapid.Just(0), rapid.IntRange(0, 12), rapid.IntRange(0, 12), rapid.IntRange(0, 1_000_000_000_000))
	large := rapid.OneOf(rapid.IntRange(0, 30), rapid.IntRange(0, 30), rapid.IntRange(0, 1<<52))
	iteration := 0
	rapid.Check(t, func(rt *rapid.T) {
		iteration++
		s.do(t, "FLUSHALL")
		start, err := b.Time(context.Background())
		if err != nil {
			rt.Fatal(err)
		}
		accounts := map[ratelimit.Key]ratelimit.Account{} // ratelimit's
		totals := map[string]int{}                        // of what is to be published
		for _, u := range []string{"alice", "bob"} {
			if !rapid.Bool().Draw(rt, "seen before") {
				continue
			}
			a := ratelimit.Account{
				Second: start.Unix() + rapid.OneOf(rapid.Int64Range(-6, 2), rapid.Int64Range(-1000, 1000)).Draw(rt, "second"),
				Credit: large.Draw(rt, "credit"), Before: small.Draw(rt, "before"), Total: small.Draw(rt, "total"), Next: small.Draw(rt, "next"),
			}
			key := ratelimit.Key{Class: "GET", User: u}
			accounts[key] = a
			s.do(t, "SET", "sluice:{0}:burst:GET|"+u, fmt.Sprintf("%d %d %d %d %d", a.Second, a.Credit, a.Before, a.Total, a.Next))
		}
		instance := fmt.Sprint(iteration)
		for range rapid.IntRange(1, 4).Draw(rt, "calls") {
			asks := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) ratelimit.Ask {
				return ratelimit.Ask{
					Key:         ratelimit.Key{Class: rapid.SampledFrom([]string{"GET", "GET", "*"}).Draw(t, "class"), User: name.Draw(t, "user")},
					WindowStart: start.Unix() + rapid.OneOf(rapid.Int64Range(-2, 2), rapid.Int64Range(-2000, 2000)).Draw(t, "second"),
					Limit:       large.Draw(t, "limit"), Burst: max(1, large.Draw(t, "burst")),
					Debt: small.Draw(t, "debt"), Back: small.Draw(t, "back"), Need: small.Draw(t, "need"), Ahead: small.Draw(t, "ahead"),
					Instances: rapid.IntRange(0, 20).Draw(t, "instances"), Untold: rapid.Bool().Draw(t, "untold"),
				}
			}), 1, 12).Draw(rt, "asks")
			taken, err := b.Take(context.Background(), instance, asks)
			if err != nil {
				rt.Fatalf("Take(%+v) = %v", asks, err)
			}
			var want []ratelimit.Grant
			for _, a := range asks {
				_, was := accounts[a.Key].Take(taken.Now, ratelimit.Ask{WindowStart: a.WindowStart, Limit: a.Limit, Burst: a.Burst})
				after, g := accounts[a.Key].Take(taken.Now, a)
				accounts[a.Key] = after
				want = append(want, g)
				p := fmt.Sprint(a.WindowStart, a.Key)
				if away := a.WindowStart - after.Second; away < -1 || away > 1 {
					continue // the account does not know the second, perhaps not any more: nothing is told
				}
				if 2*g.Total >= a.Limit+a.Burst && (g.Total != was.Total || a.Untold && g.Tokens < a.Need) {
					totals[p] = g.Total
				}
			}
			if diff := cmp.Diff(want, taken.Grants); diff != "" {
				rt.Fatalf("Take(%+v) at %v (-Account.Take +got):\n%s", asks, taken.Now, diff)
			}
		}
		for key, want := range accounts {
			stored, _ := s.do(t, "GET", "sluice:{0}:burst:"+key.Class+"|"+key.User).(string)
			if got := fmt.Sprintf("%d %d %d %d %d", want.Second, want.Credit, want.Before, want.Total, want.Next); stored != got {
				rt.Fatalf("account of %+v = %q, want %q", key, stored, got)
			}
		}
		if _, err := b.Take(context.Background(), "end", []ratelimit.Ask{{Key: ratelimit.Key{Class: "end"}, Debt: 1}}); err != nil {
			rt.Fatal(err)
		}
		told := map[string]int{}
		for {
			u, ok := ear.next(t).(redisbus.Usage)
			if !ok || u.Instance == "end" {
				break
			}
			for _, e := range u.Entries {
				told[fmt.Sprint(e.Second, e.Key)] = e.Total
			}
		}
		if diff := cmp.Diff(totals, told); diff != "" {
			rt.Fatalf("usage (-near the limits +told):\n%s", diff)
		}
	})
}

// accountsRoll asks without a pause until a second has ended: 10 ms before.
func accountsRoll(t *testing.T, s *server) {
	b := s.open(t, redisbus.Options{})
	var want ratelimit.Account
	for first := int64(0); ; {
		a := ratelimit.Ask{Key: ratelimit.Key{Class: "GET", User: "alice"}, WindowStart: first, Limit: 2, Burst: 3, Need: 1}
		taken, err := b.Take(context.Background(), "a", []ratelimit.Ask{a})
		testkit.Must(t, err)
		var g ratelimit.Grant
		if want, g = want.Take(taken.Now, a); taken.Grants[0] != g {
			t.Fatalf("Take(%+v) at %v = %+v, want %+v", a, taken.Now, taken.Grants[0], g)
		}
		if first == 0 {
			first = taken.Now.Unix() + 1
		}
		if taken.Now.Unix() >= first {
			return
		}
	}
}

// An account is gone when a user who never saved and one whose savings are full
// are the same.
func accountsExpire(t *testing.T, s *server) {
	b := s.open(t, redisbus.Options{})
	for _, tt := range []struct {
		name string
		ask  ratelimit.Ask
		want int64 // seconds
	}{
		{"nothing is missing", ratelimit.Ask{Limit: 10, Burst: 50, Need: 10}, 12},
		{"all of the credit is", ratelimit.Ask{Limit: 10, Burst: 50, Need: 1000}, 16}, // two tenths of it come in the second after
		{"a debt is more than that", ratelimit.Ask{Limit: 10, Burst: 50, Debt: 1000}, 16},
		{"a year's worth", ratelimit.Ask{Limit: 1, Burst: 31_536_000, Need: 31_536_000}, 86400},
		{"a limit of nothing", ratelimit.Ask{Burst: 50, Need: 10}, 12},
		{"a report that is too late", ratelimit.Ask{Limit: 10, Burst: 50, WindowStart: 17, Debt: 50}, 14}, // of the credit of the second before
	} {
		testkit.Eventually(t, tt.name, func() error { // at the second time, if much of a second went by
			s.do(t, "FLUSHALL")
			ask := tt.ask
			ask.Key = ratelimit.Key{Class: "GET", User: "alice"}
			now, err := b.Time(context.Background())
			if err != nil {
				return err
			}
			if ask.WindowStart == 0 {
				ask.WindowStart = now.Unix()
			}
			if _, err := b.Take(context.Background(), "a", []ratelimit.Ask{ask}); err != nil {
				return err
			}
			if got := s.do(t, "TTL", "sluice:{0}:burst:GET|alice"); got != tt.want && got != tt.want-1 {
				return fmt.Errorf("expires in %v s, want %d", got, tt.want)
			}
			return nil
		})
	}
}

func takeRefuses(t *testing.T, s *server) {
	b := s.open(t, redisbus.Options{})
	good := ratelimit.Ask{Key: ratelimit.Key{Class: "GET", User: "alice"}, WindowStart: 17, Limit: 10, Debt: 1}
	tests := []struct {
		name string
		ask  ratelimit.Ask
		err  string
	}{
		{"the separator in a class", ratelimit.Ask{Key: ratelimit.Key{Class: "G|T"}}, `take tokens: class "G|T" holds '|', '/' or a control byte`},
		{"a window's name in a class", ratelimit.Ask{Key: ratelimit.Key{Class: "GET/minute"}}, `take tokens: class "GET/minute" holds '|', '/' or a control byte`},
		{"a burst over a minute", ratelimit.Ask{Key: ratelimit.Key{Window: rates.Minute}, Limit: 1, Burst: 1}, `take tokens: burst in a window of one minute`},
		{"a negative burst", ratelimit.Ask{Burst: -1}, `take tokens: burst -1 is negative`},
		{"a control byte in a class", ratelimit.Ask{Key: ratelimit.Key{Class: "G\n"}}, `take tokens: class "G\n" holds '|', '/' or a control byte`},
		{"a negative need", ratelimit.Ask{Need: -1}, `take tokens: count -1 is not from 0 to 1000000000000`},
		{"a debt beyond Lua", ratelimit.Ask{Debt: 1e12 + 1}, `take tokens: count 1000000000001 is not from 0 to 1000000000000`},
	}
	for _, tt := range tests {
		_, err := b.Take(context.Background(), "a", []ratelimit.Ask{good, tt.ask})
		if err == nil || err.Error() != tt.err {
			t.Errorf("Take(%s) = %v, want %s", tt.name, err, tt.err)
		}
	}
	taken, err := b.Take(context.Background(), "a", []ratelimit.Ask{good})
	if err != nil || taken.Grants[0].Total != 1 {
		t.Errorf("Take(the good ask) = %+v, %v, want nothing counted before", taken.Grants, err)
	}
	if taken, err := b.Take(context.Background(), "a", nil); err != nil || len(taken.Grants) != 0 {
		t.Errorf("Take(nothing) = %+v, %v", taken, err)
	}
}

// takeCountsOnce plays agents whose batches get no answer, and a pool that hears of them
// again, or late: ratelimit.Take and ratelimit.Ask.Heard.
func takeCountsOnce(t *testing.T, s *server) {
	type sender struct {
		instance string
		bus      *redisbus.Bus
	}
	one, other := s.open(t, redisbus.Options{Shards: 3}), s.open(t, redisbus.Options{Shards: 3})
	senders := []sender{{"a", one}, {"b", one}, {"a", other}} // the last one has the name of the first, as after a restart
	rapid.Check(t, func(rt *rapid.T) {
		s.do(t, "FLUSHALL")
		type pool struct {
			key    ratelimit.Key
			second int64
		}
		totals := map[pool]int{}
		heard := map[sender]uint64{}
		sent := map[sender][][]ratelimit.Ask{}
		for range rapid.IntRange(1, 12).Draw(rt, "calls") {
			from := rapid.SampledFrom(senders).Draw(rt, "sender")
			n := len(sent[from])
			if again := rapid.IntRange(0, n).Draw(rt, "batch"); again < n {
				n = again // one that failed, or is late
			} else {
				asks := rapid.SliceOfN(ask, 1, 8).Draw(rt, "asks")
				for i := range asks {
					asks[i].Seq = uint64(n + 1)
				}
				sent[from] = append(sent[from], asks)
			}
			asks := sent[from][n]
			var want []ratelimit.Grant
			for _, a := range asks {
				again := a.Seq <= heard[from]
				if again {
					a = a.Repeated()
				}
				p := pool{a.Key, a.WindowStart}
				total, ok := totals[p]
				if !ok {
					total = a.Reserve
				}
				g := ratelimit.Take(total, a)
				if !again && (ok || g.Total+a.Reserve > 0) { // else no pool comes into being
					totals[p] = g.Total
				}
				want = append(want, g)
			}
			heard[from] = max(heard[from], asks[0].Seq)
			// Only what has come to the shards of these asks is known there.
			taken, err := from.bus.Take(context.Background(), from.instance, asks)
			if err != nil {
				rt.Fatalf("Take(%+v) = %v", asks, err)
			}
			if diff := cmp.Diff(want, taken.Grants); diff != "" {
				rt.Fatalf("Take(%+v), the number %d of %v (-want +got):\n%s", asks, n+1, from, diff)
			}
		}
	})

	t.Run("more than one call, bursts among them", func(t *testing.T) {
		s.do(t, "FLUSHALL")
		b := one
		now, err := b.Time(context.Background())
		testkit.Must(t, err)
		var asks []ratelimit.Ask
		for i := range 1000 {
			a := ratelimit.Ask{Key: ratelimit.Key{Class: "GET", User: fmt.Sprint(i)}, Seq: 7, WindowStart: now.Unix(), Limit: 100, Debt: 5, Back: 1}
			if i%3 == 0 {
				a.Burst = 50
			}
			asks = append(asks, a)
		}
		for range 3 {
			taken, err := b.Take(context.Background(), "a", asks)
			testkit.Must(t, err)
			after, err := b.Time(context.Background())
			testkit.Must(t, err)
			for i, g := range taken.Grants {
				if g.Total != 4 && (asks[i].Burst == 0 || after.Unix() == now.Unix()) { // accounts end with their second
					t.Fatalf("total of user %d = %d, want 4", i, g.Total)
				}
			}
		}
	})

	for _, asks := range [][]ratelimit.Ask{
		{{Key: ratelimit.Key{Class: "GET"}, Seq: 1}, {Key: ratelimit.Key{Class: "GET"}, Seq: 2}},
		{{Key: ratelimit.Key{Class: "GET"}, Seq: 1 << 40}},
	} {
		if _, err := one.Take(context.Background(), "a", asks); err == nil {
			t.Errorf("Take(%+v) = nil, want an error", asks)
		}
	}
}

func scriptsForgotten(t *testing.T, s *server) {
	b := s.open(t, redisbus.Options{Shards: 4})
	ctx := context.Background()
	calls := theirPart(ctx, b, b)
	calls["Leave"] = func() error { return b.Leave(ctx, "a") }
	calls["Resign"] = func() error { return b.Resign(ctx, "p") }
	calls["Take of all shards"] = func() error {
		var asks []ratelimit.Ask
		for i := range 20 {
			asks = append(asks, ratelimit.Ask{Key: ratelimit.Key{Class: "GET", User: fmt.Sprint(i)}, WindowStart: 17, Limit: 9, Debt: 1})
		}
		taken, err := b.Take(ctx, "a", asks)
		for i, g := range taken.Grants {
			if g.Total != 1 {
				t.Errorf("user %d was counted %d times, want once", i, g.Total)
			}
		}
		return err
	}
	calls["Slots of all shards"] = func() error {
		var asks []concurrency.Ask
		for i := range 20 {
			asks = append(asks, concurrency.Ask{User: fmt.Sprint(i), Seq: 1, Want: 1, Limit: 9})
		}
		slotted, err := b.Slots(ctx, "a", 0, asks)
		for i, g := range slotted.Grants {
			if want := (concurrency.Grant{Held: 1, Free: 8}); g != want {
				t.Errorf("user %d got %+v, want %+v", i, g, want)
			}
		}
		return err
	}
	for name, call := range calls {
		s.do(t, "SCRIPT", "FLUSH")
		if err := call(); err != nil {
			t.Errorf("%s after SCRIPT FLUSH = %v", name, err)
		}
	}
}

func registry(t *testing.T, s *server) {
	b := s.open(t, redisbus.Options{})
	ear := listen(t, b, redisbus.InstancesChannel)
	ctx := context.Background()
	alive := []string{}
	// want lets all that are alive register until they are exactly the registry:
	// on a slow machine one may lapse before the next registers.
	want := func(instances ...string) {
		t.Helper()
		testkit.Eventually(t, "registry", func() error {
			for _, name := range alive {
				r, err := b.Register(ctx, name, "", "")
				if err != nil {
					return err
				}
				if cmp.Equal(r.Instances, instances) {
					return nil
				}
				err = fmt.Errorf("Register(%q) = %q, want %q", name, r.Instances, instances)
				if name == alive[len(alive)-1] {
					return err
				}
			}
			return errors.New("nobody is alive")
		})
		// The last that all were told is the same.
		testkit.Eventually(t, "announcement", func() error {
			if r := ear.next(t).(redisbus.Registry); !cmp.Equal(r.Instances, instances) {
				return fmt.Errorf("was told of %q, want %q", r.Instances, instances)
			}
			return nil
		})
	}
	alive = []string{"b"}
	want("b")
	alive = []string{"b", "a 1:x\x00\xff"}
	want("a 1:x\x00\xff", "b")

	if err := b.Leave(ctx, "a 1:x\x00\xff"); err != nil {
		t.Errorf("Leave = %v", err)
	}
	alive = []string{"b"}
	want("b")
	if err := b.Leave(ctx, "nobody"); err != nil {
		t.Errorf("Leave(nobody) = %v", err)
	}

	// One that was silent for longer than 2 s, and one of a clock set back by a minute.
	testkit.Eventually(t, "instances that are not heard, or of another clock", func() error {
		now := time.Now().UnixMilli()
		s.do(t, "ZADD", "sluice:{cluster}:instances", now-2001, "silent", now, "b", now+60_000, "future")
		if r, err := b.Register(ctx, "b", "", ""); err != nil || !cmp.Equal(r.Instances, []string{"b"}) {
			return fmt.Errorf("Register(b) = %q, %v, want it alone", r.Instances, err)
		}
		return nil
	})
	want("b")

	// One that has been silent for less stays.
	alive = []string{"b", "c"}
	want("b", "c")
	testkit.Eventually(t, "an instance that misses some heartbeats", func() error {
		s.do(t, "ZADD", "sluice:{cluster}:instances", time.Now().UnixMilli()-1000, "c")
		r, err := b.Register(ctx, "b", "", "")
		if want := []string{"b", "c"}; err != nil || !cmp.Equal(r.Instances, want) {
			return fmt.Errorf("Register(b) = %q, %v, want %q", r.Instances, err, want)
		}
		return nil
	})
}

// While Redis or all machines stand still nobody is heard. Who is heard first then takes
// nobody for gone, unless the others go on being silent.
func standstill(t *testing.T, s *server) {
	b := s.open(t, redisbus.Options{})
	ctx := context.Background()
	for _, tt := range []struct {
		name   string
		silent map[string]int64 // for how many milliseconds each has been
		ask    string           // who registers; "": nobody, they are listed
		want   []string
	}{
		{"all stood still for 2 s", map[string]int64{"a": 2100, "b": 2000, "c": 2200}, "a", []string{"a", "b", "c"}},
		{"one was silent before", map[string]int64{"a": 2100, "b": 2000, "c": 3700}, "a", []string{"a", "b"}},
		{"one was silent while another was heard", map[string]int64{"a": 2000, "b": 100}, "b", []string{"b"}},
		{"a new one comes when all are dead", map[string]int64{"a": 2000, "b": 2000}, "new", []string{"new"}},
		{"all stood still for a long time", map[string]int64{"a": 20_100, "b": 20_000, "c": 20_200}, "a", []string{"a", "b", "c"}},
		{"the only one left is heard rarely", map[string]int64{"dead": 2100, "slow": 700}, "slow", []string{"slow"}},
		{"they are listed after a standstill", map[string]int64{"a": 2000, "b": 2100}, "", []string{"a", "b"}},
		{"they are listed when all are dead", map[string]int64{"a": 3100, "b": 3200}, "", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			// A machine that stands still between the two calls adds to the silence.
			testkit.Eventually(t, "the registry", func() error {
				s.do(t, "DEL", "sluice:{cluster}:instances", "sluice:{cluster}:epoch")
				now := time.Now().UnixMilli()
				for name, ms := range tt.silent {
					s.do(t, "ZADD", "sluice:{cluster}:instances", now-ms, name)
				}
				ask := func() (redisbus.Registry, error) { return b.Register(ctx, tt.ask, "", "") }
				if tt.ask == "" {
					ask = func() (redisbus.Registry, error) { return b.Instances(ctx) }
				}
				r, err := ask()
				if err != nil || !slices.Equal(r.Instances, tt.want) {
					return fmt.Errorf("instances = %q, %v, want %q", r.Instances, err, tt.want)
				}
				if ttl := s.do(t, "PTTL", "sluice:{cluster}:instances").(int64); tt.ask != "" && ttl < 30_000 {
					return fmt.Errorf("they are forgotten in %d ms", ttl)
				}
				return nil
			})
		})
	}
}

// A saidStep is what instances say of themselves with their heartbeats, and what is heard then.
type saidStep struct {
	name   string
	leaves string
	alive  map[string]string // what registers, so that nobody lapses on a slow machine
	want   map[string]string
}

// hears takes the steps: register is a heartbeat, and heard what it is about.
func hears(t *testing.T, b *redisbus.Bus, steps []saidStep, register func(instance, says string) error, heard func(redisbus.Registry) map[string]string) {
	t.Helper()
	ctx := context.Background()
	for _, step := range steps {
		testkit.Eventually(t, step.name, func() error {
			for name, says := range step.alive {
				if err := register(name, says); err != nil {
					return err
				}
			}
			if step.leaves != "" {
				if err := b.Leave(ctx, step.leaves); err != nil {
					return err
				}
			}
			r, err := b.Instances(ctx)
			if err == nil && !cmp.Equal(heard(r), step.want) {
				err = fmt.Errorf("Instances() = %q, want %q", heard(r), step.want)
			}
			return err
		})
	}
}

// Each instance's version of the limits is heard by who asks, and gone with it.
func versions(t *testing.T, s *server) {
	b := s.open(t, redisbus.Options{})
	register := func(instance, version string) error {
		_, err := b.Register(t.Context(), instance, version, "")
		return err
	}
	hears(t, b, []saidStep{
		{"none yet", "", map[string]string{"a": ""}, map[string]string{}},
		{"one", "", map[string]string{"a": "v1"}, map[string]string{"a": "v1"}},
		{"any bytes", "", map[string]string{"a": "v1", "b 1:x\x00\xff": "v1"}, map[string]string{"a": "v1", "b 1:x\x00\xff": "v1"}},
		{"the first has new ones", "", map[string]string{"a": "v2", "b 1:x\x00\xff": "v1"}, map[string]string{"a": "v2", "b 1:x\x00\xff": "v1"}},
		{"the second leaves", "b 1:x\x00\xff", map[string]string{"a": "v2"}, map[string]string{"a": "v2"}},
	}, register, func(r redisbus.Registry) map[string]string { return r.Versions })
	if n := s.do(t, "HLEN", "sluice:{cluster}:versions"); n != int64(1) {
		t.Errorf("%v versions are kept, want 1: who is gone has none", n)
	}
}

// Each instance's problem is heard by who asks, until it has none or is gone. What all
// are told does not have it.
func problems(t *testing.T, s *server) {
	b := s.open(t, redisbus.Options{})
	ear := listen(t, b, redisbus.InstancesChannel)
	ctx := context.Background()
	long := strings.Repeat("ü", 60)
	register := func(instance, problem string) error { _, err := b.Register(ctx, instance, "v1", problem); return err }
	hears(t, b, []saidStep{
		{"one that is well", "", map[string]string{"a": ""}, map[string]string{}},
		{"one that is not", "", map[string]string{"a": "not serving yet"}, map[string]string{"a": "not serving yet"}},
		{"another problem", "", map[string]string{"a": "no \x00\xff: 1"}, map[string]string{"a": "no \x00\xff: 1"}},
		{"two", "", map[string]string{"a": "x", "b": "y"}, map[string]string{"a": "x", "b": "y"}},
		{"100 bytes of a long one", "", map[string]string{"a": "x", "b": long}, map[string]string{"a": "x", "b": long[:100]}},
		{"cut between letters", "", map[string]string{"a": "x", "b": "-" + long}, map[string]string{"a": "x", "b": "-" + long[:98]}},
		{"the first is well again", "", map[string]string{"a": "", "b": "y"}, map[string]string{"b": "y"}},
		{"the second leaves", "b", map[string]string{"a": ""}, map[string]string{}},
	}, register, func(r redisbus.Registry) map[string]string { return r.Problems })
	if n := s.do(t, "EXISTS", "sluice:{cluster}:problems"); n != int64(0) {
		t.Error("problems are kept of who is gone")
	}
	if r := ear.next(t).(redisbus.Registry); r.Problems != nil || r.Versions != nil {
		t.Errorf("all were told %+v, want nothing of versions and problems", r)
	}
	// Hashes are read after the list, and may have what has left it.
	s.do(t, "HSET", "sluice:{cluster}:problems", "gone", "x")
	if r, err := b.Instances(ctx); err != nil || len(r.Problems) != 0 {
		t.Errorf("Instances() = %q, %v, want no problem of who is not there", r.Problems, err)
	}
}

func lead(t *testing.T, s *server) {
	b := s.open(t, redisbus.Options{})
	ctx := context.Background()
	leads := func(candidate string, span time.Duration, want string) {
		t.Helper()
		got, err := b.Lead(ctx, redisbus.Leader{Name: candidate, Address: "at " + candidate}, span)
		if err != nil || got != (redisbus.Leader{Name: want, Address: "at " + want}) {
			t.Fatalf("Lead(%s, %v) = %+v, %v, want %s", candidate, span, got, err, want)
		}
	}
	leads("a", time.Hour, "a")
	leads("b", time.Hour, "a")
	leads("a", time.Hour, "a")
	testkit.Must(t, b.Resign(ctx, "b"))
	leads("b", time.Hour, "a")
	testkit.Must(t, b.Resign(ctx, "a"))
	leads("b", time.Hour, "b")

	leads("b", 50*time.Millisecond, "b") // its last
	testkit.Eventually(t, "takeover", func() error {
		got, err := b.Lead(ctx, redisbus.Leader{Name: "a", Address: "at a"}, time.Hour)
		if got.Name != "a" {
			return fmt.Errorf("Lead(a) = %v, %w, want a", got, err)
		}
		return nil
	})
	leads("b", time.Hour, "a")
	if _, err := b.Lead(ctx, redisbus.Leader{Name: "b"}, 0); err == nil {
		t.Error("Lead(b, 0) = nil, want an error")
	}
}

func shards(t *testing.T, s *server) {
	one, four := s.open(t, redisbus.Options{}), s.open(t, redisbus.Options{Shards: 4})
	ctx := context.Background()
	if _, err := one.Register(ctx, "a", "", ""); err != nil {
		t.Fatal(err)
	}
	_, err := four.Register(ctx, "b", "", "")
	want := "register instance: processes differ in their number of shards: others use 1, this one 4"
	if !errors.Is(err, redisbus.ErrShards) || err.Error() != want {
		t.Errorf("Register = %v, want %s", err, want)
	}
	if leads, err := four.Lead(ctx, redisbus.Leader{Name: "p"}, time.Hour); leads.Name != "" || !errors.Is(err, redisbus.ErrShards) {
		t.Errorf("Lead = %v, %v, want %v", leads, err, redisbus.ErrShards)
	}
	if leads, err := one.Lead(ctx, redisbus.Leader{Name: "q"}, time.Hour); leads.Name != "q" || err != nil {
		t.Errorf("Lead with the right number = %v, %v, want true", leads, err)
	}
	if r, err := one.Register(ctx, "a", "", ""); err != nil || !cmp.Equal(r.Instances, []string{"a"}) {
		t.Errorf("Register = %q, %v, want nobody else", r.Instances, err)
	}

	// When all of them are gone, and with them the key, the number may change.
	s.do(t, "DEL", "sluice:{cluster}:shards")
	if leads, err := four.Lead(ctx, redisbus.Leader{Name: "q"}, time.Hour); leads.Name != "q" || err != nil {
		t.Errorf("Lead once the others are gone = %v, %v, want true", leads, err)
	}
	if _, err := one.Register(ctx, "a", "", ""); !errors.Is(err, redisbus.ErrShards) {
		t.Errorf("Register = %v, want %v", err, redisbus.ErrShards)
	}
}

func limits(t *testing.T, s *server) {
	b := s.open(t, redisbus.Options{})
	ear := listen(t, b, redisbus.PoliciesChannel)
	ctx := context.Background()
	if _, err := b.Limits(ctx, 1); !errors.Is(err, redisbus.ErrNoLimits) || errors.Is(err, redisbus.ErrUnavailable) {
		t.Errorf("Limits = %v, want %v", err, redisbus.ErrNoLimits)
	}
	for i, source := range []string{strings.Repeat("\x00\xff\r\n", 1<<18), ""} {
		version := fmt.Sprintf("v%d\n", i)
		testkit.Must(t, b.PublishLimits(ctx, published(version, source)))
		got, err := b.Limits(ctx, 1)
		if got.Version != version || string(got.File) != source || err != nil {
			t.Errorf("Limits = %q, %d bytes, %v, want %q, %d bytes", got.Version, len(got.File), err, version, len(source))
		}
		if diff := cmp.Diff(redisbus.Event(redisbus.Policies{redisbus.Limits{Version: version}}), ear.next(t)); diff != "" {
			t.Errorf("announcement (-want +got):\n%s", diff)
		}
	}

	s.do(t, "PEXPIRE", "sluice:limits", "100000")
	for _, c := range []struct {
		version string
		kept    bool
	}{{"v0\n", false}, {"v1\n", true}} {
		if kept, err := b.KeepLimits(ctx, c.version); kept != c.kept || err != nil {
			t.Errorf("KeepLimits(%q) = %v, %v, want %v", c.version, kept, err, c.kept)
		}
		if renewed := s.do(t, "TTL", "sluice:limits").(int64) > 1000; renewed != c.kept {
			t.Errorf("after KeepLimits(%q) the time to live is renewed: %v, want %v", c.version, renewed, c.kept)
		}
	}
	s.do(t, "DEL", "sluice:limits")
	if kept, err := b.KeepLimits(ctx, "v1\n"); kept || err != nil {
		t.Errorf("KeepLimits of forgotten limits = %v, %v, want false", kept, err)
	}
}

func policies(t *testing.T, s *server) {
	b := s.open(t, redisbus.Options{})
	ear := listen(t, b, redisbus.PoliciesChannel)
	ctx := context.Background()
	if err := b.PublishPolicies(ctx, nil); err != nil {
		t.Errorf("PublishPolicies(nothing) = %v", err)
	}
	var want []redisbus.Message
	for i := range 2000 {
		key := ratelimit.Key{Class: "GET", User: fmt.Sprintf("%d %s", i, strings.Repeat("\x00\xff\n\"", i%30))}
		want = append(want, redisbus.Throttle{Key: key, Second: 17, Limit: i})
	}
	tooLong := redisbus.Throttle{Key: ratelimit.Key{Class: "GET", User: strings.Repeat("\x00", redisbus.MaxLine)}}
	sent := append(append([]redisbus.Message{tooLong}, want[:1000]...), append([]redisbus.Message{tooLong}, want[1000:]...)...)
	err := b.PublishPolicies(ctx, sent)
	if err == nil || err.Error() != "publish policies: 2 are longer than 73728 bytes" {
		t.Errorf("PublishPolicies = %v, want it to tell of the two that are too long", err)
	}
	var got []redisbus.Message
	for len(got) < len(want) {
		got = append(got, ear.next(t).(redisbus.Policies)...)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("policies (-sent +received):\n%s", diff)
	}
}

func malformed(t *testing.T, s *server) {
	b := s.open(t, redisbus.Options{})
	ear, told := listen(t, b, redisbus.PoliciesChannel, redisbus.InstancesChannel), listenToReports(t, b, redisbus.Usage{}, redisbus.Progress{})
	good := redisbus.Throttle{Key: ratelimit.Key{Class: "GET", User: "alice"}, Second: 17, Limit: 5}
	pack := func(lines string) string { return string(redisbus.Pack([]byte(lines))) }
	line := string(redisbus.Append(nil, good))
	for _, m := range []struct{ channel, payload string }{
		{"sluice:{0}:usage", ""},
		{"sluice:{0}:usage", "1 1:a 17 9223372036854775807 "},
		{"sluice:instances", "\x00"},
		{"sluice:{0}:progress", "1 1:a 1:u 1 2 3"},
		{"sluice:policies", pack("nonsense\n" + line + "1 defer \"x\"\n")},
		{"sluice:policies", pack(strings.Repeat("\n", redisbus.MaxBatch+1))},
		{"sluice:policies", "garbage"},
		{"sluice:policies", pack(line)[:10]},
		{"sluice:policies", pack(line)},
		{"sluice:{0}:usage", "1 1:a 17 1 5:GET|u 5"},
	} {
		s.publish(t, m.channel, m.payload)
	}
	want := []redisbus.Event{
		redisbus.Policies{good}, redisbus.Policies{good},
		redisbus.Usage{Instance: "a", Entries: []redisbus.UsageEntry{{Second: 17, Key: ratelimit.Key{Class: "GET", User: "u"}, Total: 5}}},
	}
	if diff := cmp.Diff(want, []redisbus.Event{ear.next(t), ear.next(t), told.next(t)}); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	err := testutil.GatherAndCompare(s.registry, strings.NewReader(`
# HELP sluice_bus_malformed_total Published messages, or policies in them, that were not understood.
# TYPE sluice_bus_malformed_total counter
sluice_bus_malformed_total{channel="sluice:instances"} 1
sluice_bus_malformed_total{channel="sluice:policies"} 5
sluice_bus_malformed_total{channel="sluice:{<n>}:progress"} 1
sluice_bus_malformed_total{channel="sluice:{<n>}:usage"} 2
`), "sluice_bus_malformed_total")
	if err != nil {
		t.Error(err)
	}
	if n := strings.Count(s.log.String(), "malformed message"); n != 2 {
		t.Errorf("%d malformed messages were logged, want the first of each subscription alone:\n%s", n, s.log.String())
	}
}

func slowHandler(t *testing.T, s *server) {
	b := s.open(t, redisbus.Options{})
	began, goOn := make(chan struct{}), make(chan struct{})
	events := make(chan redisbus.Event, 1000)
	first := true
	listenWith(t, b, func(e redisbus.Event) {
		if _, ok := e.(redisbus.Policies); ok && first {
			first = false
			close(began)
			<-goOn
		}
		events <- e
	}, redisbus.PoliciesChannel)
	if e := <-events; e != (redisbus.Connected{}) {
		t.Fatalf("the first event is %#v, want Connected", e)
	}

	// One is handled for so long that more than 8 MiB follow it.
	ctx := context.Background()
	publish := func(version string) {
		t.Helper()
		testkit.Must(t, b.PublishPolicies(ctx, []redisbus.Message{redisbus.Limits{Version: version}}))
	}
	publish("first")
	<-began
	large := make([]byte, 60<<10) // that does not compress well
	for i := range large {
		large[i] = byte('0' + rand.IntN(64))
	}
	for range 250 {
		publish(string(large))
	}
	testkit.Eventually(t, "drops", func() error {
		if n := s.metric(t, "sluice_bus_dropped_total"); n == 0 {
			return errors.New("no message was dropped")
		}
		return nil
	})
	close(goOn)
	publish("last")

	var got []redisbus.Event
	connected := 0
	for {
		e := ear(events).any(t)
		got = append(got, e)
		if e == (redisbus.Connected{}) {
			connected++
		}
		if p, ok := e.(redisbus.Policies); ok && p[0] == (redisbus.Limits{Version: "last"}) {
			break
		}
	}
	handled := len(got) - connected - 2 // but the first and the last
	dropped := int(s.metric(t, "sluice_bus_dropped_total"))
	if handled+dropped != 250 || handled == 0 || connected == 0 {
		t.Errorf("of 250 messages %d were handled and %d dropped, and %d times was the handler told", handled, dropped, connected)
	}
}

func everyKeyExpires(t *testing.T, s *server) {
	b := s.open(t, redisbus.Options{Shards: 2})
	ctx := context.Background()
	for range 2 { // the second time keys exist
		for what, do := range theirPart(ctx, b, b) {
			if err := do(); err != nil {
				t.Fatalf("%s = %v", what, err)
			}
		}
		testkit.Must(t, b.EachShard(func(shard int) error { return b.Alive(ctx, "a", shard) }))
		_, err := b.Lead(ctx, redisbus.Leader{Name: "p"}, time.Minute) // that of theirPart may have ended
		testkit.Must(t, err)
	}
	longest := map[string]time.Duration{ // as the table in docs/keys.md says; the users are of shard 1
		"sluice:{1}:requests:17":                  12 * time.Second,
		"sluice:{1}:requests:minute:8:4000003200": 71 * time.Second,
		"sluice:{1}:requests:hour:8:4000003200":   3611 * time.Second,
		"sluice:{1}:requests:day:8:4000003200":    25*time.Hour + 11*time.Second,
		"sluice:{1}:requests:month:8:4000003200":  (31*24+1)*time.Hour + 11*time.Second,
		"sluice:{1}:burst:GET|alice":              24 * time.Hour,
		"sluice:{1}:cost:second:0:4000060800":     13 * time.Second,
		"sluice:{1}:cost:minute:8:4000060800":     131 * time.Second,
		"sluice:{1}:cost:hour:8:4000060800":       7211 * time.Second,
		"sluice:{1}:cost:day:8:4000060800":        50*time.Hour + 11*time.Second,
		"sluice:{1}:cost:month:8:4000060800":      2*(31*24+1)*time.Hour + 11*time.Second,
		"sluice:{1}:heard:charge:a":               time.Hour,
		"sluice:{1}:heard:take:a":                 time.Hour,
		"sluice:{1}:heard:burst:a":                time.Hour,
		"sluice:{0}:alive":                        time.Minute,
		"sluice:{1}:alive":                        time.Minute,
		"sluice:{1}:slots:alice":                  30 * time.Second,
		"sluice:{1}:events:17:reports":            time.Minute,
		"sluice:{cluster}:events:17:reports":      time.Minute,
		"sluice:{cluster}:instances":              time.Minute,
		"sluice:{cluster}:epoch":                  time.Minute,
		"sluice:{cluster}:shards":                 5 * time.Second,
		"sluice:{cluster}:versions":               time.Minute,
		"sluice:{cluster}:problems":               time.Minute,
		"sluice:{cluster}:leader":                 time.Minute,
		"sluice:{cluster}:overrides":              time.Hour,
		"sluice:limits":                           24 * time.Hour,
		"sluice:limits:":                          24 * time.Hour,
	}
	for _, key := range s.do(t, "KEYS", "*").([]any) {
		ttl := time.Duration(s.do(t, "PTTL", key).(int64)) * time.Millisecond
		name := key.(string)
		if strings.Contains(name, ":heard:") {
			name = name[:strings.LastIndexByte(name, ':')] // without the session
		}
		if strings.HasPrefix(name, "sluice:limits:") {
			name = "sluice:limits:" // without the checksum
		}
		if want, ok := longest[name]; !ok || ttl <= 0 || ttl > want {
			t.Errorf("%s expires in %v, want at most %v", key, ttl, want)
		}
		delete(longest, name)
	}
	if len(longest) > 0 {
		t.Errorf("keys of the table that are not there: %v", longest)
	}
}

func redisTime(t *testing.T, s *server) {
	b := s.open(t, redisbus.Options{})
	ctx := context.Background()
	before, err1 := b.Time(ctx)
	r, err2 := b.Register(ctx, "a", "", "")
	taken, err3 := b.Take(ctx, "a", []ratelimit.Ask{{}})
	slotted, err4 := b.Slots(ctx, "a", 0, []concurrency.Ask{{User: "alice", Seq: 1, Limit: 1}})
	after, err5 := b.Time(ctx)
	testkit.Must(t, errors.Join(err1, err2, err3, err4, err5))
	if r.Now.Before(before) || taken.Now.Before(r.Now) || slotted.Now.Before(taken.Now) || after.Before(slotted.Now) {
		t.Errorf("Time, Register, Take, Slots, Time = %v, %v, %v, %v, %v, want them in order", before, r.Now, taken.Now, slotted.Now, after)
	}
	if ago := time.Since(after); ago.Abs() > time.Hour {
		t.Errorf("Time = %v, %v ago", after, ago)
	}
}
