package agent

import (
	"bytes"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sluice-qos/sluice/internal/agent/costfeed"
	"github.com/sluice-qos/sluice/internal/daemon"
	"github.com/sluice-qos/sluice/internal/redisbus"
	"github.com/sluice-qos/sluice/pkg/concurrency"
	"github.com/sluice-qos/sluice/pkg/limits"
)

var (
	perMinute = limits.Cost{Unit: "tokens", Window: limits.Minute, Max: 1000}
	perDay    = limits.Cost{Unit: "tokens", Window: limits.Day, Max: 5_000_000_000}
)

// costSet is a limit file of this source in which alice's tokens are limited per minute and day, bob's
// requests and places as well, carol's in a dry run, erin's as given, and of dave nothing.
func costSet(source string, more ...limits.Cost) *limits.Set {
	entry := func(l limits.Limits, rates []limits.Rate, costs ...limits.Cost) *limits.Entry {
		l.Lists = &limits.Lists{Rates: rates, Costs: costs}
		return &limits.Entry{Limits: &l}
	}
	dry := perMinute
	dry.Mode = limits.DryRun
	users := map[string]*limits.Entry{
		"alice": entry(limits.Limits{Tier: "free"}, nil, perMinute, perDay),
		"bob":   entry(limits.Limits{Tier: "free", Concurrent: 2}, []limits.Rate{{Class: "GET", Window: limits.Minute, Max: 3}}, perMinute),
		"erin":  entry(limits.Limits{Tier: "free"}, nil, more...),
		"carol": entry(limits.Limits{Tier: "free"}, nil, dry),
	}
	content := limits.Content{
		Source:      []byte(source),
		DefaultTier: "none", Tiers: map[string]*limits.Entry{"none": entry(limits.Limits{Tier: "none"}, nil)}, Users: map[string]limits.Named{},
		CostUnits: []limits.CostUnit{{Name: "tokens", Default: 100, ByClass: map[string]int64{"PUT": 400}}},
	}
	for name, e := range users {
		content.Users[limits.Key(name)] = limits.Named{Entry: uint32(len(content.Entries))}
		content.Entries = append(content.Entries, e)
	}
	return limits.NewSet(content)
}

// newCostRig is an agent with costSet, beside another one.
func newCostRig(t *testing.T) *rig {
	t.Helper()
	r := newRig(t, nil)
	r.limiter.inForce.set.Store(costSet("costs"))
	r.run()
	r.joined(redisbus.Registry{Instances: []string{"a", "b"}})
	return r
}

// costs asks for a request of a user that says that it may cost so much.
func (r *rig) costs(user string, estimate int64) verdict {
	return r.verdict(question{user: user, verb: "GET", costs: askedCosts{units: "tokens", estimates: [limits.MaxCostUnits]int64{estimate}}})
}

func TestVariablesOfCosts(t *testing.T) {
	const second = "946684800" // the bubble's first
	asks := func(user string, more args) args {
		with := args{"user": user, "class": "GET", "units": "tokens"}
		maps.Copy(with, more)
		return with
	}
	charged := func(n string) vars { return vars{"charged_0": n + "@" + second} }
	for _, tt := range []struct {
		name   string
		before []args
		last   args
		want   vars
	}{
		{"what the request says", nil, asks("alice", args{"cost_0": "250"}), charged("250")},
		{"nothing, which may cost something", nil, asks("alice", args{"cost_0": "0"}), charged("0")},
		{"it says nothing", nil, asks("alice", args{"cost_0": nil}), charged("100")},
		{"nor does another verb", nil, asks("alice", args{"class": "PUT"}), charged("400")},
		{"it says no number", nil, asks("alice", args{"cost_0": "-5"}), charged("100")},
		{"nor one with a sign", nil, asks("alice", args{"cost_0": "+5"}), charged("100")},
		{"nor one that HAProxy may have cut", nil, asks("alice", args{"cost_0": "00000000000001"}), charged("100")},
		{"nor one that is too large", nil, asks("alice", args{"cost_0": "1000000000001"}), charged("100")},
		{"another number of the unit", nil, asks("alice", args{"units": "euros tokens", "cost_0": "1", "cost_1": "30"}), vars{"charged_1": "30@" + second}},
		{"a unit that HAProxy does not know", nil, asks("alice", args{"units": "euros", "cost_0": "1"}), vars{}},
		{"no units at all", nil, args{"user": "alice", "class": "GET"}, vars{}},
		{"refused until the minute ends", []args{asks("alice", args{"cost_0": "901"})}, asks("alice", nil),
			vars{"reason": "cost", "cause": "pool", "class": "tokens/minute", "unit": "tokens", "limit": "1000", "window": uint32(60), "retry": uint32(60)}},
		{"more than a limit", nil, asks("alice", args{"cost_0": "5000000001"}),
			vars{"reason": "cost", "cause": "estimate-too-large", "class": "tokens/day", "unit": "tokens", "limit": "5000000000", "window": uint32(86400), "retry": uint32(86400)}},
		{"in a dry run", []args{asks("carol", args{"cost_0": "900"})}, asks("carol", args{"cost_0": "900"}), charged("900")},
		{"before the body is there", nil, asks("alice", args{"later": 1}), vars{"charge": uint32(1)}},
		{"not limited, before the body is there", nil, asks("dave", args{"later": 1}), vars{}},
		{"when it is there", []args{asks("alice", args{"later": 1})}, asks("alice", args{"later": 2, "cost_0": "250"}), charged("250")},
		{"when it is there, for the access log", nil, asks("bob", args{"later": 2, "cost_0": "10", "log": true}),
			vars{"charged_0": "10@" + second, "class": "GET/minute", "window": uint32(60), "limit": uint32(3), "remaining": uint32(3)}},
		{"not limited", nil, asks("dave", args{"cost_0": "900"}), vars{}},
		{"for the access log", []args{asks("alice", args{"cost_0": "300"})}, asks("alice", args{"cost_0": "200", "log": true}),
			vars{"charged_0": "200@" + second, "class": "tokens/minute", "window": uint32(60), "unit": "tokens", "limit": uint32(1000), "remaining": uint32(500)}},
		{"for the access log, nearer to another limit", nil, asks("bob", args{"cost_0": "10", "log": true}),
			vars{"charged_0": "10@" + second, "class": "concurrent-requests", "limit": uint32(2), "remaining": uint32(1)}},
		{"for the access log, of a dry run", []args{asks("carol", args{"cost_0": "900"})}, asks("carol", args{"cost_0": "900", "log": true}),
			vars{"charged_0": "900@" + second, "verdict": "dry-run", "class": "tokens/minute", "window": uint32(60), "unit": "tokens", "limit": uint32(1000), "remaining": uint32(0)}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCostRig(t).haproxy()
				for _, with := range tt.before {
					c.ask("start-message", with)
				}
				if got := c.ask("start-message", tt.last); !maps.Equal(got, tt.want) {
					t.Errorf("%v = %v, want %v", tt.last, got, tt.want)
				}
			})
		})
	}
}

// A request takes what it needs, or nothing: what is refused by one limit costs nothing of
// another, whichever answers first.
func TestCostsAllOrNone(t *testing.T) {
	for name, slow := range map[string]func(*pool){
		"answers at once":           func(*pool) {},
		"the charge comes late":     func(p *pool) { p.setCharges(5*time.Millisecond, nil) },
		"the tokens come late":      func(p *pool) { p.setTokens(5*time.Millisecond, nil) },
		"the charge comes too late": func(p *pool) { p.setCharges(40*time.Millisecond, nil) },
		"the places come first":     func(p *pool) { p.setTokens(5*time.Millisecond, nil); p.setCharges(5*time.Millisecond, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newCostRig(t)
				slow(r.pool)
				spent, allowed := int64(0), 0
				for range 6 {
					if r.costs("bob", 600).allowed {
						spent += 600
						allowed++
					}
				}
				r.pool.set(0, nil)
				time.Sleep(time.Second)
				if got := r.pool.spent("bob", perMinute); got != spent {
					t.Errorf("the pool has %d, want the %d of the %d requests that were allowed", got, spent, allowed)
				}
				// Three requests a minute, one place each: what was refused by its cost has used up neither.
				time.Sleep(time.Minute)
				for i := range 3 {
					if v := r.costs("bob", 100); !v.allowed {
						t.Errorf("request %d of the next minute is refused: %+v", i+1, v)
					}
					time.Sleep(2 * time.Second)
				}
				if v := r.costs("bob", 100); v.allowed || v.cost.Unit != "" {
					t.Errorf("the fourth gets %+v, want it refused by its rate", v)
				}
				time.Sleep(time.Second)
				if got := r.pool.spent("bob", perMinute); got != 300 {
					t.Errorf("the pool has %d, want 300: what was refused costs nothing", got)
				}
			})
		})
	}
}

// A request that is asked about before its body is there takes all but its cost then, and is counted when it is charged.
func TestCostsBehindTheBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newCostRig(t)
		ask := func(later, estimate int64) verdict {
			return r.verdict(question{user: "bob", verb: "GET", later: later, costs: askedCosts{units: "tokens", estimates: [limits.MaxCostUnits]int64{estimate}}})
		}
		// Three requests and 1000 tokens a minute.
		for i, want := range []bool{true, true, false} {
			if v := ask(costBehind, 0); !v.allowed || v.charged != nil {
				t.Fatalf("request %d before its body: %+v, want it allowed and not charged", i+1, v)
			}
			if v := ask(costOnly, 400); v.allowed != want || want && v.charged == nil {
				t.Errorf("the cost of request %d: %+v, want allowed: %t", i+1, v, want)
			}
			time.Sleep(2 * time.Second)
		}
		if v := ask(costBehind, 0); v.allowed || v.rate.Window != limits.Minute {
			t.Errorf("the fourth gets %+v, want it refused by its rate", v)
		}
		if allowed, refused := testutil.ToFloat64(r.metrics.allowed), testutil.ToFloat64(r.metrics.refused.WithLabelValues("tokens/minute")); allowed != 2 || refused != 1 {
			t.Errorf("%v allowed and %v refused for their cost, want 2 and 1", allowed, refused)
		}
	})
}

// A request whose path origins may read in several ways costs what the dearest class does.
func TestCostsOfAnUnclearPath(t *testing.T) {
	set := parse(t, `
version: 1
default_tier: free
classes: {CHAT: {path_prefix: /chat}, EMBED: {path_prefix: /embed}}
costs:
  pages: {classes: [PUT], estimate: {default: 7}}
  tokens: {classes: [CHAT, EMBED], estimate: {default: 20, classes: {EMBED: 500}}}
tiers: {free: {costs: {pages: {minute: 10k}, tokens: {minute: 10k}}}}
`)
	for _, tt := range []struct {
		name    string
		q       question
		charged map[string]int64
	}{
		{"of no class", question{verb: "GET"}, nil},
		{"of a class", question{verb: "GET", op: "CHAT"}, map[string]int64{"tokens": 20}},
		{"unclear", question{verb: "GET", costs: askedCosts{unclear: true}}, map[string]int64{"tokens": 500}},
		{"unclear, with an estimate", question{verb: "GET", costs: askedCosts{units: "pages tokens", estimates: [limits.MaxCostUnits]int64{-1, 30}, unclear: true}}, map[string]int64{"tokens": 30}},
	} {
		charged := map[string]int64{}
		if c := new(limiter).costsOf(set, tt.q, set.User("alice")); c != nil {
			for _, u := range c.units {
				charged[u.unit] = u.amount
			}
		}
		if len(charged) != len(tt.charged) || charged["tokens"] != tt.charged["tokens"] {
			t.Errorf("%s: charged %v, want %v", tt.name, charged, tt.charged)
		}
	}
}

// What HAProxy says of costs goes to the pools, and is counted.
func TestCostsAreSettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newCostRig(t)
		began := time.Now().Unix()
		for range 2 {
			if v := r.costs("alice", 500); !v.allowed {
				t.Fatalf("a request of 500 gets %+v", v)
			}
		}
		if v := r.costs("alice", 200); v.allowed || v.cost != perMinute {
			t.Errorf("beyond the limit a request gets %+v, want %s to refuse it", v, perMinute.Name())
		}
		r.settle([]costfeed.Correction{
			{Second: began, Unit: "tokens", Change: -300, User: "alice"},
			{Second: began, Unit: "tokens", Change: 50, User: "alice"},
			{Second: began, Unit: "euros", Change: -1, User: "alice"},
			{Second: began, Unit: "tokens", Change: -1, User: "dave"},
		})
		if v := r.costs("alice", 200); !v.allowed {
			t.Errorf("with 250 left a request of 200 gets %+v", v)
		}
		for of, want := range map[limits.Cost]int64{perMinute: 950, perDay: 950} {
			if got := r.pool.spent("alice", of); got != want {
				t.Errorf("%s has %d, want %d", of.Name(), got, want)
			}
		}
		for name, c := range map[string]struct{ got, want float64 }{
			"charged":  {testutil.ToFloat64(r.metrics.charged.counters.WithLabelValues("free", "tokens")), 1200},
			"refunded": {testutil.ToFloat64(r.metrics.refunded.counters.WithLabelValues("free", "tokens")), 300},
			"overrun":  {testutil.ToFloat64(r.metrics.overrun.counters.WithLabelValues("free", "tokens")), 50},
			"ignored":  {testutil.ToFloat64(r.metrics.correctionsIgnored), 2},
			"refused":  {testutil.ToFloat64(r.metrics.refused.WithLabelValues("tokens/minute")), 1},
		} {
			if c.got != c.want {
				t.Errorf("%s is %v, want %v", name, c.got, c.want)
			}
		}
	})
}

// HAProxy lets a request pass whose verdict it does not hear in time, and says so: what it was charged goes back, whichever
// comes first, and only once.
func TestCostsOfVerdictsThatAreNotHeard(t *testing.T) {
	id := costfeed.Question{ID: 17, User: "alice"}
	ask := func(r *rig) verdict {
		return r.verdict(question{asked: id, user: "alice", verb: "GET", costs: askedCosts{units: "tokens", estimates: [limits.MaxCostUnits]int64{500}}})
	}
	for _, tt := range []struct {
		name     string
		happens  func(r *rig)
		left     int64 // charged in the end
		refunded float64
	}{
		{"said after the charge", func(r *rig) { ask(r); r.takeUnheard(id) }, 0, 500},
		{"said before the charge", func(r *rig) { r.takeUnheard(id); ask(r) }, 0, 500},
		{"said twice", func(r *rig) { ask(r); r.takeUnheard(id); r.takeUnheard(id) }, 0, 500},
		{"said of another one", func(r *rig) {
			ask(r)
			r.takeUnheard(costfeed.Question{ID: 18, User: "alice"})
			r.takeUnheard(costfeed.Question{ID: 17, User: "bob"})
		}, 500, 0},
		{"said of one that was not charged", func(r *rig) { r.takeUnheard(id) }, 0, 0},
		{"said after a while", func(r *rig) { ask(r); time.Sleep(unheardSpan - time.Second); r.takeUnheard(id) }, 0, 500},
		{"said after an agent that stood still", func(r *rig) { ask(r); time.Sleep(6 * unheardSpan / 5); r.costs("alice", 0); r.takeUnheard(id) }, 0, 500},
		{"the answer's cost is charged beside", func(r *rig) {
			ask(r)
			r.takeUnheard(id)
			r.settle([]costfeed.Correction{{Second: time.Now().Unix(), Unit: "tokens", Change: 40, User: "alice"}})
		}, 40, 500},
		{"by a HAProxy whose clock is ahead", func(r *rig) {
			r.settle([]costfeed.Correction{{Second: time.Now().Unix() + 100, Unit: "tokens", Change: 40, User: "alice"}})
		}, 40, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newCostRig(t)
				tt.happens(r)
				time.Sleep(time.Second)
				if got := r.pool.spent("alice", perMinute); got != tt.left {
					t.Errorf("the minute has %d, want %d", got, tt.left)
				}
				if got := testutil.ToFloat64(r.metrics.refunded.counters.WithLabelValues("free", "tokens")); got != tt.refunded {
					t.Errorf("%v were refunded, want %v", got, tt.refunded)
				}
			})
		})
	}
}

// While Redis is lost each agent charges its part, at once, and Redis hears of it afterwards.
func TestCostsWithoutRedis(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newCostRig(t)
		r.pool.set(0, errAway)
		r.costs("alice", 100) // who finds out
		began := time.Now()
		for i, want := range []bool{true, true, true, true, false} { // the first one has had 100 of 500
			if v := r.costs("alice", 100); v.allowed != want {
				t.Errorf("request %d without Redis gets %+v, want allowed %v", i+1, v, want)
			}
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("without Redis requests waited %v", took)
		}
		r.settle([]costfeed.Correction{{Second: began.Unix(), Unit: "tokens", Change: -60, User: "alice"}})
		r.pool.set(0, nil)
		r.limiter.update(func(time.Time) {})
		for _, k := range r.exchange.links {
			k.findRedis()
		}
		time.Sleep(time.Second)
		if got := r.pool.spent("alice", perMinute); got != 440 {
			t.Errorf("when Redis is back the pool has %d, want 440", got)
		}
	})
}

// An agent that was killed between a charge and its settlement leaves the estimate charged,
// until the window ends; the one after it settles what it hears of.
func TestCostsOfAnAgentThatWasKilled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newCostRig(t)
		began := time.Now().Unix()
		r.costs("alice", 400)
		r.costs("alice", 400)
		r.stop()
		next := newRigOn(t, r.pool, func(o *Options) { o.Instance = "c" })
		next.limiter.inForce.set.Store(costSet("costs"))
		next.run()
		next.joined(redisbus.Registry{Instances: []string{"c"}})
		if v := next.costs("alice", 300); v.allowed {
			t.Errorf("with 800 of 1000 charged a request of 300 gets %+v", v)
		}
		next.settle([]costfeed.Correction{{Second: began, Unit: "tokens", Change: -350, User: "alice"}})
		if v := next.costs("alice", 300); !v.allowed {
			t.Errorf("with 450 of 1000 charged a request of 300 gets %+v", v)
		}
		time.Sleep(time.Minute)
		if v := next.costs("alice", 1000); !v.allowed {
			t.Errorf("in the next minute a request of a whole limit gets %+v", v)
		}
	})
}

// HAProxy's files that know nothing of a unit are a mistake that somebody has to hear of.
func TestCostsThatHAProxyDoesNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		r := newRig(t, func(o *Options) { o.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
		r.limiter.inForce.set.Store(costSet("costs"))
		r.run()
		r.joined(redisbus.Registry{Instances: []string{"a"}})
		for range 3 {
			if v := r.verdict(question{user: "alice", verb: "GET"}); !v.allowed {
				t.Errorf("a request gets %+v, want it charged its default", v)
			}
		}
		if got := r.pool.spent("alice", perMinute); got != 300 {
			t.Errorf("the pool has %d, want 300", got)
		}
		if n := testutil.ToFloat64(r.metrics.unsettled); n != 3 {
			t.Errorf("%v requests are counted, want 3", n)
		}
		if n := strings.Count(log.String(), "write them again (sluice haproxy)"); n != 1 {
			t.Errorf("the log says so %d times, want once: %s", n, log.String())
		}
	})
}

// An agent whose socket for corrections is somebody else's serves all the same.
func TestCostsWithoutASocket(t *testing.T) {
	var log bytes.Buffer
	taken := filepath.Join(t.TempDir(), "costs.sock")
	if err := os.WriteFile(taken, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r := newRig(t, func(o *Options) {
		o.Logger, o.Costs = slog.New(slog.NewTextHandler(&log, nil)), "unix:"+taken
	})
	if loops := r.hearCosts(); len(loops) != 0 {
		t.Errorf("%d loops hear of costs, want none", len(loops))
	}
	if !strings.Contains(log.String(), "what requests cost is not heard") || !strings.Contains(log.String(), taken) {
		t.Errorf("the log says %q, want why and where", log.String())
	}
}

// Nothing is allocated for who has no limit of costs.
func TestCostsAreNothingToOthers(t *testing.T) {
	l := newLimiter(&daemon.Clock{}, newMetrics(nil), concurrency.Config{}, 1, nil)
	l.inForce.set.Store(costSet("costs"))
	if n := testing.AllocsPerRun(100, func() { l.decideNow(question{user: "dave", verb: "GET", costs: askedCosts{units: "tokens"}}) }); n != 0 {
		t.Errorf("a verdict about somebody without such a limit allocates %v times, want never", n)
	}
}
