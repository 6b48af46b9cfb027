package integration

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/internal/testkit/cluster"
	"github.com/sluice-qos/sluice/test/scene"
)

// A limit of 0 refuses every request and says so, by HAProxy alone after the first; for a user who runs by credit from an override on,
// and no longer when that is removed.
func TestLimitOfZero(t *testing.T) {
	t.Parallel()
	s := scene.Start(t, cluster.Options{Instances: 2, Limits: `
version: 1
default_tier: free
tiers: {free: {requests: {GET: 500}}, shut: {requests: 0}, reader: {requests: {PUT: 0, GET: 500}}}
users: {closed: shut, carol: reader}
`})
	denied := func(method, address, user, limit string) error {
		res, body := scene.Do(t, method, address, user)
		h := res.Header
		if res.StatusCode != http.StatusTooManyRequests || h.Get("Sluice-Reason") != "denied" || h.Get("Retry-After") != "60" || !strings.Contains(body, "the limit "+limit+" is 0") {
			return fmt.Errorf("%s of %s: %d %v %q, want 429, denied by %s", method, user, res.StatusCode, h, body, limit)
		}
		return nil
	}
	refused := func(in *cluster.Instance) float64 {
		return in.Metric(t, `sluice_requests_total{limit="*",verdict="refused"}`)
	}
	for _, in := range s.Instances {
		testkit.Eventually(t, "HAProxy refuses by itself", func() error {
			before := refused(in)
			if err := denied("GET", in.Address, "closed", "*"); err != nil {
				t.Error(err)
			}
			if refused(in) > before {
				return fmt.Errorf("the agent was asked")
			}
			return nil
		})
		if err := denied("PUT", in.Address, "carol", "PUT"); err != nil {
			t.Error(err)
		}
		if res, _ := scene.Get(t, in.Address, "carol"); res.StatusCode != http.StatusOK {
			t.Errorf("a GET of carol: %d, want 200", res.StatusCode)
		}
	}
	for range 50 { // alice runs by credit
		s.Await(t, "alice is admitted", "alice", http.StatusOK)
		time.Sleep(20 * time.Millisecond)
	}
	scene.Told(t, s.Polygens[0], "PUT", "/api/v1/overrides/alice", `{"for":"10m","reason":"a test","limits":{"requests":0}}`)
	for _, in := range s.Instances {
		testkit.Eventually(t, "alice is denied", func() error { return denied("GET", in.Address, "alice", "*") })
	}
	// Credit of before ends with its second.
	time.Sleep(time.Second)
	for until := time.Now().Add(7 * time.Second); time.Now().Before(until); time.Sleep(50 * time.Millisecond) {
		for _, in := range s.Instances {
			if err := denied("GET", in.Address, "alice", "*"); err != nil {
				t.Fatal(err)
			}
		}
	}
	for path, want := range map[string]string{"/api/v1/users/alice": `"state":"denied"`, "/api/v1/users?sort=refused": `"state":"denied"`} {
		if got, err := cluster.Get(s.Polygens[0].Admin, path); err != nil || !strings.Contains(strings.ReplaceAll(got, " ", ""), want) {
			t.Errorf("%s = %s, %v, want %s", path, got, err, want)
		}
	}
	scene.Told(t, s.Polygens[0], "DELETE", "/api/v1/overrides/alice", "")
	for _, in := range s.Instances {
		testkit.Eventually(t, "alice is admitted again", func() error {
			if res, _ := scene.Get(t, in.Address, "alice"); res.StatusCode != http.StatusOK {
				return fmt.Errorf("%d", res.StatusCode)
			}
			return nil
		})
	}
}
