package metricsdoc

import (
	"flag"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-qos/sluice/internal/admin"
	"github.com/sluice-qos/sluice/internal/cli"
	"github.com/sluice-qos/sluice/internal/metriclist"
)

var update = flag.Bool("update", false, "write docs/metrics.md")

const document = "../../docs/metrics.md"

func TestDocumentIsCurrent(t *testing.T) {
	got, err := Document()
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(document, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("docs/metrics.md is not current; run go generate ./internal/metricsdoc (-file +code):\n%s", diff)
	}
}

// What the registries of a spoa and of a polygen serve, as the commands make them,
// suits Prometheus.
func TestPromtoolAcceptsTheMetrics(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Fatal("promtool is missing: run scripts/setup promtool, or install Debian's package prometheus")
	}
	for _, tt := range []struct {
		name string
		daemon
	}{{"spoa", registerAgent}, {"polygen", registerGenerator}} {
		t.Run(tt.name, func(t *testing.T) {
			r := metriclist.New(cli.NewRegistry())
			if err := tt.register(r); err != nil {
				t.Fatal(err)
			}
			if err := r.GiveValues(); err != nil {
				t.Fatal(err)
			}
			served := httptest.NewRecorder()
			admin.Handler(admin.Options{Gatherer: r}).ServeHTTP(served, httptest.NewRequest("GET", "http://localhost/metrics", nil))
			text := served.Body.String()
			if served.Code != 200 || !strings.Contains(text, "sluice_build_info{") {
				t.Fatalf("GET /metrics = %d, want sluice_build_info:\n%s", served.Code, text)
			}
			check := exec.Command(promtool, "check", "metrics")
			check.Stdin = strings.NewReader(text)
			if out, err := check.CombinedOutput(); err != nil || len(out) > 0 {
				t.Errorf("promtool check metrics: %v\n%s", err, out)
			}
		})
	}
}
