package integration

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sluice-qos/sluice/internal/proctest"
	"github.com/sluice-qos/sluice/test/cluster"
)

// A cluster works with the users of deploy/redis/users.acl: agents learn the limits, lease
// from each other, and hear what polygen decides; what is done by hand is kept.
func TestRedisUsers(t *testing.T) {
	t.Parallel()
	_, redis := proctest.RedisWithUsers(t)
	as := func(user string) []string { return []string{"--redis-user", user, "--redis-password", user} }
	c := cluster.Start(t, cluster.Options{
		Instances: 2, Redis: redis, SPOAArgs: as("sluice-agent"), PolygenArgs: as("sluice-polygen"),
		Limits: "version: 1\ndefault_tier: free\ntiers: {free: {requests: {GET: {hour: 10}}, concurrent: 5}}\n",
	})
	proctest.AwaitHour()
	admitted, user := 0, "alice"
	for i := range 40 {
		if res, _ := get(t, c.Instances[i%2].Address, user); res.StatusCode == 200 {
			admitted++
		}
	}
	if admitted != 10 {
		t.Errorf("two instances admit %d of 40 requests, want 10", admitted)
	}
	proctest.Eventually(t, "each instance hears of the throttle", func() error {
		for _, in := range c.Instances {
			if in.Metric(t, `sluice_policies_received_total{kind="throttle"}`) == 0 {
				return fmt.Errorf("%s has heard of none", in.Name)
			}
		}
		return nil
	})
	told(t, c.Polygens[0], "PUT", "/api/v1/overrides/bob", `{"for":"1m","reason":"test","limits":{"concurrent":50}}`)
	for _, p := range []*proctest.Process{c.Polygens[0].Process, c.Instances[0].Agent, c.Instances[1].Agent} {
		if out := p.Output(); strings.Contains(out, "NOPERM") || strings.Contains(out, "permission") {
			t.Errorf("%s may not do something: %s", p.Name, out)
		}
	}
}
