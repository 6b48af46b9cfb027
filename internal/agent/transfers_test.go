package agent

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sluice-qos/sluice/internal/agent/peers"
	"github.com/sluice-qos/sluice/internal/redisbus"
	"github.com/sluice-qos/sluice/pkg/bandwidth"
)

// HAProxy's table has the shares of users with transfers in flight, and of nobody else.
func TestSharesAreTaughtForTransfers(t *testing.T) {
	share := func(down, up int64) *peers.Values {
		return &peers.Values{peers.GPT0: uint64(shareUnits(down)), peers.GPC0: uint64(shareUnits(up))}
	}
	half := share(6*mib, 3*mib)
	ask := func(r *rig) { r.ask("alice", "GET") }
	active := func(n uint64) func(*rig) { return func(r *rig) { r.moved("alice", n, 0, 0) } }
	after := func(d time.Duration) func(*rig) { return func(*rig) { time.Sleep(d) } }
	held := func(n uint64) func(*rig) { return func(r *rig) { r.held("alice", n) } }
	divide := func(r *rig) { r.applyPolicies([]redisbus.Message{divided("alice", bandwidth.Down, 9*mib, 3*mib)}) }
	forget := func(r *rig) { r.forget() }
	for _, tt := range []struct {
		name   string
		events []func(*rig)
		want   *peers.Values // nil: nothing was ever written
	}{
		{"a short request by credit", []func(*rig){held(1), after(20 * ms), held(0), after(time.Second)}, nil},
		{"a transfer by credit", []func(*rig){held(1), after(100 * ms), held(1)}, half},
		{"a transfer by credit of a user whose share is another one by now", []func(*rig){ask, divide, after(2 * time.Second), held(1)}, share(9*mib, 3*mib)},
		{"a share that changes during a transfer by credit", []func(*rig){held(1), after(5 * ms), divide}, share(9*mib, 3*mib)},
		{"a transfer by credit that ends before one that was asked about", []func(*rig){
			ask, active(1), held(1), after(100 * ms), active(1), held(0), after(shareIdleSpan), forget}, half},
		{"a transfer by credit that ends after one that was asked about", []func(*rig){
			ask, active(1), held(1), after(100 * ms), held(1), active(0), after(shareIdleSpan), forget}, half},
		{"a request that HAProxy never tracked", []func(*rig){ask, after(time.Second)}, nil},
		{"a short request", []func(*rig){ask, active(1), after(20 * ms), active(0), after(time.Second)}, nil},
		{"short requests one after another, with pauses", []func(*rig){
			ask, active(1), after(50 * ms), active(0), after(50 * ms), ask, active(1), after(50 * ms), active(0), after(50 * ms)}, nil},
		{"a transfer", []func(*rig){ask, active(1), after(100 * ms), active(1)}, half},
		{"short requests that overlap", []func(*rig){ask, active(1), after(60 * ms), active(2), after(60 * ms), active(1)}, half},
		{"a share that changes meanwhile, at once", []func(*rig){ask, active(1), after(5 * ms), divide}, share(9*mib, 3*mib)},
		{"a share that changes before HAProxy tells of the request", []func(*rig){ask, divide, after(5 * ms), active(1)}, share(9*mib, 3*mib)},
		{"a share that changes when a short request is over", []func(*rig){ask, active(1), after(5 * ms), active(0), divide}, nil},
		{"a transfer that has just ended", []func(*rig){ask, active(1), after(100 * ms), active(1), active(0), after(4 * time.Second), forget}, half},
		{"a share that changes just after a transfer", []func(*rig){ask, active(1), after(100 * ms), active(1), active(0), divide}, share(9*mib, 3*mib)},
		{"a transfer that is over: the verdicts' shares hold", []func(*rig){
			ask, active(1), after(100 * ms), active(1), active(0), after(shareIdleSpan), forget}, &peers.Values{}},
		{"another one after it", []func(*rig){
			ask, active(1), after(100 * ms), active(1), active(0), after(shareIdleSpan), forget, ask, active(1), after(100 * ms), active(1)}, half},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newShareRig(t, 2, nil).run()
				for _, e := range tt.events {
					e(r)
				}
				r.limiter.mu.Lock() // a lane may be teaching
				got, taught := r.taught["sluice_share alice"]
				r.limiter.mu.Unlock()
				if taught != (tt.want != nil) || taught && got != *tt.want {
					t.Errorf("HAProxy's table says %v (%v), want %v", got, taught, tt.want)
				}
			})
		})
	}
}

// Names of one request each leave nothing in HAProxy's table of shares, and take no
// room of throttles and blocks.
func TestRandomNamesTakeNoShares(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newShareRig(t, 2, func(o *Options) { o.UnknownUsers = 50 }).run()
		for i := range 1000 {
			name := fmt.Sprint("random-", i)
			r.ask(name, "GET")
			r.moved(name, 1, 0, 0)
			time.Sleep(ms)
			r.moved(name, 0, 100, 0)
			r.applyPolicies([]redisbus.Message{divided(name, bandwidth.Down, 9*mib, 3*mib)})
		}
		r.limiter.update(func(time.Time) {
			for key := range r.taught {
				t.Errorf("HAProxy was taught %q, want nothing", key)
			}
		})
		if got := testutil.ToFloat64(r.metrics.shares); got != 0 {
			t.Errorf("sluice_native_shares_total = %v, want 0", got)
		}
		if got := r.shareUsers(); got > 51 {
			t.Errorf("the agent knows %d users with bandwidth limits, want the quota's 50 and the others", got)
		}
	})
}
