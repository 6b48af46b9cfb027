package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sluice-qos/sluice/internal/redisbus"
	"github.com/sluice-qos/sluice/pkg/cause"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

// Of two shards one is lost: its users' limits are kept alone, and the other's go on.
func TestALostShardConcernsItsUsers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := unreachable(t, 2)
		r := newRig(t, func(o *Options) { o.Bus, o.HoldFor = b, 3*time.Second })
		away := b.ShardOf("alice")
		r.exchange.take = func(ctx context.Context, instance string, asks []ratelimit.Ask) (redisbus.Taken, error) {
			shard := b.ShardOf(asks[0].Key.User)
			for _, ask := range asks {
				if b.ShardOf(ask.Key.User) != shard {
					t.Errorf("one call asks for %s and %s, who are in two shards", asks[0].Key.User, ask.Key.User)
				}
			}
			if shard == away {
				<-time.After(time.Minute) // it holds up nobody else
				return redisbus.Taken{}, errAway
			}
			return r.pool.take(ctx, instance, asks)
		}
		other := "bob"
		for b.ShardOf(other) == away {
			other += "b"
		}
		r.run()
		r.joined(redisbus.Registry{Instances: []string{"a", "b"}})
		r.pool.set(ms, nil)
		go r.ask("alice", "GET")
		wait(r.options.lostAfter())
		for range 2 {
			r.want(other, "GET", true, ms)
			wait(time.Second)
		}
		if !r.exchange.links[away].isLost() || r.exchange.links[1-away].isLost() || r.limiter.allLost() {
			t.Errorf("shard %d is lost: %v, the other one: %v, want that one alone", away, r.exchange.links[away].isLost(), r.exchange.links[1-away].isLost())
		}
		for _, metric := range []prometheus.Collector{r.metrics.lost, r.metrics.lostShards, r.metrics.losses} {
			if got := testutil.ToFloat64(metric); got != 1 {
				t.Errorf("a metric of what is lost is %v, want 1", got)
			}
		}
		causes := map[string]cause.Cause{"alice": cause.RedisLost, other: cause.Pool}
		for user, want := range causes {
			var last verdict
			for range 9 {
				last = r.Agent.verdict(question{user: user, verb: "GET"})
			}
			if last.allowed || last.cause != want {
				t.Errorf("the last of nine requests of %s: %+v, want it refused by %q", user, last, want)
			}
		}
		wait(time.Second)
		for range 9 {
			r.want("alice", "GET", true, 0) // held for long enough
		}
		if v := r.ask(other, "GET"); !v.allowed {
			t.Errorf("verdict(%s) = %+v in the next second, want it allowed", other, v)
		}
		for range 9 {
			r.ask(other, "GET")
		}
		r.want(other, "GET", false, 0)
	})
}

// Shards where nothing is held hear the less often of an instance, the more instances there are.
func TestIdleShardsAreToldSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := unreachable(t, 16)
		r := newRig(t, func(o *Options) { o.Bus = b })
		r.limiter.inForce.set.Store(parse(t, slotLimits))
		held := b.ShardOf("alice")
		away, idle := (held+1)%16, (held+2)%16
		var told [16]atomic.Int64
		r.exchange.alive = func(_ context.Context, _ string, shard int) error {
			told[shard].Add(1)
			if shard == away {
				return redisbus.ErrUnavailable
			}
			return nil
		}
		r.run()
		r.pool.set(ms, nil)
		for _, tt := range []struct{ instances, least, most int }{{2, 100, 100}, {31, 100, 100}, {64, 25, 33}, {160, 10, 14}, {1000, 10, 14}} {
			all := []string{"a"}
			for i := range tt.instances - 1 {
				all = append(all, fmt.Sprintf("b%04d", i))
			}
			r.joined(redisbus.Registry{Instances: all})
			r.ask("alice", "GET")
			for i := range told {
				told[i].Store(0)
			}
			for range 200 {
				if err := r.tellShards(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if n := int(told[idle].Load()); n < tt.least || n > tt.most {
				t.Errorf("of %d instances an idle shard hears %d times in 200 heartbeats, want %d to %d", tt.instances, n, tt.least, tt.most)
			}
			if n, m := told[held].Load(), told[away].Load(); n != 100 || m != 200 {
				t.Errorf("of %d instances a shard with slots hears %d times in 200 heartbeats, a lost one %d times, want 100 and 200", tt.instances, n, m)
			}
		}
	})
}

// A registry that was away does not know all instances when it is back, if it was emptied: nobody is
// gone for that.
func TestNobodyIsGoneWithTheRegistry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		all, some := redisbus.Registry{Instances: []string{"a", "b", "c"}}, redisbus.Registry{Instances: []string{"a"}}
		for _, step := range []struct {
			name     string
			registry error
			listed   redisbus.Registry
			after    time.Duration
			want     int64
		}{
			{"all are there", nil, all, 0, 3},
			{"the registry is lost", errAway, some, time.Minute, 3},
			{"it is back, and was emptied", nil, some, 0, 3},
			{"one more is heard again", nil, redisbus.Registry{Instances: []string{"a", "b"}}, redisbus.Lapse + CallTimeout(r.options.MaxWait) - ms, 3},
			{"who has not been heard by now is gone", nil, redisbus.Registry{Instances: []string{"a", "b"}}, ms, 2},
			{"who joins is not waited for", nil, all, 0, 3},
		} {
			wait(step.after)
			r.noteRegistry(step.registry)
			r.joined(step.listed)
			if got := r.limiter.inForce.instances.Load(); got != step.want {
				t.Errorf("%s: %d instances, want %d", step.name, got, step.want)
			}
		}
	})
}

// The log names all shards that are lost with a master in one line, and not those that come and go.
func TestLossLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		b := unreachable(t, 16)
		o := &Options{Bus: b, OnLoss: Hold, Logger: slog.New(slog.NewTextHandler(&log, nil))}
		var g lossLog
		for _, step := range []struct {
			names string
			lasts time.Duration
			want  string // in the log, after it has lasted
		}{
			{"", time.Hour, ""},
			{"3", 250 * ms, ""},
			{"3 7", 500 * ms, ""}, // they are noticed one after the other
			{"3 7 registry", 2 * time.Second, `"redis lost: going on alone for users of these shards" shards="3 7 registry" of=16 on_loss=hold error=overdue`},
			{"3", 5 * time.Second, ""},
			{"", 2 * time.Second, `"redis is back" after=7s`},
			{"3", time.Second, ""}, // comes and goes
			{"", 3 * time.Second, ""},
			{"5", 2 * time.Second, `shards=5`},
			{"5 6", 20 * time.Second, `shards="5 6"`},
		} {
			log.Reset()
			for began := time.Now(); time.Since(began) < step.lasts; time.Sleep(beatEvery) {
				g.note(step.names, errors.New("overdue"), o)
			}
			if said := log.String(); !strings.Contains(said, step.want) || (said == "") != (step.want == "") || strings.Count(said, "\n") > 1 {
				t.Errorf("while %q are lost the log says %q, want %q", step.names, said, step.want)
			}
		}
	})
}

// Of shards that were lost together the log hears in one line that their users are not limited any more.
func TestLogOfOpenShards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		b := unreachable(t, 16)
		r := newRig(t, func(o *Options) {
			o.Bus, o.HoldFor, o.Logger = b, 3*time.Second, slog.New(slog.NewTextHandler(&log, nil))
		})
		said := func(d time.Duration) string {
			log.Reset()
			for began := time.Now(); time.Since(began) < d; time.Sleep(beatEvery) {
				for _, link := range r.exchange.links {
					link.isLost() // as lanes look at it
				}
				r.lossLog.noteOpen(r.openShards(), &r.options)
			}
			return log.String()
		}
		for _, shard := range []int{3, 7, 12} {
			r.exchange.links[shard].loseRedis(errAway)
			if early := said(500 * ms); early != "" {
				t.Errorf("after half a second the log says %q, want nothing", early)
			}
		}
		want := `msg="redis has been lost for long: not limiting users of so many shards" shards=3 of=16 for=3s`
		if got := said(time.Minute); strings.Count(got, "\n") != 1 || !strings.Contains(got, want) {
			t.Errorf("the log says %q, want one line with %q", got, want)
		}
		r.exchange.links[3].findRedis()
		if got := said(time.Minute); got != "" {
			t.Errorf("when one is back the log says %q, want nothing", got)
		}
	})
}

// However many shards are lost, few are named.
func TestLostShardsNamed(t *testing.T) {
	for _, tt := range []struct {
		shards, lost int
		want         string
	}{{1, 1, "0"}, {4, 0, ""}, {4, 2, "0 1"}, {4, 4, "all"}, {1024, 1024, "all"}, {64, 32, namesTo(32)}, {1024, 33, namesTo(32) + " and 1 more"}, {1024, 341, namesTo(32) + " and 309 more"}} {
		l := lost{shards: make([]bool, tt.shards)}
		for shard := range tt.lost {
			l.shards[shard] = true
		}
		if got := l.names(); got != tt.want {
			t.Errorf("%d of %d shards are named %q, want %q", tt.lost, tt.shards, got, tt.want)
		}
	}
}

// namesTo are so many numbers of shards.
func namesTo(n int) string {
	var all []string
	for shard := range n {
		all = append(all, fmt.Sprint(shard))
	}
	return strings.Join(all, " ")
}

// Of two instances, one that alone cannot reach the registry goes on with leases, and the other one, which
// takes it for gone, with the whole limit.
func TestRegistryOutOfReachOfOneOfTwo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool()
		a, b := newRigOn(t, p, nil).run(), newRigOn(t, p, func(o *Options) { o.Instance = "b" }).run()
		p.set(ms, nil)
		for _, r := range []*rig{a, b} {
			r.joined(redisbus.Registry{Instances: []string{"a", "b"}})
			r.force(parse(t, "version: 1\ndefault_tier: free\ntiers: {free: {requests: {GET: 100}}}\n"))
		}
		a.noteRegistry(errAway)
		wait(5 * time.Second)
		b.joined(redisbus.Registry{Instances: []string{"b"}, Now: time.Now()})
		wait((awaySpan + 3) * time.Second) // for as long it leaves the other one a part
		for range 4 {
			admitted := map[*rig]int{}
			for range 150 {
				for _, r := range []*rig{a, b, a, b} {
					if r.ask("alice", "GET").allowed {
						admitted[r]++
					}
				}
				wait(4 * ms)
			}
			if admitted[a] > 100 || admitted[b] != 100 {
				t.Errorf("%d and %d requests were admitted in a second, want 100 at most by leases, and 100", admitted[a], admitted[b])
			}
			wait(time.Until(time.Now().Truncate(time.Second).Add(time.Second)))
		}
	})
}
