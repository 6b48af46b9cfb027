package agent

import (
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sluice-qos/sluice/internal/agent/peers"
	"github.com/sluice-qos/sluice/internal/redisbus"
	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

const namesLimits = `version: 1
default_tier: free
anonymous_tier: visitor
tiers:
  free: {requests: {GET: 3}}
  visitor: {requests: {GET: 2}}
  team: {requests: {GET: 5}}
  slot: {concurrent: 1}
  line: {concurrent: 1, over_limit: {concurrent: wait 2s}}
  down: {bandwidth: {down: 64000}}
  open: {}
  daily: {requests: {GET: {day: 5}}}
users: {alice: team, "daily-*": daily, "team-*": team, "slot-*": slot, "line-*": line, "down-*": down, "open-*": open}
`

// quotaRig is an agent with namesLimits and so many unknown users, u1 and so on, who
// have counts of their own already.
func quotaRig(t *testing.T, quota int, change func(*Options)) *rig {
	t.Helper()
	r := newRig(t, func(o *Options) {
		o.UnknownUsers = quota
		if change != nil {
			change(o)
		}
	})
	r.limiter.inForce.set.Store(parse(t, namesLimits))
	for i := range quota {
		r.ask(fmt.Sprint("u", i+1), "PUT")
	}
	return r
}

// allowed is how many of n requests are allowed, of names in which # is their number.
func (r *rig) allowed(n int, name string) (allowed int) {
	for i := range n {
		if r.ask(strings.ReplaceAll(name, "#", fmt.Sprintf("%02d", i)), "GET").allowed {
			allowed++
		}
	}
	return allowed
}

func TestNamesBeyondTheQuotaShareOneLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := quotaRig(t, 2, nil).run()
		for _, tt := range []struct {
			names string
			want  int
		}{
			{"new-#", 3},                             // the default tier's limit, once
			{"~" + strings.Repeat("A", 62) + "#", 0}, // long names share it with them
			{"192.0.2.1#", 2},                        // the anonymous tier's
			{"team-#", 5},                            // the pattern's
			{"open-#", 20},                           // not limited at all
			{"alice", 5}, {"u1", 3}, {"u2", 3},       // have their own
		} {
			if got := r.allowed(20, tt.names); got != tt.want {
				t.Errorf("of 20 requests of %s, %d are allowed, want %d", tt.names, got, tt.want)
			}
		}
		time.Sleep(time.Second) // another second begins
		if got := r.allowed(20, "newer-#"); got != 3 {
			t.Errorf("in the next second, %d of 20 names' requests are allowed, want 3", got)
		}
		if got, want := testutil.ToFloat64(r.metrics.sharing), 5*20.; got != want {
			t.Errorf("sluice_requests_sharing_total = %v, want %v", got, want)
		}
		r.limiter.update(func(time.Time) {
			for key := range r.limiter.throttles.young {
				t.Errorf("a long throttle of %s, want none", key)
			}
			if users := r.limiter.allCores()[0].tokens.KnownUsers(); users > 7 {
				t.Errorf("%d users are counted, want alice, the two of the quota and four keys that others share at most", users)
			}
		})
	})
}

// A place that nobody has used for long enough is another user's.
func TestPlacesOfTheQuotaAreFreed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := quotaRig(t, 1, nil)
		if got := r.ask("new", "GET").others; got != "~others" {
			t.Errorf("the first newcomer counts for %q, want ~others", got)
		}
		for range 3 { // whoever comes back keeps the place
			time.Sleep(nameSpan(limits.Second) * 9 / 10)
			if got := r.ask("u1", "GET").others; got != "" {
				t.Errorf("the user of the quota counts for %q", got)
			}
		}
		time.Sleep(2 * nameSpan(limits.Second))
		if got := r.ask("new", "GET").others; got != "" {
			t.Errorf("a newcomer counts for %q when there is a place, want no other", got)
		}
		if got := r.ask("u1", "GET").others; got != "~others" {
			t.Errorf("who was away for too long counts for %q, want ~others", got)
		}
		// A place that is taken anew takes memory in Redis until the window ends, so those of longer windows are kept for longer.
		for _, step := range []struct {
			wait time.Duration
			user string
			own  bool
		}{{0, "daily-1", true}, {2 * time.Hour, "daily-2", false}, {2 * time.Hour, "daily-1", true}, {9 * time.Hour, "daily-2", true}} {
			time.Sleep(step.wait)
			if got := r.ask(step.user, "GET").others; (got == "") != step.own {
				t.Errorf("%s counts for %q, want their own: %v", step.user, got, step.own)
			}
		}
	})
}

// HAProxy hears for which key a request counts, and tracks it there.
func TestOthersAreTrackedTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := quotaRig(t, 1, nil).run()
		c := r.haproxy()
		check := func(message string, with args, want vars) {
			t.Helper()
			with["class"] = "GET"
			if got := c.ask(message, with); !maps.Equal(got, want) {
				t.Errorf("%s %v = %v, want %v", message, with, got, want)
			}
		}
		refused := vars{"reason": "concurrent-requests", "cause": "own-count", "limit": uint32(1)}

		check("start-message", args{"user": "new"}, vars{"others": "~others"})
		check("start-message", args{"user": "u1"}, vars{})
		check("start-message", args{"user": "down-1"}, vars{"others": "~others:down-*", "down": uint32(1000)})
		check("start-message", args{"user": "slot-1"}, vars{"others": "~others:slot-*"})
		check("start-message", args{"user": "slot-2", "tracked": int64(9), "active": int64(0)}, refused)
		r.progress("~others:slot-*", 1, 1)
		time.Sleep(2 * time.Second)
		check("start-message", args{"user": "slot-3"}, refused)
		r.progress("~others:slot-*", 1, 0)
		check("start-message", args{"user": "slot-4"}, vars{"others": "~others:slot-*"})

		check("start-message", args{"user": "line-1"}, vars{"others": "~others:line-*"})
		check("start-message", args{"user": "line-2"}, vars{"others": "~others:line-*", "wait": uint32(2000), "limit": uint32(1)})
		// The second question is about the key that the first answer named.
		check("wait-message", args{"user": "~others:line-*", "tracked": int64(1), "active": int64(0)}, vars{})
	})
}

// Names beyond the quota that HAProxy tracks for themselves, because their verdicts came
// too late to name the key they share, take no memory here.
func TestLateNamesAreNotLearned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := quotaRig(t, 1, nil)
		progress := func(user string, active uint64) {
			r.learnProgress(peers.Update{Table: activeTable, Key: user, Values: peers.Values{
				peers.HTTPReqCnt: 1, peers.ConnCur: active, peers.BytesOutCnt: 1000,
			}})
		}
		for i := range 100 {
			for _, name := range []string{"slot", "down"} {
				progress(fmt.Sprintf("%s-%d", name, i), 1)
				progress(fmt.Sprintf("@up/%s-%d", name, i), 1)
			}
		}
		if got := r.inProgress("slot-1"); got != 0 {
			t.Errorf("%d requests in progress of a name beyond the quota, want none", got)
		}
		if shares, moved := r.shareUsers(), r.limiter.bodies.moved.len(); shares != 0 || moved != 0 {
			t.Errorf("of names beyond the quota, %d have bandwidth, and %d bytes that moved; want none", shares, moved)
		}
		progress("~others:slot-*", 1)
		if got := r.inProgress("~others:slot-*"); got != 1 {
			t.Errorf("%d requests in progress of the key that they share, want 1", got)
		}

		time.Sleep(3 * nameSpan(limits.Second)) // u1's place is free
		progress("slot-1", 1)
		if got := r.inProgress("slot-1"); got != 1 {
			t.Errorf("%d requests in progress of a name that has found a place, want 1", got)
		}
		time.Sleep(3 * nameSpan(limits.Second)) // and another one's, while that request goes on
		r.ask("u1", "PUT")
		progress("slot-1", 0)
		if got := r.inProgress("slot-1"); got != 0 {
			t.Errorf("%d requests in progress of a name that has lost its place, when its request has ended; want none", got)
		}
	})
}

// Two agents on one pool, of which each sees other names first: all that the names of
// both quotas and the others get is a limit each.
func TestQuotasOfTwoAgents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool()
		quota := func(o *Options) { o.UnknownUsers = 1 }
		a, b := newRigOn(t, p, quota), newRigOn(t, p, func(o *Options) { quota(o); o.Instance = "b" })
		for i, r := range []*rig{a, b} {
			r.limiter.inForce.set.Store(parse(t, namesLimits))
			r.run()
			r.joined(redisbus.Registry{Instances: []string{"a", "b"}})
			r.ask(fmt.Sprint("u", i+1), "PUT")
		}
		allowed := 0
		for range 10 {
			for _, name := range []string{"u1", "u2", "u3"} {
				for _, r := range []*rig{a, b} {
					if r.ask(name, "GET").allowed {
						allowed++
					}
				}
			}
		}
		if allowed != 9 { // u1's, u2's and the others'
			t.Errorf("%d requests are allowed, want three limits of 3", allowed)
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, user := range []string{"u1", "u2", "~others"} {
			total := 0
			for at, n := range p.totals {
				if at.key == (ratelimit.Key{Class: "GET", User: user}) {
					total = max(total, n)
				}
			}
			if total != 3 {
				t.Errorf("the pool of %s has handed out %d, want 3", user, total)
			}
		}
	})
}

func TestTellsOfTheQuota(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := quotaRig(t, 1, nil)
		var log strings.Builder
		logger := slog.New(slog.NewTextHandler(&log, nil))
		for range 3 * 60 * 4 { // heartbeats of three minutes
			r.ask("new", "GET")
			r.names.logShared(time.Now(), logger)
			time.Sleep(beatEvery)
		}
		if got := strings.Count(log.String(), "share the limits of one"); got != 3 {
			t.Errorf("the log tells %d times in three minutes, want once a minute:\n%s", got, &log)
		}
		if got := testutil.ToFloat64(r.metrics.unknown); got != 1 {
			t.Errorf("sluice_unknown_users_counted = %v, want 1", got)
		}
	})
}
