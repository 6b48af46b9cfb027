package integration

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/sluice-qos/sluice/internal/proctest"
	"github.com/sluice-qos/sluice/test/cluster"
)

// A budget over all endpoints is named so on each answer, allowed or refused, wherever it was spent; what one of them does not cost
// can be used at another.
func TestBudgetOverAllEndpoints(t *testing.T) {
	t.Parallel()
	proctest.AwaitHour()
	c := cluster.Start(t, cluster.Options{
		Limits: `
version: 1
default_tier: free
endpoints: [uploads]
costs:
  credits: {estimate: {header: X-Estimate, default: 1}, actual: {header: X-Cost}}
tiers:
  free:
    costs: {credits: {hour: 100}}
    endpoints: {"*": {costs: {credits: {hour: 130}}}}
`,
		Rules: []string{"http-request set-var(txn.sluice_endpoint) url_param(at)"},
		EnvOf: func(string) []string { return []string{"SLUICE_RATELIMIT=all"} },
	})
	ask := func(at string, estimate, costs int) string {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprintf("http://%s/cost/%d?at=%s", c.Addresses()[0], costs, at), nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-User", "alice")
		req.Header.Set("X-Estimate", fmt.Sprint(estimate))
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, res.Body)
		res.Body.Close()
		// When the hour ends is of no interest.
		left, _, _ := strings.Cut(res.Header.Get("RateLimit"), ";t=")
		return fmt.Sprintln(res.StatusCode, res.Header.Get("Sluice-Reason"), left, res.Header.Get("RateLimit-Policy"))
	}
	for _, step := range []struct {
		at              string
		estimate, costs int
		want            string
	}{
		// What is nearest is said: 80 of an endpoint's 100 are left, and 110 of 130 in all.
		{"uploads", 20, 20, `200  "credits/hour";r=80 "credits/hour";q=100;w=3600;qu="credits"`},
		// Neither admits another one like this, and that over all is named first.
		{"", 90, 90, `200  "@*/credits/hour";r=20 "@*/credits/hour";q=130;w=3600;qu="credits"`},
		{"uploads", 21, 21, `429 cost "@*/credits/hour";r=0 "@*/credits/hour";q=130;w=3600;qu="credits"`},
		{"", 11, 11, `429 cost "credits/hour";r=0 "credits/hour";q=100;w=3600;qu="credits"`},
		{"uploads", 20, 14, `200  "@*/credits/hour";r=0 "@*/credits/hour";q=130;w=3600;qu="credits"`},
	} {
		if got := ask(step.at, step.estimate, step.costs); got != step.want+"\n" {
			t.Fatalf("at %q, %d: %s, want %s", step.at, step.estimate, got, step.want)
		}
	}
	// 124 are spent. What has come back at one endpoint is there for all.
	proctest.Eventually(t, "what a request did not cost is left elsewhere", func() error {
		if got, want := ask("", 6, 6), `200  "@*/credits/hour";r=0 "@*/credits/hour";q=130;w=3600;qu="credits"`+"\n"; got != want {
			return fmt.Errorf("%s, want %s", got, want)
		}
		return nil
	})
}
