package agent

import (
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sluice-qos/sluice/internal/agent/peers"
	"github.com/sluice-qos/sluice/internal/redisbus"

	"github.com/sluice-qos/sluice/pkg/bandwidth"
	"github.com/sluice-qos/sluice/pkg/limits"
)

// The names, labels and help that operators build on, and what they count: a
// history and what it leaves.
func TestMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil).run()
		r.metrics.limitsInForce("old", 1)
		r.metrics.limitsInForce("1f2e3d4c5b6a", 12345)

		for range 5 { // 4 are allowed
			r.ask("alice", "GET")
		}
		for range 3 { // 2 are allowed: with the four, the limit of all classes
			r.ask("alice", "PUT")
		}
		r.ask("", "GET")
		r.ask("staff", "GET")
		r.ask(limits.UnreadableKey, "GET")

		r.joined(redisbus.Registry{Instances: []string{"a", "b", "c"}})
		wait(10 * flushEvery) // until nothing of before is on its way, for which bob would wait, too
		r.pool.set(2*ms, nil)
		r.ask("bob", "GET") // waits
		r.pool.set(time.Minute, nil)
		r.ask("carol", "GET")       // waits in vain
		wait(r.options.lostAfter()) // which loses Redis
		r.applyPolicies([]redisbus.Message{
			redisbus.Throttle{Key: alice, Second: time.Now().Unix(), Limit: 4},
			redisbus.Hot{Key: alice, Until: time.Now().Add(time.Second), Instances: 3},
			redisbus.Limits{Version: "2"},
		})

		// dave may have one in progress: another one is refused after a second and a half in line.
		r.limiter.inForce.set.Store(parse(t, `version: 1
default_tier: patient
tiers: {patient: {concurrent: 1, over_limit: {concurrent: wait 1500ms}}, one: {concurrent: 1}, moving: {bandwidth: {down: 6MiB}}}
users: {erin: one, frank: moving}
`))
		r.ask("dave", "GET")
		r.progress("dave", 1, 1)
		r.ask("dave", "GET") // told to wait
		r.verdict(question{user: "dave", verb: "GET", inLine: true})
		// erin's are refused until HAProxy does so by itself, and lets her in again.
		for range 6 {
			r.ask("erin", "GET")
		}
		r.progress("erin", 1, 1)
		r.ask("frank", "GET")
		// A HAProxy that was replaced goes on with both.
		r.followSession(peers.Session{State: peers.Down, Closed: true})
		r.followSession(peers.Session{State: peers.Up})
		r.moved("frank", 1, 0, 0) // a transfer, which is to follow the share
		r.endDraining()
		go r.verdict(question{user: "dave", verb: "GET", inLine: true}) // still waits
		defer wait(1500 * ms)
		wait(2 * flushEvery)

		r.applyPolicies([]redisbus.Message{
			redisbus.Block{User: "erin", Limit: 1},
			redisbus.Unblock{User: "erin"},
			redisbus.Slots{User: "erin", Until: time.Now().Add(time.Second)},
			redisbus.Share{User: "frank", Shares: []bandwidth.Share{{Instance: "a", Bytes: 1 << 20}}}, // another one
		})
		r.stop() // some gauges are of the last flush, the others of the last heartbeat
		r.limiter.showCores()

		golden, err := os.Open("testdata/metrics.golden")
		if err != nil {
			t.Fatal(err)
		}
		defer golden.Close()
		if err := testutil.GatherAndCompare(r.registry, golden,
			"sluice_requests_total", "sluice_requests_malformed_total", "sluice_requests_uncounted_total",
			"sluice_verdict_wait_seconds", "sluice_verdict_timeouts_total", "sluice_native_throttles_total",
			"sluice_native_blocks_total", "sluice_line_wait_seconds", "sluice_line_requests", "sluice_concurrent_users",
			"sluice_haproxy_draining", "sluice_native_shares_total", "sluice_bandwidth_users",
			"sluice_policies_received_total", "sluice_redis_lost", "sluice_redis_lost_shards", "sluice_redis_losses_total",
			"sluice_limits_read_errors_total", "sluice_users", "sluice_instances", "sluice_clock_offset_seconds",
			"sluice_limits_info", "sluice_limits_bytes", "sluice_unreadable_requests_total"); err != nil {
			t.Error(err)
		}
		if problems, err := testutil.GatherAndLint(r.registry); err != nil || len(problems) > 0 {
			t.Errorf("GatherAndLint() = %v, %v, want no problem", problems, err)
		}
	})
}
