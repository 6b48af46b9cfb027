package haproxy

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/sluice-qos/sluice/internal/testkit"
)

// The alert SluiceHAProxyTableNearlyFull and its runbook go by these names, and refusals are counted by
// the last one.
func TestMetricsSayHowFullTheTablesAre(t *testing.T) {
	metrics := testkit.FreeAddr(t)
	r := newRig(t, setup{Config: Config{Env: []string{"SLUICE_METRICS=" + metrics}}})
	r.get(t)
	r.refuseWith(func(question) *verdict { return &verdict{"request-rate", "GET", 1, 1, 0} })
	r.get(t)
	testkit.Eventually(t, "HAProxy's metrics have its tables", func() error {
		status, body, err := fetch("http://" + metrics + "/metrics")
		body = strings.ReplaceAll(body, `"binary"`, `"string"`) // what active is with some versions
		if err != nil || status != http.StatusOK {
			return fmt.Errorf("GET /metrics = %d, %w", status, err)
		}
		for _, want := range []string{
			`haproxy_sticktable_size{name="sluice/throttle",type="string"} 204800`,
			`haproxy_sticktable_used{name="sluice/throttle",type="string"} 0`,
			`haproxy_sticktable_size{name="sluice/block",type="string"} 204800`,
			`haproxy_sticktable_used{name="sluice/active",type="string"} 1`, // alice
			`haproxy_sticktable_size{name="sluice_share",type="string"} 204800`,
			`haproxy_sticktable_size{name="sluice_credit",type="string"} 204800`,
			`haproxy_sticktable_size{name="sluice_seconds",type="string"} 1048576`,
			`haproxy_backend_requests_denied_total{proxy="asked"} 1`, // the refused one
		} {
			if !strings.Contains(body, want+"\n") {
				return fmt.Errorf("no %s in\n%s", want, linesWith(body, "haproxy_"))
			}
		}
		return nil
	})
	if status, body, err := fetch("http://" + metrics + "/"); status != http.StatusNotFound || body != "It is at /metrics.\n" {
		t.Errorf("GET / = %d %q, %v, want 404 and the way", status, body, err)
	}
	if out := r.proc.Output(); out != "" {
		t.Errorf("HAProxy said %q, want nothing", out)
	}
}

func fetch(url string) (status int, body string, err error) {
	res, err := http.Get(url)
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	return res.StatusCode, string(text), err
}

func linesWith(text, prefix string) string {
	var found strings.Builder
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, prefix) {
			found.WriteString(line)
		}
	}
	return found.String()
}
