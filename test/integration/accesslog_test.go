package integration

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-qos/sluice/internal/proctest"
	"github.com/sluice-qos/sluice/test/cluster"
)

// The access log says of each request what came of it and what is left, whether HAProxy or
// the agent decided.
func TestAccessLogSaysWhatIsLeft(t *testing.T) {
	t.Parallel()
	proctest.AwaitHour()
	c := cluster.Start(t, cluster.Options{AccessLog: "json", Limits: `
version: 1
default_tier: free
tiers:
  free: {requests: {GET: {hour: 3}}}
  slots: {concurrent: 2}
exempt: {users: [probe]}
users: {carol: slots}
`})
	in := c.Instances[0]
	var want []string
	send := func(user string, status int, line string) {
		t.Helper()
		if res, _ := get(t, in.Address, user); res.StatusCode != status {
			t.Fatalf("%s got %d, want %d:\n%s", user, res.StatusCode, status, in.HAProxy.Output())
		}
		want = append(want, "instance-1 GET / "+line)
	}
	for left := 2; left >= 0; left-- {
		send("alice", 200, fmt.Sprintf("200 allowed - alice GET/hour 3 %d retry null", left))
	}
	proctest.Eventually(t, "HAProxy is told to refuse by itself", func() error {
		send("alice", 429, "429 refused request-rate alice GET/hour 3 0 retry")
		if in.Metric(t, `sluice_native_throttles_total{action="throttle"}`) == 0 {
			return fmt.Errorf("not yet")
		}
		return nil
	})
	for range 3 { // refused by HAProxy, or by the agent before HAProxy has heard of the throttle
		send("alice", 429, "429 refused request-rate alice GET/hour 3 0 retry")
	}
	send("carol", 200, "200 allowed - carol concurrent-requests 2 1 retry null")
	send("probe", 200, "200 exempt - probe GET null null retry null")
	res, err := http.Get("http://" + in.Address + "/healthz")
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	send("bob", 200, "200 allowed - bob GET/hour 3 2 retry null")

	var got []string
	proctest.Eventually(t, "the last line", func() error {
		got = nil
		for text := range strings.Lines(in.HAProxy.Output()) {
			if !strings.HasPrefix(text, "{") {
				continue // HAProxy tells of its servers as well
			}
			var l struct {
				Instance, Method, Path, Verdict, Reason, User, Class string
				Status                                               int
				Limit, Remaining, Retry                              *int
			}
			if err := json.Unmarshal([]byte(text), &l); err != nil {
				return fmt.Errorf("line %q: %w", text, err)
			}
			number := func(n *int) string {
				if n == nil {
					return "null"
				}
				return fmt.Sprint(*n)
			}
			line := fmt.Sprintf("%s %s %s %d %s %s %s %s %s %s retry", l.Instance, l.Method, l.Path, l.Status, l.Verdict, l.Reason, l.User, l.Class,
				number(l.Limit), number(l.Remaining))
			if l.Verdict != "refused" {
				line += " " + number(l.Retry)
			} else if l.Retry == nil || *l.Retry < 1 || *l.Retry > 3600 {
				line += fmt.Sprintf(" %s, want 1 to 3600", number(l.Retry))
			}
			got = append(got, line)
		}
		if len(got) < len(want) {
			return fmt.Errorf("%d lines of %d", len(got), len(want))
		}
		return nil
	})
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("access log (-want +got):\n%s", diff)
	}
}
