package redisbus_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/sluice-qos/sluice/internal/redisbus"
	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/pkg/cost"
	rates "github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

// costAsk draws an Ask of one user, in windows near each other, so that they are each
// other's last ones.
var costAsk = rapid.Custom(func(t *rapid.T) cost.Ask {
	a := cost.Ask{User: rapid.OneOf(rapid.SampledFrom([]string{"alice", "bob"}), user).Draw(t, "user"), Forced: rapid.Bool().Draw(t, "forced")}
	lowest := int64(0)
	if a.Forced {
		lowest = -rates.MaxCost
	}
	amount := rapid.OneOf(rapid.Int64Range(max(lowest, -20), 20), rapid.Int64Range(max(lowest, -20), 20), rapid.Int64Range(lowest, rates.MaxCost))
	units := rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"tokens", "euro-cents", "a"}), 1, 2, rapid.ID).Draw(t, "units")
	windows := rapid.SliceOfNDistinct(rapid.SampledFrom(rates.Windows[:]), 1, 3, rapid.ID).Draw(t, "windows")
	number := rapid.Int64Range(-1, 1).Draw(t, "number")
	for _, unit := range units {
		for _, w := range windows {
			a.Entries = append(a.Entries, cost.Entry{
				Unit: unit, Window: w, Start: 1_760_000_000 + number*w.Seconds(), Before: 1_760_000_000 + (number-1)*w.Seconds(),
				Limit:  rapid.OneOf(rapid.Int64Range(1, 40), rapid.Int64Range(1, 40), rapid.Int64Range(1, rates.MaxCost)).Draw(t, "limit"),
				DryRun: rapid.IntRange(0, 4).Draw(t, "mode") == 0,
				Change: amount.Draw(t, "change"),
			})
		}
	}
	return a
})

func chargeIsPoolsTake(t *testing.T, s *server) {
	b := s.open(t, redisbus.Options{})
	ear := listenToReports(t, b, redisbus.Usage{})
	iteration := 0
	rapid.Check(t, func(rt *rapid.T) {
		iteration++
		s.do(t, "FLUSHALL")
		pools := cost.Pools{}
		type key struct {
			ratelimit.Key
			Start int64
		}
		want, told := map[key]int64{}, map[key]int64{}
		var last cost.Call
		instance := user.Draw(rt, "instance") + fmt.Sprint(iteration)
		for i, asks := range rapid.SliceOfN(rapid.SliceOfN(costAsk, 1, 8), 1, 5).Draw(rt, "calls") {
			before := maps.Clone(pools)
			due := map[cost.Pool]bool{}
			for k := range asks {
				asks[k].Seq = uint64(i + 1)
				known := maps.Clone(pools)
				pools.Take(asks[k])
				for _, e := range asks[k].Entries {
					p := cost.Pool{User: asks[k].User, Unit: e.Unit, Window: e.Window, Start: e.Start}
					after, begun := pools[p]
					was, had := known[p]
					if begun && (!had || 32*after.Charged/e.Limit != 32*was.Charged/e.Limit) {
						due[p] = true
					}
				}
			}
			grants, answered := before.Answer(last, asks)
			last = answered
			for p := range due {
				want[key{ratelimit.Key{Class: "$" + p.Unit, User: p.User, Window: p.Window}, p.Start}] = pools[p].Charged
			}
			charged, err := b.Charge(context.Background(), instance, asks)
			if err != nil {
				rt.Fatalf("Charge(%+v) = %v", asks, err)
			}
			if diff := cmp.Diff(grants, charged.Grants); diff != "" {
				rt.Fatalf("Charge(%+v) (-Pools.Answer +got):\n%s", asks, diff)
			}
			// What is sent again counts once, and is granted what it was, with the totals of now.
			again, err := b.Charge(context.Background(), instance, asks)
			if err != nil {
				rt.Fatalf("Charge(again) = %v", err)
			}
			want, _ := pools.Answer(last, asks)
			if diff := cmp.Diff(want, again.Grants); diff != "" {
				rt.Fatalf("Charge(%+v) again (-Pools.Answer +got):\n%s", asks, diff)
			}
		}
		for _, u := range ear.usage(t, b) {
			if u.Instance != instance {
				rt.Fatalf("usage of %q, want %q", u.Instance, instance)
			}
			for _, e := range u.Entries {
				told[key{e.Key, e.Second}] = int64(e.Total)
			}
		}
		if diff := cmp.Diff(want, told); diff != "" {
			rt.Fatalf("usage (-due +told):\n%s", diff)
		}
		stored := cost.Pools{}
		for _, name := range s.do(t, "KEYS", "sluice:{0}:cost:*").([]any) {
			var window string
			var part, start int64
			if _, err := fmt.Sscanf(strings.ReplaceAll(name.(string), ":", " "), "sluice {0} cost %s %d %d", &window, &part, &start); err != nil {
				rt.Fatalf("key %q: %v", name, err)
			}
			for field, text := range s.hash(t, name.(string)) {
				unit, user, _ := strings.Cut(field, "|")
				_, w := rates.ParseCostName("/" + window)
				p := cost.Pool{User: user, Unit: unit, Window: w, Start: start}
				var total cost.Total
				if _, err := fmt.Sscan(text, &total.Charged, &total.Due); err != nil {
					rt.Fatalf("%s of %s is %q: %v", field, name, text, err)
				}
				stored[p] = total
			}
		}
		if diff := cmp.Diff(pools, stored); diff != "" {
			rt.Fatalf("pools (-Pools.Take +stored):\n%s", diff)
		}
	})
}

// hash is what is in a hash.
func (s *server) hash(t *testing.T, key string) map[string]string {
	t.Helper()
	all, err := s.raw.HGetAll(context.Background(), key).Result()
	testkit.Must(t, err)
	return all
}

// charge is one charge of alice's tokens.
func charge(seq uint64, w rates.Window, start, limit, change int64) []cost.Ask {
	return []cost.Ask{{User: "alice", Seq: seq, Entries: []cost.Entry{{Unit: "tokens", Window: w, Start: start, Limit: limit, Change: change}}}}
}

func chargeRefuses(t *testing.T, s *server) {
	b := s.open(t, redisbus.Options{Shards: 2})
	good := charge(1, rates.Minute, 60, 10, 1)[0]
	change := func(f func(*cost.Ask)) cost.Ask {
		a := good
		a.Entries = slices.Clone(a.Entries)
		f(&a)
		return a
	}
	elsewhere := good
	for i := 0; b.ShardOf(elsewhere.User) == b.ShardOf(good.User); i++ {
		elsewhere.User = fmt.Sprint("user-", i)
	}
	for want, asks := range map[string][]cost.Ask{
		"charge costs: batch 0 in batch 0, of 1 to 1099511627775":                        {change(func(a *cost.Ask) { a.Seq = 0 })},
		"charge costs: batch 2 in batch 1, of 1 to 1099511627775":                        {good, change(func(a *cost.Ask) { a.Seq = 2 })},
		"charge costs: users of several shards":                                          {good, elsewhere},
		"charge costs: 129 asks at a time, of at most 128":                               slices.Repeat([]cost.Ask{good}, 129),
		"charge costs: 21 entries, of at most 20":                                        {change(func(a *cost.Ask) { a.Entries = slices.Repeat(a.Entries, 21) })},
		`charge costs: unit "to|kens" holds '|', '/' or a control byte`:                  {change(func(a *cost.Ask) { a.Entries[0].Unit = "to|kens" })},
		"charge costs: limit 0 is not from 1 to 1000000000000":                           {change(func(a *cost.Ask) { a.Entries[0].Limit = 0 })},
		"charge costs: change -1 is not from 0 to 1000000000000":                         {change(func(a *cost.Ask) { a.Entries[0].Change = -1 })},
		"charge costs: change 1000000000001 is not from -1000000000000 to 1000000000000": {change(func(a *cost.Ask) { a.Forced, a.Entries[0].Change = true, rates.MaxCost+1 })},
	} {
		if _, err := b.Charge(t.Context(), "a", asks); err == nil || err.Error() != want {
			t.Errorf("Charge() = %v, want %s", err, want)
		}
	}
	if keys := s.do(t, "KEYS", "*:cost:*").([]any); len(keys) > 0 {
		t.Errorf("calls that were refused left %q", keys)
	}
}

// The pools of a window are there until the next one is over: it reads its debt from them.
func chargesExpire(t *testing.T, s *server) {
	b := s.open(t, redisbus.Options{})
	for i, w := range rates.Windows {
		testkit.Eventually(t, w.String(), func() error { // at the second time, if a second went by
			s.do(t, "FLUSHALL")
			now, err := b.Time(t.Context())
			if err != nil {
				return err
			}
			start := now.Unix() - now.Unix()%w.Seconds()
			if _, err := b.Charge(t.Context(), "a", charge(uint64(i+1), w, start, 10, 1)); err != nil {
				return err
			}
			keys := s.do(t, "KEYS", "*:cost:*").([]any)
			if len(keys) != 1 {
				return fmt.Errorf("keys %q, want one", keys)
			}
			want := start + 2*w.Seconds() + 11 - now.Unix()
			if got := s.do(t, "TTL", keys[0]); got != want && got != want-1 {
				return fmt.Errorf("%s expires in %v s, want %d", keys[0], got, want)
			}
			return nil
		})
	}
}

// With the settings of docs/operations.md, what was charged of a day outlives Redis, whether
// it is ended in order or killed. Without them each window begins anew.
func TestChargesSurviveARestart(t *testing.T) {
	for name, c := range map[string]struct {
		file []string
		end  func(*testkit.Process)
		left int64 // of 100, after 60 were charged
	}{
		"ended":                       {[]string{"--appendonly", "yes", "--appendfsync", "everysec"}, (*testkit.Process).Stop, 40},
		"killed":                      {[]string{"--appendonly", "yes", "--appendfsync", "everysec"}, (*testkit.Process).Kill, 40},
		"killed, without such a file": {nil, (*testkit.Process).Kill, 100},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// A day of the future, so that it does not end meanwhile.
			const day = 4_000_060_800
			args := append([]string{"--dir", t.TempDir()}, c.file...)
			process, addr := testkit.Redis(t, args...)
			s := newServer(t, addr)
			if got, err := s.open(t, redisbus.Options{}).Charge(t.Context(), "a", charge(7, rates.Day, day, 100, 60)); err != nil || !got.Grants[0].Granted {
				t.Fatalf("Charge(60 of 100) = %+v, %v", got, err)
			}
			if c.file != nil {
				testkit.Eventually(t, "the charge is written", func() error {
					if info := s.do(t, "INFO", "persistence").(string); !strings.Contains(info, "aof_buffer_length:0\r") {
						return errors.New(info)
					}
					return nil
				})
			}
			c.end(process)

			_, addr = testkit.Redis(t, args...)
			b := newServer(t, addr).open(t, redisbus.Options{})
			for i, c := range []struct {
				change  int64
				granted bool
				total   int64
			}{{c.left + 1, false, 100 - c.left}, {c.left, true, 100}} {
				got, err := b.Charge(t.Context(), "b", charge(uint64(i+1), rates.Day, day, 100, c.change))
				if err != nil || got.Grants[0].Granted != c.granted || got.Grants[0].Totals[0] != c.total {
					t.Errorf("after the restart Charge(%d) = %+v, %v, want granted %v and %d in all", c.change, got.Grants, err, c.granted, c.total)
				}
			}
		})
	}
}
