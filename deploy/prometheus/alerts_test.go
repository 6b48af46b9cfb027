// Package prometheus tests the alert rules of this folder.
package prometheus

import (
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"

	"github.com/sluice-qos/sluice/docs"
)

func TestPromtool(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Fatal("promtool is missing: run scripts/setup promtool, or install Debian's package prometheus")
	}
	for _, args := range [][]string{
		{"check", "rules", "alerts.yml"},
		{"test", "rules", "alerts_test.yml"},
		{"check", "config", "prometheus.yml"},
	} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			if out, err := exec.Command(promtool, args...).CombinedOutput(); err != nil {
				t.Errorf("promtool: %v\n%s", err, out)
			}
		})
	}
}

type rule struct {
	Alert, Expr, For    string
	Labels, Annotations map[string]string
}

func rules(t *testing.T) []rule {
	t.Helper()
	data, err := os.ReadFile("alerts.yml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct{ Groups []struct{ Rules []rule } }
	if err := yaml.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	var all []rule
	for _, g := range file.Groups {
		all = append(all, g.Rules...)
	}
	if len(all) == 0 {
		t.Fatal("alerts.yml has no rules")
	}
	return all
}

// Each alert says how urgent it is, what is the matter and what to do, waits before it
// wakes anybody, and has a case in which it fires.
func TestAlertsAreComplete(t *testing.T) {
	tests, err := os.ReadFile("alerts_test.yml")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rules(t) {
		t.Run(r.Alert, func(t *testing.T) {
			if r.For == "" {
				t.Error("for = none, want some")
			}
			if s := r.Labels["severity"]; s != "critical" && s != "warning" {
				t.Errorf("severity = %q, want critical or warning", s)
			}
			if r.Annotations["summary"] == "" {
				t.Errorf("annotations = %q, want a summary", r.Annotations)
			}
			if !strings.Contains(string(tests), `ALERTS{alertname="`+r.Alert+`", alertstate="firing", severity="`) {
				t.Error("alerts_test.yml has no case in which it fires")
			}
		})
	}
}

var name = regexp.MustCompile(`\b(sluice_\w+)`)

// Every metric that a rule, or its text, names is one that Sluice has.
func TestAlertsNameMetricsThatExist(t *testing.T) {
	known := docs.Series()
	for _, r := range rules(t) {
		for _, metric := range name.FindAllString(r.Expr, -1) {
			if !slices.Contains(known, metric) {
				t.Errorf("%s: %s is not a series of Sluice", r.Alert, metric)
			}
		}
		for _, metric := range name.FindAllString(r.Annotations["summary"], -1) {
			if !slices.Contains(known, metric) && !slices.Contains(known, metric+"_bucket") {
				t.Errorf("%s: its text names %s, which is not a metric of Sluice", r.Alert, metric)
			}
		}
	}
}
