package simulation_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/sluice-qos/sluice/internal/redisbus"
	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/pkg/concurrency"
	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

// TestScripts holds what the simulated Redis does equal to what the scripts do in a real one, for
// random calls of several instances: tokens, accounts, slots, and who is there.
func TestScripts(t *testing.T) {
	_, addr := testkit.Redis(t)
	ctx := context.Background()
	flush := func() { testkit.RedisCommand(t, addr, "FLUSHALL") }
	rapid.Check(t, func(t *rapid.T) {
		flush()
		buses := make(map[string]*redisbus.Bus)
		for _, name := range []string{"a#1", "b#1", "c#1"} {
			// A call that is given up may be heard all the same.
			b, err := redisbus.Open(redisbus.Options{Addresses: []string{addr}, Shards: 1, Timeout: time.Minute})
			if err != nil {
				t.Fatal(err)
			}
			defer b.Close()
			buses[name] = b
		}
		model := newStored()
		batches := make(map[string]uint64)
		start, err := buses["a#1"].Time(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for range rapid.IntRange(1, 15).Draw(t, "calls") {
			name := rapid.SampledFrom([]string{"a#1", "b#1", "c#1"}).Draw(t, "instance")
			b := buses[name]
			var got, want any
			switch rapid.IntRange(0, 3).Draw(t, "call") {
			case 0:
				// Sometimes the last batch comes again. One call has asks of one script alone.
				if batches[name] == 0 || rapid.IntRange(0, 3).Draw(t, "again") > 0 {
					batches[name]++
				}
				burst := rapid.Bool().Draw(t, "burst")
				var asks []ratelimit.Ask
				for range rapid.IntRange(1, 5).Draw(t, "asks") {
					asks = append(asks, drawAsk(t, start.Unix(), batches[name], burst))
				}
				taken, err := b.Take(ctx, name, asks)
				if err != nil {
					t.Fatal(err)
				}
				// Each script remembers its own batches.
				of := fmt.Sprint(name, burst)
				grants, _ := model.take(taken.Now, of, asks)
				got, want = taken.Grants, grants
			case 1:
				ask := concurrency.Ask{
					User: rapid.SampledFrom([]string{"u", "v"}).Draw(t, "user"), Seq: rapid.Uint64Range(1, 20).Draw(t, "seq"),
					Want: rapid.IntRange(0, 9).Draw(t, "want"), Active: rapid.IntRange(0, 9).Draw(t, "active"),
					Limit: rapid.IntRange(1, 12).Draw(t, "limit"), Portion: rapid.SampledFrom([]int{0, 0, 1, 3}).Draw(t, "portion"),
				}
				known := rapid.IntRange(0, 4).Draw(t, "known")
				slotted, err := b.Slots(ctx, name, known, []concurrency.Ask{ask})
				if err != nil {
					t.Fatal(err)
				}
				g, _ := model.slot(slotted.Now, name, known, ask)
				got, want = slotted.Grants, []concurrency.Grant{g}
			case 2:
				if err := b.Alive(ctx, name, 0); err != nil {
					t.Fatal(err)
				}
				now, err := b.Time(ctx)
				if err != nil {
					t.Fatal(err)
				}
				model.tellAlive(now, name)
			case 3:
				r, err := b.Register(ctx, name, "", "")
				if err != nil {
					t.Fatal(err)
				}
				want, _ = model.register(r.Now, "register", name)
				got = r.Instances
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Fatalf("%s (-simulated +real):\n%s", name, diff)
			}
		}
	})
}

func drawAsk(t *rapid.T, now int64, seq uint64, burst bool) ratelimit.Ask {
	few := rapid.IntRange(0, 12)
	a := ratelimit.Ask{
		Key: ratelimit.Key{Class: "GET", User: rapid.SampledFrom([]string{"u", "v"}).Draw(t, "user")}, Seq: seq,
		WindowStart: now + rapid.Int64Range(-1, 1).Draw(t, "second"), Limit: rapid.IntRange(1, 30).Draw(t, "limit"),
		Debt: few.Draw(t, "debt"), Back: few.Draw(t, "back"), Need: few.Draw(t, "need"), Ahead: few.Draw(t, "ahead"), Instances: rapid.IntRange(0, 5).Draw(t, "instances"),
	}
	switch {
	case burst:
		a.Burst = rapid.IntRange(1, 30).Draw(t, "burst")
	case rapid.IntRange(0, 3).Draw(t, "minute") == 0:
		a.Key.Window, a.WindowStart = limits.Minute, now-now%60
	default:
		a.Reserve = rapid.SampledFrom([]int{0, 0, 4}).Draw(t, "reserve")
	}
	return a
}
