package integration

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/internal/testkit/cluster"
	"github.com/sluice-qos/sluice/test/scene"
)

// A limit is raised by hand on all instances, whichever polygen is asked, stays raised when all polygens and Redis start again, and
// is as before when the override is removed. Redis has TLS and the users of deploy/redis/users.acl: nothing is denied to them.
func TestOverrideByHand(t *testing.T) {
	t.Parallel()
	secure, addr := scene.NewSecured(t), testkit.FreeAddr(t)
	redis := testkit.StartRedisNode(t, append(secure.Args, "--tls-port", testkit.PortOf(addr))...)
	o := secure.Options("version: 1\ndefault_tier: free\ntiers: {free: {requests: {GET: 5}}}\n", []string{addr})
	o.Polygens = 2
	s := scene.Start(t, o)
	admitted := func(when string, fits func(n int) bool) {
		t.Helper()
		testkit.Eventually(t, when, func() error {
			n := 0 // of a second's 40 requests, at most
			for _, row := range s.Offer(t, "even", 40, 1500*time.Millisecond, scene.GETs("alice")).Ratios(40, 0).Rows {
				n = max(n, row.Admitted)
			}
			if !fits(n) {
				return fmt.Errorf("%d were admitted in a second", n)
			}
			return nil
		})
	}
	limited, raised := func(n int) bool { return n <= 5 }, func(n int) bool { return n >= 30 }
	admitted("5 a second", limited)
	leader, standby := s.Polygens[0], s.Polygens[1]
	scene.Told(t, standby, "PUT", "/api/v1/overrides/alice", `{"for":"10m","reason":"a test","limits":{"requests":{"GET":50}}}`)
	admitted("50 a second by hand", raised)
	leader.Stop()
	admitted("50 a second by the other polygen", raised)
	s.Polygens[0] = s.StartPolygen(t, 0)
	redis.Kill()
	redis.Restart(t)
	awaitSteady(t, s)
	admitted("50 a second by a Redis that lost all", raised)
	for _, p := range s.Polygens {
		testkit.Eventually(t, "each polygen lists it", func() error {
			if list, err := cluster.Get(p.Admin, "/api/v1/overrides"); err != nil || !strings.Contains(list, `"reason":"a test"`) {
				return fmt.Errorf("%s, %w", list, err)
			}
			return nil
		})
	}
	scene.Told(t, s.Polygens[0], "DELETE", "/api/v1/overrides/alice", "")
	admitted("5 a second again", limited)
	for name, p := range s.Processes() {
		if out := p.Output(); strings.Contains(out, "NOPERM") || strings.Contains(out, "permission") {
			t.Errorf("%s may not do something: %s", name, out)
		}
	}
}
