package agent

import (
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-qos/sluice/internal/redisbus"
)

const spareLimits = `version: 1
default_tier: free
tiers:
  free: {requests: {GET: 4, "*": {minute: 5}}}
  both: {requests: {GET: 4}, concurrent: 3}
  first: {concurrent: 2, priority: -5}
  burst: {requests: {GET: {second: 3, burst: 2}}}
  dry: {mode: dry-run, requests: {GET: 1}}
  busy: {mode: dry-run, concurrent: 1}
  staff: {}
exempt: {users: [probe]}
users: {both: both, first: first, burst: burst, dry: dry, busy: busy, staff: staff}
`

// What HAProxy gets for its access log: nothing unless it asks, and then what is left
// of the limit of which the request leaves least.
func TestVariablesForTheAccessLog(t *testing.T) {
	left := func(class string, limit, remaining uint32) vars {
		v := vars{"class": class, "limit": limit, "remaining": remaining}
		if strings.HasSuffix(class, "/minute") {
			v["window"] = uint32(60)
		}
		return v
	}
	tracked := func(n int64) args { return args{"tracked": n, "active": n} }
	for _, tt := range []struct {
		name, user, verb string
		with             []args // of one request after the other; HAProxy asks with log in each
		want             []vars
	}{
		{"counting down", "alice", "GET", make([]args, 5), []vars{
			left("GET", 4, 3), left("GET", 4, 2), left("GET", 4, 1), left("GET", 4, 0),
			{"reason": "request-rate", "cause": "own-count", "class": "GET", "limit": uint32(4), "retry": uint32(1)},
		}},
		{"another verb, the minute", "alice", "PUT", make([]args, 2), []vars{left("*/minute", 5, 4), left("*/minute", 5, 3)}},
		{"a burst", "burst", "GET", make([]args, 2), []vars{left("GET", 3, 4), left("GET", 3, 3)}},
		{"requests in progress are nearer", "both", "GET", []args{nil, tracked(1)}, []vars{left("concurrent-requests", 3, 2), left("concurrent-requests", 3, 1)}},
		{"those that ended are not", "both", "GET", []args{nil, {"tracked": int64(1), "active": int64(0)}},
			[]vars{left("concurrent-requests", 3, 2), left("GET", 4, 2)}},
		{"with a priority", "first", "GET", make([]args, 1), []vars{{"priority": "-5", "class": "concurrent-requests", "limit": uint32(2), "remaining": uint32(1)}}},
		{"not limited", "staff", "GET", make([]args, 1), []vars{{}}},
		{"exempt", "probe", "GET", make([]args, 1), []vars{{"verdict": "exempt"}}},
		{"exempt by path", "~exempt", "GET", make([]args, 1), []vars{{"verdict": "exempt"}}},
		{"no user", "", "GET", make([]args, 1), []vars{{}}},
		{"refused by a rate in a dry run", "dry", "GET", make([]args, 2), []vars{{}, {"verdict": "dry-run", "class": "GET", "limit": uint32(1), "remaining": uint32(0)}}},
		{"refused by requests in progress in a dry run", "busy", "GET", []args{nil, tracked(1)},
			[]vars{{}, {"verdict": "dry-run", "class": "concurrent-requests", "limit": uint32(1), "remaining": uint32(0)}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, nil)
				r.limiter.inForce.set.Store(parse(t, spareLimits))
				r.run()
				r.joined(redisbus.Registry{Instances: []string{"a"}})
				time.Sleep(time.Second) // alone in this one
				c := r.haproxy()
				for i, want := range tt.want {
					with := args{"user": tt.user, "class": tt.verb, "log": true}
					maps.Copy(with, tt.with[i])
					if got := c.ask("start-message", with); !maps.Equal(got, want) {
						t.Errorf("request %d: %v = %v, want %v", i+1, with, got, want)
					}
				}
			})
		})
	}
}

// A limit in a dry run that the agent must ask about is not waited for.
func TestAccessLogDoesNotWaitForADryRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		r.limiter.inForce.set.Store(parse(t, spareLimits))
		r.pool.set(10*time.Millisecond, nil)
		r.run()
		r.joined(redisbus.Registry{Instances: []string{"a", "b"}})
		began := time.Now()
		v := r.verdict(question{user: "dry", verb: "GET", log: true})
		if !v.allowed || v.left == nil || *v.left != (quotaLeft{}) || time.Since(began) != 0 {
			t.Errorf("verdict = %+v, left %+v after %v, want allowed at once with nothing to say", v, v.left, time.Since(began))
		}
		time.Sleep(time.Second)
	})
}
