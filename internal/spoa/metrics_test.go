package spoa

import (
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sluice-qos/sluice/internal/bus"
	"github.com/sluice-qos/sluice/internal/policy"
)

// The names, labels and help that operators build on, and what they count: a
// history and what it leaves.
func TestMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil).run()
		r.metrics.limitsInForce("old")
		r.metrics.limitsInForce("1f2e3d4c5b6a")

		for range 5 { // 4 are allowed
			r.verdict("alice", "GET")
		}
		for range 3 { // 2 are allowed: with the four, the limit of all classes
			r.verdict("alice", "PUT")
		}
		r.verdict("", "GET")
		r.verdict("staff", "GET")

		r.joined(bus.Registry{Instances: []string{"a", "b", "c"}})
		r.pool.set(2*ms, nil)
		r.verdict("bob", "GET") // waits
		r.pool.set(time.Minute, nil)
		r.verdict("carol", "GET") // waits in vain
		wait(lostAfter)           // which loses Redis
		r.apply([]policy.Message{
			policy.Throttle{Key: alice, Second: time.Now().Unix(), Limit: 4},
			policy.Hot{Key: alice, Until: time.Now().Add(time.Second), Instances: 3},
			policy.Limits{Version: "2"},
		})
		r.stop()

		golden, err := os.Open("testdata/metrics.golden")
		if err != nil {
			t.Fatal(err)
		}
		defer golden.Close()
		if err := testutil.GatherAndCompare(r.registry, golden,
			"sluice_requests_total", "sluice_requests_malformed_total", "sluice_requests_uncounted_total",
			"sluice_verdict_wait_seconds", "sluice_verdict_timeouts_total", "sluice_native_throttles_total",
			"sluice_policies_received_total", "sluice_redis_lost", "sluice_redis_losses_total",
			"sluice_limits_read_errors_total", "sluice_users", "sluice_instances", "sluice_clock_offset_seconds",
			"sluice_limits_info"); err != nil {
			t.Error(err)
		}
		if problems, err := testutil.GatherAndLint(r.registry); err != nil || len(problems) > 0 {
			t.Errorf("GatherAndLint() = %v, %v, want no problem", problems, err)
		}
	})
}
