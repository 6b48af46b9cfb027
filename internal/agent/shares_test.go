package agent

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-qos/sluice/internal/agent/peers"
	"github.com/sluice-qos/sluice/internal/redisbus"

	"github.com/sluice-qos/sluice/pkg/bandwidth"
	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

// shareLimits are limits of bandwidth.
const shareLimits = `version: 1
default_tier: both
tiers:
  both: {bandwidth: {down: 12MiB, up: 6MiB}}
  down: {bandwidth: {down: 12MiB}}
  up: {bandwidth: {up: 6MiB}}
  begin: {bandwidth: {down: 12MiB, up: 6MiB, default_share: 1MiB}}
  beginDown: {bandwidth: {down: 12MiB, default_share: 1MiB}}
  rated: {requests: {GET: 1}, bandwidth: {down: 12MiB}}
  single: {concurrent: 1, bandwidth: {down: 12MiB}}
  first: {concurrent: 1, over_limit: {concurrent: wait 2s}, priority: -5, bandwidth: {down: 12MiB}}
  staff: {}
users: {down: down, up: up, begin: begin, beginDown: beginDown, rated: rated, single: single, first: first, staff: staff}
`

const mib = 1 << 20

// newShareRig is an agent with shareLimits, one of so many instances.
func newShareRig(t *testing.T, instances int, change func(*Options)) *rig {
	t.Helper()
	r := newRig(t, change)
	r.limiter.inForce.set.Store(parse(t, shareLimits))
	r.joined(redisbus.Registry{Instances: []string{"a", "b", "c"}[:instances]})
	return r
}

// moved plays HAProxy, which pushes what its table says of a user.
func (r *rig) moved(user string, active, down, up uint64) {
	r.learnProgress(peers.Update{Table: "/active", Key: user, Values: peers.Values{
		peers.HTTPReqCnt: 1000, peers.ConnCur: active, peers.BytesOutCnt: down, peers.BytesInCnt: up,
	}})
}

// held plays HAProxy, which pushes how many requests by credit it holds.
func (r *rig) held(user string, active uint64) {
	r.learnProgress(peers.Update{Table: "/held", Key: user, Values: peers.Values{peers.ConnCur: active}})
}

// shareUsers is how many users with bandwidth limits the agent knows.
func (r *rig) shareUsers() int {
	r.limiter.mu.Lock()
	defer r.limiter.mu.Unlock()
	return r.limiter.bytes.KnownUsers()
}

// wantShares asks, and checks the shares of an allowed request.
func (r *rig) wantShares(user string, down, up int64) {
	r.t.Helper()
	if got, want := r.ask(user, "GET"), (verdict{allowed: true, share: [2]int64{down, up}}); got != want {
		r.t.Errorf("verdict(%s) = %+v, want %+v", user, got, want)
	}
}

// wantTold checks all shares that the core decided for HAProxy's table. Which of them
// are written into it, transfers_test.go checks.
func (r *rig) wantTold(when string, want ...bandwidth.TableEntry) {
	r.t.Helper()
	if got := r.toldOfShares(); !slices.Equal(got, want) {
		r.t.Errorf("%s: HAProxy was told %v, want %v", when, got, want)
	}
}

// divided is polygen's word about a user's shares: of a and of b.
func divided(user string, d bandwidth.Direction, a, b int64) redisbus.Share {
	return redisbus.Share{User: user, Direction: d, Shares: []bandwidth.Share{{Instance: "a", Bytes: a}, {Instance: "b", Bytes: b}}}
}

func TestShareUnits(t *testing.T) {
	for _, tt := range []struct {
		name  string
		bytes int64
		want  uint32
	}{
		{"1 B/s is a limit, too", 1, 1},
		{"none would not be one", 0, 1},
		{"less than half a unit", 31, 1},
		{"one", 64, 1},
		{"just below one and a half", 95, 1},
		{"one and a half", 96, 2},
		{"10 kB/s, to less than a per cent", 10_000, 156},
		{"1 MiB/s", mib, 16_384},
		{"256 GiB/s, the most but one unit", 256<<30 - 64, math.MaxUint32},
		{"256 GiB/s", 256 << 30, math.MaxUint32},
		{"1 TiB/s, the highest limit", limits.MaxBandwidth, math.MaxUint32},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := shareUnits(tt.bytes); got != tt.want {
				t.Errorf("shareUnits(%d) = %d, want %d", tt.bytes, got, tt.want)
			}
		})
	}
}

// What HAProxy gets as variables: shares in units of 64 bytes per second, of the
// limited directions.
func TestShareVariables(t *testing.T) {
	const start, line = "start-message", "wait-message"
	both := func(down, up uint32) vars { return vars{"down": down, "up": up} }
	of := func(user string) args { return args{"user": user, "class": "GET"} }
	type message struct {
		name string
		args args
	}
	for _, tt := range []struct {
		name      string
		instances int
		limits    string
		before    []message
		policies  []redisbus.Message
		last      message
		want      vars
	}{
		{"alone: the limit", 1, shareLimits, nil, nil, message{start, of("alice")}, both(196_608, 98_304)},
		{"only down is limited", 1, shareLimits, nil, nil, message{start, of("down")}, vars{"down": uint32(196_608)}},
		{"only up is limited", 1, shareLimits, nil, nil, message{start, of("up")}, vars{"up": uint32(98_304)}},
		{"neither: nothing", 1, shareLimits, nil, nil, message{start, of("staff")}, vars{}},
		{"nobody knows who: nothing", 1, shareLimits, nil, nil, message{start, args{"class": "GET"}}, vars{}},
		{"alone, a default share does not count", 1, shareLimits, nil, nil, message{start, of("begin")}, both(196_608, 98_304)},
		{"of two: half", 2, shareLimits, nil, nil, message{start, of("alice")}, both(98_304, 49_152)},
		{"of three: a third", 3, shareLimits, nil, nil, message{start, of("alice")}, both(65_536, 32_768)},
		{"of three, in one direction", 3, shareLimits, nil, nil, message{start, of("up")}, vars{"up": uint32(32_768)}},
		{"of two: the default share", 2, shareLimits, nil, nil, message{start, of("begin")}, both(16_384, 16_384)},
		{"of two: the default share, in the limited direction", 2, shareLimits, nil, nil, message{start, of("beginDown")}, vars{"down": uint32(16_384)}},
		{"what polygen says, of the direction it says", 2, shareLimits, []message{{start, of("begin")}},
			[]redisbus.Message{divided("begin", bandwidth.Up, 5*mib, mib)}, message{start, of("begin")}, both(16_384, 81_920)},
		{"with a priority", 1, shareLimits, nil, nil, message{start, of("first")}, vars{"priority": "-5", "down": uint32(196_608)}},
		{"told to wait: no share yet", 1, shareLimits, []message{{start, of("first")}}, nil,
			message{start, of("first")}, vars{"wait": uint32(2000), "limit": uint32(1)}},
		{"waited, and the place is free", 1, shareLimits, []message{{start, of("first")}, {start, of("first")}}, nil,
			message{line, args{"user": "first", "tracked": "1", "active": "0"}}, vars{"priority": "-5", "down": uint32(196_608)}},
		{"refused: none", 1, shareLimits, []message{{start, of("single")}}, nil,
			message{start, of("single")}, vars{"reason": "concurrent-requests", "cause": "own-count", "limit": uint32(1)}},
		{"the slowest limit there is", 1, "version: 1\ndefault_tier: free\ntiers: {free: {bandwidth: {down: 1}}}\n", nil, nil,
			message{start, of("alice")}, vars{"down": uint32(1)}},
		{"faster than HAProxy can count", 1, "version: 1\ndefault_tier: free\ntiers: {free: {bandwidth: {down: 1TiB}}}\n", nil, nil,
			message{start, of("alice")}, vars{"down": uint32(math.MaxUint32)}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newShareRig(t, tt.instances, nil).run()
				r.limiter.inForce.set.Store(parse(t, tt.limits))
				c := r.haproxy()
				for _, m := range tt.before {
					c.ask(m.name, m.args)
				}
				r.applyPolicies(tt.policies)
				if got := c.ask(tt.last.name, tt.last.args); !maps.Equal(got, tt.want) {
					t.Errorf("%s %v = %v, want %v", tt.last.name, tt.last.args, got, tt.want)
				}
			})
		})
	}
}

// Who is refused, or has to wait, moves nothing: they get no share, and nobody
// hears of them.
func TestNoShareForWhoIsNotAllowed(t *testing.T) {
	get := limits.Rate{Class: "GET", Max: 1}
	for _, tt := range []struct {
		name, user string
		want       verdict
	}{
		{"no token", "rated", verdict{rate: get}},
		{"no slot", "single", verdict{limit: 1}},
		{"told to wait", "first", verdict{limit: 1, wait: 2 * time.Second}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newShareRig(t, 2, nil).run()
				// Others have taken all there is.
				r.pool.fill(ratelimit.Key{Class: "GET", User: tt.user}, 1)
				r.pool.occupy(tt.user, "b", 1)
				r.pool.set(ms, nil)
				if got := r.ask(tt.user, "GET"); got != tt.want {
					t.Errorf("verdict(%s) = %+v, want %+v", tt.user, got, tt.want)
				}
				wait(time.Second)
				r.wantTold("afterwards")
				if got, heard := r.shareUsers(), r.pool.reports(tt.user); got != 0 || len(heard) != 0 {
					t.Errorf("the agent knows %d users and reported %v, want nobody", got, heard)
				}
			})
		})
	}
}

// While requests are not limited for want of Redis, neither are their bytes; if the
// agent holds on, they are.
func TestSharesWhileRedisIsLost(t *testing.T) {
	for _, tt := range []struct {
		onLoss OnLoss
		want   [2]int64
	}{{Hold, [2]int64{6 * mib, 3 * mib}}, {Open, [2]int64{}}} {
		t.Run(string(tt.onLoss), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newShareRig(t, 2, func(o *Options) { o.OnLoss = tt.onLoss }).run()
				r.exchange.links[0].loseRedis(errAway)
				r.wantShares("alice", tt.want[0], tt.want[1])
				r.exchange.links[0].findRedis()
				r.wantShares("alice", 6*mib, 3*mib)
			})
		})
	}
}

// HAProxy's table follows what becomes of a user's shares, for the sake of their
// transfers in flight. Before, one request of theirs was allowed, in a cluster of two.
func TestSharesFollow(t *testing.T) {
	entry := func(down, up int64) bandwidth.TableEntry {
		return bandwidth.TableEntry{User: "alice", Share: [2]int64{down, up}}
	}
	tier := func(alice string) func(*rig) {
		return func(r *rig) { r.force(parse(r.t, "version: 1\ndefault_tier: free\ntiers: {free: "+alice+"}\n")) }
	}
	apply := func(m ...redisbus.Message) func(*rig) { return func(r *rig) { r.applyPolicies(m) } }
	after := func(d time.Duration, then ...func(*rig)) func(*rig) {
		return func(r *rig) {
			for began := time.Now(); time.Since(began) < d; wait(100 * ms) {
				r.moved("alice", 1, 0, 0) // the transfer goes on
			}
			for _, f := range then {
				f(r)
			}
		}
	}
	ask := func(r *rig) { r.ask("alice", "GET") }
	for _, tt := range []struct {
		name   string
		events []func(*rig)
		want   []bandwidth.TableEntry // after the first one
	}{
		{"nothing happens", nil, nil},
		{"another request", []func(*rig){ask}, nil},
		{"polygen divides", []func(*rig){apply(divided("alice", bandwidth.Down, 9*mib, 3*mib))}, []bandwidth.TableEntry{entry(9*mib, 3*mib)}},
		{"both directions", []func(*rig){apply(divided("alice", bandwidth.Down, 9*mib, 3*mib), divided("alice", bandwidth.Up, mib, 5*mib))},
			[]bandwidth.TableEntry{entry(9*mib, 3*mib), entry(9*mib, mib)}},
		{"and says so again", []func(*rig){apply(divided("alice", bandwidth.Down, 9*mib, 3*mib), divided("alice", bandwidth.Down, 9*mib, 3*mib))},
			[]bandwidth.TableEntry{entry(9*mib, 3*mib)}},
		{"another one's share", []func(*rig){apply(divided("bob", bandwidth.Down, 9*mib, 3*mib))}, nil},
		{"this instance has none any more: what it began with", []func(*rig){apply(divided("alice", bandwidth.Down, 9*mib, 3*mib),
			redisbus.Share{User: "alice", Shares: []bandwidth.Share{{Instance: "b", Bytes: 12 * mib}}})},
			[]bandwidth.TableEntry{entry(9*mib, 3*mib), entry(6*mib, 3*mib)}},
		{"a lower limit, at once", []func(*rig){tier("{bandwidth: {down: 4MiB, up: 6MiB}}")}, []bandwidth.TableEntry{entry(2*mib, 3*mib)}},
		{"a lower limit of a share that polygen gave", []func(*rig){apply(divided("alice", bandwidth.Down, 9*mib, 3*mib)), tier("{bandwidth: {down: 4MiB, up: 6MiB}}")},
			[]bandwidth.TableEntry{entry(9*mib, 3*mib), entry(3*mib, 3*mib)}},
		{"a higher one", []func(*rig){tier("{bandwidth: {down: 12MiB, up: 60MiB}}")}, []bandwidth.TableEntry{entry(6*mib, 30*mib)}},
		{"another default share", []func(*rig){tier("{bandwidth: {down: 12MiB, up: 6MiB, default_share: 2MiB}}")}, []bandwidth.TableEntry{entry(2*mib, 2*mib)}},
		{"one direction is not limited any more", []func(*rig){tier("{bandwidth: {up: 6MiB}}")}, []bandwidth.TableEntry{entry(0, 3*mib)}},
		{"no limit any more", []func(*rig){tier("{}")}, []bandwidth.TableEntry{entry(0, 0)}},
		{"other limits, not theirs", []func(*rig){tier("{requests: {GET: 100}, bandwidth: {down: 12MiB, up: 6MiB}}")}, nil},
		{"the other instance leaves: the limit", []func(*rig){func(r *rig) { r.joined(redisbus.Registry{Instances: []string{"a"}}) }},
			[]bandwidth.TableEntry{entry(12*mib, 6*mib)}},
		{"it lasts: HAProxy is reminded before it forgets", []func(*rig){after(50 * time.Second)},
			[]bandwidth.TableEntry{entry(6*mib, 3*mib), entry(6*mib, 3*mib)}},
		{"polygen is silent: its share lapses", []func(*rig){apply(divided("alice", bandwidth.Down, 9*mib, 3*mib)), after(61 * time.Second)},
			[]bandwidth.TableEntry{entry(9*mib, 3*mib), entry(9*mib, 3*mib), entry(9*mib, 3*mib), entry(6*mib, 3*mib)}},
		{"HAProxy is lost for a moment: it has kept its table", []func(*rig){func(r *rig) {
			r.followSession(peers.Session{State: peers.Down})
			r.followSession(peers.Session{State: peers.Up})
		}, ask}, nil},
		{"HAProxy has ended, and is back: it has nothing", []func(*rig){func(r *rig) {
			r.followSession(peers.Session{State: peers.Down, Closed: true})
			r.followSession(peers.Session{State: peers.Gone})
			r.followSession(peers.Session{State: peers.Up})
		}, ask}, []bandwidth.TableEntry{entry(6*mib, 3*mib)}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newShareRig(t, 2, nil).run()
				first := entry(6*mib, 3*mib)
				r.wantShares("alice", 6*mib, 3*mib)
				r.wantTold("at first", first)
				r.moved("alice", 1, 0, 0)
				for _, e := range tt.events {
					e(r)
				}
				r.wantTold("in the end", append([]bandwidth.TableEntry{first}, tt.want...)...)
			})
		})
	}
}

// A user in flight of whom nobody asked has a share, too: their transfers began
// before the agent did.
func TestShareOfWhoWasInFlightBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newShareRig(t, 2, nil).run()
		r.moved("alice", 2, 1000, 1000)
		wait(500 * ms)
		r.wantTold("after half a second", bandwidth.TableEntry{User: "alice", Share: [2]int64{6 * mib, 3 * mib}})
	})
}

// So has a user with credit for whom the quota of names has no place any more.
func TestShareOfWhoHasCreditBeyondTheQuota(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newShareRig(t, 2, func(o *Options) { o.UnknownUsers = 1 }).run()
		r.names.takePlace(time.Now(), "bob", r.limiter.inForce.limitsOf("bob"))
		r.moved("carol", 2, 0, 0)
		r.held("alice", 2)
		r.wantTold("at once", bandwidth.TableEntry{User: "alice", Share: [2]int64{6 * mib, 3 * mib}})
	})
}

// What HAProxy's table says becomes reports: how much is in progress and moves.
func TestReports(t *testing.T) {
	const down, up = 3 * mib, mib // per second
	for _, tt := range []struct {
		name      string
		instances int
		user      string
		table     string
		want      int      // requests in progress as reported; 0: nothing is
		moved     [2]int64 // bytes per second
	}{
		{"in both directions", 2, "alice", "/active", 2, [2]int64{down, up}},
		{"only of the limited one", 2, "down", "/active", 2, [2]int64{down, 0}},
		{"only up", 2, "up", "/active", 2, [2]int64{0, up}},
		{"alone, too: nobody divides anything, but it is shown", 1, "alice", "/active", 2, [2]int64{down, up}},
		{"by credit, while they are held", 2, "alice", "/held", 2, [2]int64{down, up}},
		{"of one without a limit", 2, "staff", "/active", 0, [2]int64{}},
		{"of another table", 2, "alice", "/block", 0, [2]int64{}},
		{"of a name that is none", 2, "al\nice", "/active", 0, [2]int64{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newShareRig(t, tt.instances, nil).run()
				for n := range uint64(21) {
					r.learnProgress(peers.Update{Table: tt.table, Key: tt.user, Values: peers.Values{
						peers.ConnCur: 2, peers.BytesOutCnt: 777 + n*down/10, peers.BytesInCnt: n * up / 10,
					}})
					wait(100 * ms)
				}
				heard := r.pool.reports(tt.user)
				if tt.want == 0 {
					if len(heard) != 0 {
						t.Errorf("reported %+v, want nothing", heard)
					}
					return
				}
				if len(heard) == 0 {
					t.Fatal("nothing was reported")
				}
				last := heard[len(heard)-1]
				if last.from != "a" || last.Instance != "a" || last.Active != tt.want || last.Moved != tt.moved {
					t.Errorf("reported %+v, want %d requests that move %v", last, tt.want, tt.moved)
				}
			})
		})
	}
}

// That a user begins, or has ended, polygen hears at once, and between that twice a
// second at least.
func TestReportsAreTimely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newShareRig(t, 2, nil).run()
		wait(3*flushEvery + 2*ms) // between two flushes
		began := time.Now()
		r.ask("alice", "GET")
		synctest.Wait()
		if heard := r.pool.reports("alice"); len(heard) != 1 || heard[0].Active != 1 || !heard[0].at.Equal(began) {
			t.Fatalf("reported %+v, want one request in progress at %v", heard, began)
		}
		r.moved("alice", 1, 0, 0)
		wait(2 * time.Second)
		if heard := r.pool.reports("alice"); len(heard) < 4 || len(heard) > 8 {
			t.Errorf("reported %d times in 2 s, want about twice a second", len(heard))
		}
		r.followSession(peers.Session{State: peers.Gone})
		ended := time.Now()
		synctest.Wait()
		if heard := r.pool.reports("alice"); heard[len(heard)-1].Active != 0 || !heard[len(heard)-1].at.Equal(ended) {
			t.Errorf("reported %+v in the end, want nothing in progress at %v", heard[len(heard)-1], ended)
		}
	})
}

// A request that is as good as begun is reported with the last report even when
// the agent ends.
func TestReportsAreCompleteInTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newShareRig(t, 2, nil).run()
		r.pool.setBytes(20*ms, nil)
		r.ask("alice", "GET")
		wait(ms) // her report is on its way
		r.ask("bob", "GET")
		r.stop()
		if heard := r.pool.reports("bob"); len(heard) != 1 {
			t.Errorf("reported %+v, want one report", heard)
		}
	})
}

// A Redis that takes no reports is told now and then. What it misses is not kept; what holds is said
// when it is back. No limit depends on it, so no shard is lost.
func TestReportsWhileRedisIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newShareRig(t, 2, nil).run()
		r.pool.setBytes(0, errAway)
		r.ask("alice", "GET")
		r.moved("alice", 1, 0, 0)
		synctest.Wait()
		if !r.exchange.channels.isLost() {
			t.Error("reports fail, and are sent as if they did not")
		}
		r.losses(false, 0)

		before := r.pool.reported()
		for n := range 60 { // each has something to say at once
			user := fmt.Sprint("user-", n)
			r.ask(user, "GET")
			if n < 10 {
				r.moved(user, 1, 0, 0) // goes on
			}
			wait(10 * ms)
		}
		if got := r.pool.reported() - before; got < 4 || got > 7 {
			t.Errorf("a lost Redis was told %d times in 0.6 s, want about 6", got)
		}
		r.wantShares("alice", 6*mib, 3*mib)
		wait(250 * ms) // the short ones have ended

		r.pool.setBytes(0, nil)
		wait(600 * ms)
		if r.exchange.channels.isLost() {
			t.Error("reports are taken again, and sent as if they were not")
		}
		for n := range 60 {
			user := fmt.Sprint("user-", n)
			heard := r.pool.reports(user)
			going := n < 10
			if going && (len(heard) == 0 || heard[len(heard)-1].Active != 1) {
				t.Errorf("of %s was reported %+v, want a request in progress", user, heard)
			}
			if !going && slices.ContainsFunc(heard, func(h report) bool { return h.Active > 0 }) {
				t.Errorf("of %s, who has ended, was reported %+v", user, heard)
			}
		}
	})
}

// Reports wait for no tokens, and tokens for no report: each has its own lane.
func TestReportsHaveALane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newShareRig(t, 2, nil).run()
		r.pool.setTokens(50*ms, nil)
		go r.ask("rated", "GET")
		wait(ms)
		r.ask("alice", "GET")
		synctest.Wait()
		if heard := r.pool.reports("alice"); len(heard) != 1 {
			t.Errorf("while tokens are asked for, reported %+v, want one report", heard)
		}
		wait(100 * ms)
	})
}

// The number of users who are known is what the metric says, at the next flush.
func TestShareUsersAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newShareRig(t, 1, nil).run()
		r.ask("alice", "GET")
		r.ask("staff", "GET")
		r.ask("up", "GET")
		wait(flushEvery)
		r.wantMetric("sluice_bandwidth_users", "sluice_bandwidth_users 2")
		wait(10 * time.Second)
		r.wantMetric("sluice_bandwidth_users", "sluice_bandwidth_users 0")
	})
}

// A replaced HAProxy tells of no end: what it moved is not waited for.
func TestSharesOfAReplacedHAProxyAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newShareRig(t, 2, nil).run()
		r.ask("alice", "GET")
		r.moved("alice", 1, 0, 0)
		r.followSession(peers.Session{State: peers.Down, Closed: true})
		r.followSession(peers.Session{State: peers.Up})
		wait(time.Second)
		if heard := r.pool.reports("alice"); len(heard) == 0 || heard[len(heard)-1].Active != 0 {
			t.Errorf("reported %+v, want at last that nothing is in progress", heard)
		}
		wait(10 * time.Second)
		if n := r.shareUsers(); n != 0 {
			t.Errorf("%d users are known, want none", n)
		}
	})
}
