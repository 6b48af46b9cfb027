package integration

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/internal/proctest"
	"github.com/sluice-qos/sluice/test/cluster"
)

// The band of these tests: no second above the limit, and at least 97 % of it
// admitted. `make bench` measures how close it comes at higher rates.

func TestRequestRateOnOneInstance(t *testing.T) {
	t.Parallel()
	for _, limit := range []int{10, 100, 1000} {
		t.Run(fmt.Sprintf("limit %d", limit), func(t *testing.T) {
			t.Parallel()
			c := cluster.Start(t, cluster.Options{Limits: limitFile(limit)})
			r := offer(t, c, "alice", "even", 2*float64(limit)+200, 4*time.Second)
			checkAnswered(t, r)
			checkLimit(t, r, limit, 0.97)
		})
	}
}

func TestRequestRateOverSeveralInstances(t *testing.T) {
	t.Parallel()
	for _, instances := range []int{2, 4} {
		t.Run(fmt.Sprint(instances, " instances"), func(t *testing.T) {
			t.Parallel()
			c := cluster.Start(t, cluster.Options{Instances: instances, Limits: limitFile(100)})
			for _, tt := range []struct{ pattern, user string }{{"even", "alice"}, {"90/10", "bob"}, {"jump", "carol"}} {
				t.Run(strings.ReplaceAll(tt.pattern, "/", " to "), func(t *testing.T) {
					r := offer(t, c, tt.user, tt.pattern, 1500, 4*time.Second)
					checkAnswered(t, r)
					checkLimit(t, r, 100, 0.97)
				})
			}
		})
	}
}

func TestTwoAgentsOfOneNameAreTwo(t *testing.T) {
	t.Parallel()
	c := cluster.Start(t, cluster.Options{Instances: 2, Limits: limitFile(50), OneName: true})
	r := offer(t, c, "alice", "even", 500, 2*time.Second)
	checkAnswered(t, r)
	checkLimit(t, r, 50, 0.97)
}

func TestUserBelowTheLimitIsNeverRefused(t *testing.T) {
	t.Parallel()
	c := cluster.Start(t, cluster.Options{Instances: 2, Limits: limitFile(200)})
	r := offer(t, c, "alice", "90/10", 100, 4*time.Second)
	checkAnswered(t, r)
	if n := len(r.Refused().Results); n > 0 {
		t.Errorf("%d of %d requests refused at half of the limit", n, len(r.Results))
	}
}

func TestSecondUserIsUntouched(t *testing.T) {
	t.Parallel()
	c := cluster.Start(t, cluster.Options{Instances: 2, Limits: limitFile(50)})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 100 {
			for _, user := range []string{"bob", "other"} {
				if res, _ := get(t, c.Instances[0].Address, user); res.StatusCode != http.StatusOK {
					t.Errorf("%s got %d while alice was over her limit", user, res.StatusCode)
				}
			}
			time.Sleep(30 * time.Millisecond)
		}
	}()
	r := offer(t, c, "alice", "even", 1000, 3*time.Second)
	checkLimit(t, r, 50, 0.97)
	<-done
}

func TestRequestsCountAgainstTheirVerbAndAll(t *testing.T) {
	c := cluster.Start(t, cluster.Options{Instances: 2, Limits: `
version: 1
default_tier: free
tiers: {free: {requests: {GET: 40, "*": 60}}}
`})
	reason := func(method string) string { // of the limit that refuses at last
		for {
			if res, _ := do(t, method, c.Instances[0].Address, "alice"); res.StatusCode == http.StatusTooManyRequests {
				policy := res.Header.Get("RateLimit-Policy")
				return policy
			}
		}
	}
	if got := reason("GET"); got != `"GET";q=40;w=1` {
		t.Errorf("GETs alone end at %s, want GET's limit", got)
	}
	if got := reason("PUT"); got != `"*";q=60;w=1` {
		t.Errorf("PUTs alone end at %s, want the limit of all", got)
	}
}

func TestRefusalSaysWhy(t *testing.T) {
	c := cluster.Start(t, cluster.Options{Limits: limitFile(5)})
	in := c.Instances[0]
	refusals := 0
	proctest.Eventually(t, "a native refusal", func() error {
		asked := in.Metric(t, `sluice_requests_total{limit="",verdict="allowed"}`) + in.Metric(t, `sluice_requests_total{limit="GET",verdict="refused"}`)
		res, body := get(t, in.Address, "alice")
		if res.StatusCode == http.StatusOK {
			return fmt.Errorf("admitted")
		}
		refusals++
		want := map[string]string{
			"Retry-After":      "1",
			"Ratelimit-Policy": `"GET";q=5;w=1`,
			"Ratelimit":        `"GET";r=0;t=1`,
			"Sluice-Reason":    "request-rate",
			"Cache-Control":    "no-store",
		}
		for name, value := range want {
			if got := res.Header.Get(name); got != value {
				t.Errorf("refusal %d: %s = %q, want %q", refusals, name, got, value)
			}
		}
		if res.StatusCode != http.StatusTooManyRequests || !strings.Contains(body, "Retry after 1 s") {
			t.Errorf("refusal %d: %d %q, want 429 and when to retry", refusals, res.StatusCode, body)
		}
		now := in.Metric(t, `sluice_requests_total{limit="",verdict="allowed"}`) + in.Metric(t, `sluice_requests_total{limit="GET",verdict="refused"}`)
		if now > asked {
			return fmt.Errorf("the agent was asked")
		}
		return nil // refused, and the agent knows nothing of it
	})
	if served := c.Origin.UserCounts("alice").Served; served == 0 || served%5 != 0 && refusals == 0 {
		t.Errorf("the origin served %d requests", served)
	}
}

func TestRefusedRequestsNeverReachTheOrigin(t *testing.T) {
	t.Parallel()
	c := cluster.Start(t, cluster.Options{Instances: 2, Limits: limitFile(20)})
	r := offerOnce(t, c, "alice", "even", 800, 2*time.Second)
	checkAnswered(t, r)
	if served, admitted := int(c.Origin.UserCounts("alice").Served), len(r.Admitted().Results); served != admitted {
		t.Errorf("the origin served %d requests, %d were admitted", served, admitted)
	}
}

func TestNewLimitsTakeEffectUnderLoad(t *testing.T) {
	t.Parallel()
	c := cluster.Start(t, cluster.Options{Instances: 2, Limits: limitFile(10)})
	inForce := func(want int) {
		t.Helper()
		proctest.Eventually(t, fmt.Sprintf("limit %d in force", want), func() error {
			for {
				res, _ := get(t, c.Instances[1].Address, "probe")
				if res.StatusCode == http.StatusTooManyRequests {
					if got, want := res.Header.Get("RateLimit-Policy"), fmt.Sprintf(`"GET";q=%d;w=1`, want); got != want {
						return fmt.Errorf("%s, want %s", got, want)
					}
					return nil
				}
			}
		})
	}
	c.SetLimits(t, limitFile(20))
	inForce(20)
	checkLimit(t, offer(t, c, "alice", "even", 400, 2*time.Second), 20, 0.97)

	c.SetLimits(t, "version: 1\ntiers: [")
	proctest.Eventually(t, "the broken file is told of", func() error {
		if cluster.Metric(t, c.Polygens[0].Admin, "sluice_limits_valid") != 0 {
			return fmt.Errorf("sluice_limits_valid is not 0")
		}
		return nil
	})
	inForce(20)
	checkLimit(t, offer(t, c, "bob", "even", 400, 2*time.Second), 20, 0.97)
	if _, err := cluster.Get(c.Polygens[0].Admin, "/-/healthy"); err != nil {
		t.Error(err)
	}
	c.SetLimits(t, limitFile(15))
	inForce(15)
}
