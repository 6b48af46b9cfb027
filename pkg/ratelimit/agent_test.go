package ratelimit_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/sluice-qos/sluice/pkg/cause"
	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

// t0 is the beginning of a second.
var t0 = time.Unix(1_700_000_000, 0)

func ms(n int) time.Time { return t0.Add(time.Duration(n) * time.Millisecond) }

// shared returns an agent that is one of n.
func shared(n int) *ratelimit.Agent {
	a := ratelimit.NewAgent(ratelimit.Config{})
	a.Cluster(t0.Add(-2*time.Second), n, 0)
	return a
}

// exchange lets the agent talk to a pool once and returns what it asked.
func exchange(a *ratelimit.Agent, at time.Time, pool map[poolKey]int) []ratelimit.Ask {
	return exchangeWith(a, at, pools{totals: pool})
}

func exchangeWith(a *ratelimit.Agent, at time.Time, p pools) []ratelimit.Ask {
	asks := a.Collect(at, true, nil)
	for _, ask := range asks {
		a.Reply(at, ask, p.take(at, ask))
	}
	return asks
}

func TestAgentRequestWithoutLimitIsAllowed(t *testing.T) {
	a := shared(3)
	if v, w := a.Start(t0, "u", nil, ratelimit.NoCredit); !v.Allowed || w != nil || a.KnownUsers() != 0 {
		t.Errorf("Start = %+v, %v with %d users known, want allowed, not waiting, none known", v, w, a.KnownUsers())
	}
}

func TestAgentTakesATokenOfEachLimitOrOfNone(t *testing.T) {
	both := []limits.Rate{{Class: "GET", Max: 100}, {Class: limits.All, Max: 1}}
	a := shared(2)
	pool := map[poolKey]int{}
	a.Start(ms(100), "u", both, ratelimit.NoCredit)
	exchange(a, ms(101), pool)
	for i := range 5 {
		if v, w := a.Start(ms(102), "u", both, ratelimit.NoCredit); w != nil || v.Allowed || v.Limit != both[1] {
			t.Fatalf("request %d: %+v, want refused by %v", i, v, both[1])
		}
	}
	// Every GET token but the one that was used goes back.
	for at := 105; at < 1200; at += 5 {
		a.Tick(ms(at))
		exchange(a, ms(at), pool)
	}
	if got := pool[poolKey{t0.Unix(), ratelimit.Key{Class: "GET", User: "u"}}]; got != 1 {
		t.Errorf("GET tokens used at last = %d, want 1", got)
	}
}

func TestAgentUserWithoutRequestsHoldsNothing(t *testing.T) {
	a := shared(2)
	pool := map[poolKey]int{}
	a.Start(ms(100), "u", get(1000), ratelimit.NoCredit)
	for at := 101; at < 5000; at += 5 {
		a.Tick(ms(at))
		exchange(a, ms(at), pool)
		if at == 201 {
			// Idle for a while: one token stays, so that the next request need not wait.
			if got := pool[poolKey{t0.Unix(), ratelimit.Key{Class: "GET", User: "u"}}]; got != 2 {
				t.Errorf("after 100 ms one token is used and %d are held, want 1", got-1)
			}
		}
	}
	for k, total := range pool {
		want := 0
		if k.second == t0.Unix() {
			want = 1
		}
		if total != want {
			t.Errorf("pool of second +%d = %d, want %d", k.second-t0.Unix(), total, want)
		}
	}
	if a.KnownUsers() != 0 {
		t.Errorf("Users() = %d after 5 s without requests, want 0", a.KnownUsers())
	}
}

func TestAgentTimeout(t *testing.T) {
	tests := []struct {
		name  string
		given func(a *ratelimit.Agent)
		admit int // of 10 requests that time out, with limit 10 and two agents
	}{
		{"a cool key: the agent's part", func(*ratelimit.Agent) {}, 5},
		{"a key that was half used when last heard of", func(a *ratelimit.Agent) {
			a.Start(ms(0), "u", get(10), ratelimit.NoCredit)
			ask := a.Collect(ms(0), false, nil)[0]
			a.Reply(ms(0), ask, ratelimit.Grant{Tokens: 1, Total: 5})
		}, 0},
		{"a hot key", func(a *ratelimit.Agent) {
			a.Start(ms(0), "u", get(10), ratelimit.NoCredit)
			a.MarkHot(ms(0), ratelimit.Key{Class: "GET", User: "u"}, ms(3000), 2)
		}, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a := shared(2)
			tt.given(a)
			admitted := 0
			for range 10 {
				v, w := a.Start(ms(1), "u", get(10), ratelimit.NoCredit)
				if w != nil {
					v = a.Timeout(ms(11), w)
					if again := a.Timeout(ms(12), w); again != v {
						t.Errorf("the second Timeout = %+v, the first %+v", again, v)
					}
				}
				if v.Allowed {
					admitted++
				}
			}
			if admitted != tt.admit {
				t.Errorf("admitted %d, want %d", admitted, tt.admit)
			}
		})
	}
}

// Asks go one after the other: one that is made late, because the pool takes long to answer the one before
// it, is no sign of a pool that is silent.
func TestAgentTimeoutBehindAnotherAsk(t *testing.T) {
	a := shared(2)
	a.Start(ms(0), "other", get(10), ratelimit.NoCredit)
	first := a.Collect(ms(0), false, nil)
	_, waiting := a.Start(ms(1), "u", get(10), ratelimit.NoCredit)
	a.Reply(ms(12), first[0], ratelimit.Grant{Tokens: 2, Total: 2})
	if second := a.Collect(ms(12), false, nil); waiting == nil || len(second) != 1 || second[0].Key.User != "u" {
		t.Fatalf("%+v waits and %+v is asked, want a request, and that u's tokens are asked for", waiting, second)
	}
	if v := a.Timeout(ms(21), waiting); v.Allowed || v.Cause != cause.RedisLate {
		t.Errorf("Timeout before the answer to an ask that was made late = %+v, want refused: %s", v, cause.RedisLate)
	}
	_, waiting = a.Start(ms(22), "u", get(10), ratelimit.NoCredit)
	if v := a.Timeout(ms(42), waiting); !v.Allowed {
		t.Errorf("Timeout when nothing was answered since = %+v, want allowed", v)
	}
}

// A batch that got no answer comes again as it was, and alone: the pool may have heard
// it, and knows it by its number.
func TestAgentRepeatsABatchThatFailed(t *testing.T) {
	a := ratelimit.NewAgent(ratelimit.Config{})
	debt := func(seq uint64, n int) []ratelimit.Ask {
		return []ratelimit.Ask{{Key: ratelimit.Key{Class: "GET", User: "u"}, Seq: seq, WindowStart: t0.Unix(), Limit: 50, Debt: n, Instances: 1}}
	}
	request := func(at, n int) {
		for range n {
			a.Start(ms(at), "u", get(50), ratelimit.NoCredit)
		}
	}
	collect := func(what string, at int, want []ratelimit.Ask) {
		t.Helper()
		if diff := cmp.Diff(want, a.Collect(ms(at), true, nil)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	request(10, 41)
	collect("what was admitted", 11, debt(1, 41))
	request(12, 2)
	a.Fail(ms(250), debt(1, 41)[0])
	request(251, 3)
	collect("after the failure", 252, debt(1, 41))
	a.Fail(ms(500), debt(1, 41)[0])
	collect("after another one", 501, debt(1, 41))
	a.Reply(ms(502), debt(1, 41)[0], ratelimit.Grant{Total: 41})
	collect("when it was heard", 503, debt(2, 5))
	collect("when there is nothing to say", 504, nil)
}

// What came while a batch was repeated does not wait for the next flush.
func TestAgentSaysWhatIsBehindARepeatedBatch(t *testing.T) {
	bursting := get(50)
	bursting[0].Burst = 100
	for _, tt := range []struct {
		name   string
		behind func(a *ratelimit.Agent)
		want   bool
	}{
		{"nothing", func(*ratelimit.Agent) {}, false},
		{"a request that waits", func(a *ratelimit.Agent) { a.Start(ms(12), "v", bursting, ratelimit.NoCredit) }, true},
		{"what is to be sent at once", func(a *ratelimit.Agent) { a.Leave() }, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := ratelimit.NewAgent(ratelimit.Config{})
			a.Start(ms(10), "u", get(50), ratelimit.NoCredit)
			first := a.Collect(ms(11), true, nil)
			if len(first) != 1 {
				t.Fatalf("asks %+v, want a report", first)
			}
			a.Fail(ms(12), first[0])
			tt.behind(a)
			a.TakeOutput()
			if again := a.Collect(ms(13), true, nil); len(again) != 1 || again[0] != first[0] {
				t.Errorf("asks %+v, want %+v alone", again, first)
			}
			if got := a.TakeOutput().Urgent; got != tt.want {
				t.Errorf("urgent: %v, want %v", got, tt.want)
			}
		})
	}
}

// Another limit of the same pool leaves an agent the tokens that it has.
func TestAgentKeepsItsTokensWhenTheLimitChanges(t *testing.T) {
	a := shared(2)
	a.Start(ms(10), "u", get(50), ratelimit.NoCredit)
	asks := a.Collect(ms(10), false, nil)
	a.Reply(ms(11), asks[0], ratelimit.Grant{Tokens: 3, Total: 3})
	for i := range 2 {
		if v, w := a.Start(ms(12), "u", get(60), ratelimit.NoCredit); w != nil || !v.Allowed {
			t.Errorf("request %d: %+v, want it to be admitted by a token in hand", i, v)
		}
	}
}

// What waits for a pool that is lost for long is bounded.
func TestAgentReportsAreBounded(t *testing.T) {
	bursting := get(50)
	bursting[0].Burst = 100
	for name, rates := range map[string][]limits.Rate{"of seconds": get(50), "of accounts": bursting} {
		t.Run(name, func(t *testing.T) {
			a := ratelimit.NewAgent(ratelimit.Config{})
			const users, seconds = 2000, 70
			for s := range seconds {
				for u := range users {
					if _, w := a.Start(ms(1000*s), fmt.Sprint("u", u), rates, ratelimit.NoCredit); w != nil { // accounts are always asked
						a.Timeout(ms(1000*s+20), w)
					}
				}
				a.Tick(ms(1000*s + 999))
			}
			reports := 0
			for asks := a.Collect(ms(1000*seconds), true, nil); len(asks) > 0; asks = a.Collect(ms(1000*seconds), true, nil) {
				reports += len(asks)
			}
			if reports < 90_000 || reports > 100_000+2*users { // besides, what this second reports and wants
				t.Errorf("%d reports of %d seconds waited, want 100 000", reports, users*seconds)
			}
		})
	}
}

func TestAgentQueueIsBoundedByWhatTheLimitCouldAdmit(t *testing.T) {
	a := shared(2)
	waiting := 0
	for range 100 {
		if _, w := a.Start(ms(1), "u", get(10), ratelimit.NoCredit); w != nil {
			waiting++
		}
	}
	if waiting != 10 {
		t.Errorf("%d requests wait, want 10", waiting)
	}
}

func TestAgentThrottle(t *testing.T) {
	key := ratelimit.Key{Class: "GET", User: "u"}
	refuse := []ratelimit.TableEntry{{Key: key, End: t0.Unix() + 1, Limit: 10}}
	lift := []ratelimit.TableEntry{{Key: key, End: t0.Unix() + 1, Limit: 10, Lift: true}}

	t.Run("a key without requests here is refused natively at once", func(t *testing.T) {
		a := shared(2)
		a.Throttle(ms(1), key, t0.Unix(), 10)
		if diff := cmp.Diff(refuse, a.TakeOutput().TableEntries); diff != "" {
			t.Error(diff)
		}
	})
	t.Run("a throttle of another second is too late", func(t *testing.T) {
		a := shared(2)
		a.Throttle(ms(1001), key, t0.Unix(), 10)
		if got := a.TakeOutput().TableEntries; len(got) != 0 {
			t.Errorf("TableEntries = %v, want none", got)
		}
	})
	t.Run("tokens in hand are used first", func(t *testing.T) {
		a := shared(2)
		_, w := a.Start(ms(1), "u", get(10), ratelimit.NoCredit)
		asks := a.Collect(ms(1), false, nil)
		a.Reply(ms(2), asks[0], ratelimit.Grant{Tokens: 2, Total: 10})
		a.Throttle(ms(3), key, t0.Unix(), 10)
		if out := a.TakeOutput(); len(out.TableEntries) != 0 || !w.Verdict.Allowed {
			t.Fatalf("with a token in hand: %+v", out)
		}
		a.Start(ms(4), "u", get(10), ratelimit.NoCredit)
		if diff := cmp.Diff(refuse, a.TakeOutput().TableEntries); diff != "" {
			t.Error(diff)
		}
	})
	t.Run("so are those that are on their way", func(t *testing.T) {
		for _, r := range []limits.Rate{{Class: "GET", Max: 10}, {Class: "GET", Window: limits.Hour, Max: 10}} {
			a, of := shared(2), []limits.Rate{r}
			key := ratelimit.Key{Class: "GET", User: "u", Window: r.Window}
			begins, ends := r.Bounds(t0.Unix())
			_, w := a.Start(ms(1), "u", of, ratelimit.NoCredit)
			asks := a.Collect(ms(1), false, nil)
			a.Throttle(ms(2), key, begins, 10) // of what the pool has just given
			if out := a.TakeOutput(); len(out.TableEntries)+len(out.Decided) != 0 {
				t.Fatalf("%s: before the pool's answer: %+v, want that it is waited for", r.Name(), out)
			}
			a.Reply(ms(3), asks[0], ratelimit.Grant{Tokens: 2, Total: 10})
			if out := a.TakeOutput(); len(out.TableEntries) != 0 || !w.Verdict.Allowed {
				t.Fatalf("%s: with a token in hand: %+v", r.Name(), out)
			}
			if v, _ := a.Start(ms(4), "u", of, ratelimit.NoCredit); !v.Allowed {
				t.Errorf("%s: the last token was not used", r.Name())
			}
			want := []ratelimit.TableEntry{{Key: key, End: ends, Limit: 10}}
			if diff := cmp.Diff(want, a.TakeOutput().TableEntries); diff != "" {
				t.Errorf("%s: then: %s", r.Name(), diff)
			}
		}
	})
	t.Run("none were on their way", func(t *testing.T) {
		a := shared(2)
		_, w := a.Start(ms(1), "u", get(10), ratelimit.NoCredit)
		asks := a.Collect(ms(1), false, nil)
		a.Throttle(ms(2), key, t0.Unix(), 10)
		a.Reply(ms(3), asks[0], ratelimit.Grant{Total: 10})
		out := a.TakeOutput()
		if diff := cmp.Diff(refuse, out.TableEntries); diff != "" || len(out.Decided) != 1 || w.Verdict.Allowed {
			t.Errorf("after the pool's answer: %+v, %s", w.Verdict, diff)
		}
	})
	t.Run("and those that were about to go back", func(t *testing.T) {
		a := shared(2)
		a.Start(ms(1), "u", get(10), ratelimit.NoCredit)
		a.Reply(ms(2), a.Collect(ms(1), false, nil)[0], ratelimit.Grant{Tokens: 2, Total: 10})
		a.MarkHot(ms(100), key, ms(2000), 2) // so long without a request
		a.Tick(ms(100))
		a.Throttle(ms(101), key, t0.Unix(), 10)
		if v, _ := a.Start(ms(102), "u", get(10), ratelimit.NoCredit); !v.Allowed {
			t.Error("a token that nobody else has was not used")
		}
		if diff := cmp.Diff(refuse, a.TakeOutput().TableEntries); diff != "" {
			t.Errorf("then: %s", diff)
		}
	})
	t.Run("until it has come, asks say that it has not", func(t *testing.T) {
		a := shared(2)
		for _, step := range []struct {
			at     int // ms, each in a second of its own
			told   bool
			untold bool
		}{{1, false, true}, {1001, true, false}, {2001, false, true}} {
			if step.told {
				a.Start(ms(step.at), "u", get(10), ratelimit.NoCredit)
				a.Reply(ms(step.at), a.Collect(ms(step.at), false, nil)[0], ratelimit.Grant{Total: 10})
				a.Throttle(ms(step.at), key, ms(step.at).Unix(), 10)
			}
			a.Start(ms(step.at), "u", get(10), ratelimit.NoCredit)
			a.Tick(ms(step.at + 500)) // a spent key is asked about again after a while
			for _, ask := range a.Collect(ms(step.at+500), false, nil) {
				if ask.Need > 0 && ask.Untold != step.untold {
					t.Errorf("at %d ms: %+v, want untold %v", step.at, ask, step.untold)
				}
			}
		}
	})
	t.Run("tokens given back elsewhere lift it, and it returns", func(t *testing.T) {
		a := shared(2)
		pool := map[poolKey]int{{t0.Unix(), key}: 10}
		a.Start(ms(1), "u", get(10), ratelimit.NoCredit)
		exchange(a, ms(2), pool)
		a.Throttle(ms(3), key, t0.Unix(), 10)
		if diff := cmp.Diff(refuse, a.TakeOutput().TableEntries); diff != "" {
			t.Fatal(diff)
		}
		pool[poolKey{t0.Unix(), key}] = 9
		for at := 4; len(a.TakeOutput().TableEntries) == 0; at++ {
			if at > 100 {
				t.Fatal("not lifted within 100 ms")
			}
			a.Tick(ms(at))
			for _, ask := range a.Collect(ms(at), true, nil) {
				g := ratelimit.Take(pool[poolKey{ask.WindowStart, ask.Key}], ask)
				pool[poolKey{ask.WindowStart, ask.Key}] = g.Total
				a.Reply(ms(at), ask, g)
				if out := a.TakeOutput(); g.Tokens > 0 {
					if diff := cmp.Diff(lift, out.TableEntries); diff != "" {
						t.Fatal(diff)
					}
					if v, _ := a.Start(ms(at), "u", get(10), ratelimit.NoCredit); !v.Allowed {
						t.Error("the token was not used")
					}
				}
			}
		}
	})
}

func TestAgentUsersAreBounded(t *testing.T) {
	a := ratelimit.NewAgent(ratelimit.Config{MaxUsers: 3})
	for i := range 5 {
		if v, _ := a.Start(t0, fmt.Sprint("u", i), get(1), ratelimit.NoCredit); !v.Allowed {
			t.Errorf("the first request of user %d was refused", i)
		}
	}
	if a.KnownUsers() != 3 || a.Overflowed() != 2 {
		t.Errorf("Users() = %d, Overflowed() = %d, want 3, 2", a.KnownUsers(), a.Overflowed())
	}
}

// TestAgentCollectIsFirstToSeeTheNewSecond has a request that waits when the
// second ends, and a Collect before any Tick.
func TestAgentCollectIsFirstToSeeTheNewSecond(t *testing.T) {
	a := shared(2)
	pool := map[poolKey]int{}
	_, w := a.Start(ms(999), "u", get(10), ratelimit.NoCredit)
	exchange(a, ms(1001), pool)
	if out := a.TakeOutput(); len(out.Decided) != 1 || !w.Verdict.Allowed {
		t.Fatalf("the request was not decided in the new second: %+v", out)
	}
	for i := range 5 {
		v, w := a.Start(ms(1100+i), "u", get(10), ratelimit.NoCredit)
		exchange(a, ms(1100+i), pool)
		if w != nil {
			v = w.Verdict
		}
		if !v.Allowed {
			t.Errorf("request %d of 5 was not admitted: the key does not ask any more", i)
		}
	}
}

// TestAgentAloneOnlyWhenItKnows: who has just started, or has just been left
// alone, leases first, for somebody may have served in this second.
func TestAgentAloneOnlyWhenItKnows(t *testing.T) {
	spent := func() map[poolKey]int {
		key := ratelimit.Key{Class: "GET", User: "u"}
		return map[poolKey]int{{t0.Unix(), key}: 10, {t0.Unix() + 1, key}: 10}
	}
	admitted := func(a *ratelimit.Agent, at time.Time, pool map[poolKey]int) (n int) {
		for range 20 {
			v, w := a.Start(at, "u", get(10), ratelimit.NoCredit)
			exchange(a, at, pool)
			if w != nil {
				v = w.Verdict
			}
			if v.Allowed {
				n++
			}
		}
		return n
	}
	t.Run("restarted within a second", func(t *testing.T) {
		a := ratelimit.NewAgent(ratelimit.Config{})
		a.Cluster(ms(100), 1, 0)
		if n := admitted(a, ms(200), spent()); n != 0 {
			t.Errorf("admitted %d in the second of its start, of which nothing is left, want 0", n)
		}
		if n := admitted(a, ms(1200), map[poolKey]int{}); n != 10 {
			t.Errorf("admitted %d in the next second, want 10", n)
		}
	})
	t.Run("left alone", func(t *testing.T) {
		a := shared(2)
		a.Cluster(ms(100), 1, 0)
		if n := admitted(a, ms(1200), spent()); n != 0 {
			t.Errorf("admitted %d in the second after the other went, of which nothing is left, want 0", n)
		}
	})
}

// TestAgentNativeThrottleIsProbed: while HAProxy refuses a key by itself, the
// pool is asked whether tokens came back, however the throttle came about.
func TestAgentNativeThrottleIsProbed(t *testing.T) {
	key := ratelimit.Key{Class: "GET", User: "u"}
	probes := func(a *ratelimit.Agent, from int, pool map[poolKey]int) (lifted bool) {
		for at := from; at < from+100; at++ {
			a.Tick(ms(at))
			exchange(a, ms(at), pool)
			for _, n := range a.TakeOutput().TableEntries {
				lifted = lifted || n.Lift
			}
		}
		return lifted
	}
	t.Run("a throttle that came while a token was in hand", func(t *testing.T) {
		a := shared(2)
		pool := map[poolKey]int{{t0.Unix(), key}: 9}
		a.Start(ms(1), "u", get(10), ratelimit.NoCredit)
		asks := a.Collect(ms(1), false, nil)
		a.Reply(ms(2), asks[0], ratelimit.Grant{Tokens: 2, Total: 9})
		a.Throttle(ms(3), key, t0.Unix(), 10)
		a.Start(ms(4), "u", get(10), ratelimit.NoCredit)
		if n := a.TakeOutput().TableEntries; len(n) != 1 {
			t.Fatalf("TableEntries = %v, want a throttle", n)
		}
		if !probes(a, 5, pool) {
			t.Error("not lifted though a token was left")
		}
	})
	t.Run("a report that was answered with a lower total", func(t *testing.T) {
		a := shared(2)
		pool := map[poolKey]int{{t0.Unix(), key}: 10}
		a.Start(ms(1), "u", get(10), ratelimit.NoCredit)
		exchange(a, ms(2), pool)
		a.Throttle(ms(3), key, t0.Unix(), 10)
		a.TakeOutput()
		a.Reply(ms(4), ratelimit.Ask{Key: key, WindowStart: t0.Unix(), Limit: 10, Back: 1}, ratelimit.Grant{Total: 9})
		pool[poolKey{t0.Unix(), key}] = 9
		if !probes(a, 5, pool) {
			t.Error("not lifted though a token was left")
		}
	})
}

func TestAgentBatchesAreBounded(t *testing.T) {
	const users = 10_000
	a := shared(2)
	for i := range users {
		a.Start(ms(1), fmt.Sprint("u", i), get(10), ratelimit.NoCredit)
	}
	total := 0
	for rounds := 1; total < users; rounds++ {
		if !a.TakeOutput().Urgent {
			t.Fatalf("after %d of %d asks the rest is not urgent", total, users)
		}
		asks := a.Collect(ms(2), false, nil)
		if len(asks) == 0 || len(asks) > 5000 {
			t.Fatalf("batch %d has %d asks, want 1 to 5000", rounds, len(asks))
		}
		total += len(asks)
	}
	if total != users {
		t.Errorf("asked %d times, want once for each of %d users", total, users)
	}
}

// TestTake holds the invariants of the pool: never past the limit by a grant,
// and every token accounted for.
func TestTake(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(1, 1000).Draw(t, "limit")
		total, want := 0, 0
		for range rapid.IntRange(1, 50).Draw(t, "asks") {
			n := func(what string) int { return rapid.IntRange(0, 300).Draw(t, what) }
			ask := ratelimit.Ask{Limit: limit, Debt: n("debt"), Back: min(n("back"), total), Need: n("need"), Ahead: n("ahead"), Instances: rapid.IntRange(0, 9).Draw(t, "k")}
			before := total + ask.Debt - ask.Back
			g := ratelimit.Take(total, ask)
			switch {
			case g.Tokens < 0 || g.Tokens > ask.Need+ask.Ahead:
				t.Fatalf("Take(%d, %+v) = %+v: more than was asked for", total, ask, g)
			case g.Tokens > 0 && g.Total > limit:
				t.Fatalf("Take(%d, %+v) = %+v: granted past the limit", total, ask, g)
			case g.Tokens < ask.Need && g.Total < limit:
				t.Fatalf("Take(%d, %+v) = %+v: a need not met while tokens are left", total, ask, g)
			}
			want = before + g.Tokens
			if g.Total != want {
				t.Fatalf("Take(%d, %+v).Total = %d, want %d", total, ask, g.Total, want)
			}
			total = g.Total
		}
	})
}

func BenchmarkAgentStart(b *testing.B) {
	both := []limits.Rate{{Class: "GET", Max: 1 << 20}, {Class: limits.All, Max: 1 << 20}}
	for _, instances := range []int{1, 4} {
		b.Run(fmt.Sprintf("agents=%d", instances), func(b *testing.B) {
			a := shared(instances)
			pool := map[poolKey]int{}
			users := make([]string, 1000)
			for i := range users {
				users[i] = fmt.Sprint("user", i)
			}
			b.ReportAllocs()
			at := t0
			for i := range b.N {
				at = at.Add(10 * time.Microsecond)
				a.Start(at, users[i%len(users)], both, ratelimit.NoCredit)
				if i%500 == 0 { // 5 ms
					a.Tick(at)
					exchange(a, at, pool)
					a.TakeOutput()
					clear(pool)
				}
			}
		})
	}
}

func TestAgentLost(t *testing.T) {
	key := ratelimit.Key{Class: "GET", User: "u"}
	admit := func(a *ratelimit.Agent, at time.Time, limit int) (n int) {
		for range 3 * limit {
			v, w := a.Start(at, "u", get(limit), ratelimit.NoCredit)
			if w != nil {
				panic("a request waited for a lost pool")
			}
			if v.Allowed {
				n++
			}
		}
		return n
	}
	t.Run("a hot key keeps its part of the limit, in sum the whole", func(t *testing.T) {
		sum := 0
		for rank := range 3 {
			a := ratelimit.NewAgent(ratelimit.Config{})
			a.Cluster(t0.Add(-2*time.Second), 3, rank)
			a.Start(ms(0), "u", get(10), ratelimit.NoCredit)
			a.MarkHot(ms(0), key, ms(3000), 3)
			a.Lost(ms(10), true)
			sum += admit(a, ms(1000), 10)
		}
		if sum != 10 {
			t.Errorf("three agents admit %d, want 10", sum)
		}
	})
	t.Run("another keeps the whole, until it is refused", func(t *testing.T) {
		first, then := 0, 0
		for rank := range 3 {
			a := ratelimit.NewAgent(ratelimit.Config{})
			a.Cluster(t0.Add(-2*time.Second), 3, rank)
			a.Lost(ms(10), true)
			first += admit(a, ms(1000), 10)
			then += admit(a, ms(2000), 10)
		}
		if first != 30 || then != 10 {
			t.Errorf("three agents admit %d in the first second and %d in the next, want 30 and 10", first, then)
		}
	})
	t.Run("one below it keeps the whole", func(t *testing.T) {
		a := shared(3)
		a.Lost(ms(10), true)
		for second := range 3 {
			for range 9 {
				if v, _ := a.Start(ms(1000*second+500), "u", get(10), ratelimit.NoCredit); !v.Allowed {
					t.Fatalf("refused in second %d, want 9 of 10 admitted", second)
				}
			}
		}
	})
	t.Run("whoever waits is decided at once", func(t *testing.T) {
		a := shared(3)
		_, w := a.Start(ms(1), "u", get(10), ratelimit.NoCredit)
		a.Lost(ms(2), true)
		if out := a.TakeOutput(); len(out.Decided) != 1 || out.Decided[0] != w || !w.Verdict.Allowed {
			t.Errorf("Decided = %v, verdict %+v, want the one that waited, allowed", out.Decided, w.Verdict)
		}
	})
}
