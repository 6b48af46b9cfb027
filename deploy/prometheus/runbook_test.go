package prometheus

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-qos/sluice/docs"
)

const runbookURL = "https://github.com/sluice-qos/sluice/blob/main/docs/runbook.md#"

// chapters are those of docs/runbook.md by their headings.
func chapters(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile("../../docs/runbook.md")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, chapter := range strings.Split(string(text), "\n## ")[1:] {
		heading, rest, _ := strings.Cut(chapter, "\n")
		all[heading] = rest
	}
	return all
}

// Each alert leads to its chapter, which says what it means, what to look at, what to do, and how to
// tell that it is over. No chapter is of an alert that there is not.
func TestRunbookHasEachAlert(t *testing.T) {
	left := chapters(t)
	for _, r := range rules(t) {
		if got, want := r.Annotations["runbook_url"], runbookURL+strings.ToLower(r.Alert); got != want {
			t.Errorf("%s: runbook_url = %q, want %q", r.Alert, got, want)
		}
		at := 0
		for _, part := range []string{"**Means.** ", "**Look** ", "**Do.** ", "**Over** "} {
			i := strings.Index(left[r.Alert][at:], "\n"+part)
			if i < 0 {
				t.Errorf("%s: no paragraph that begins with %q, behind the ones before", r.Alert, part)
				break
			}
			at += i
		}
		delete(left, r.Alert)
	}
	for heading := range left {
		t.Errorf("there is no alert %s", heading)
	}
}

var (
	promql = regexp.MustCompile("(?s)```promql\n(.*?)```")
	series = regexp.MustCompile(`\bsluice_[a-z_]+`)
)

// Prometheus understands each expression of the runbook, a line each, and Sluice has each metric.
func TestRunbookExpressions(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Fatal("promtool is missing: run scripts/setup promtool, or install Debian's package prometheus")
	}
	known := docs.Series()
	file, n := "groups:\n  - name: runbook\n    rules:\n", 0
	for heading, text := range chapters(t) {
		for _, name := range series.FindAllString(text, -1) {
			if !slices.Contains(known, name) && !slices.Contains(known, name+"_bucket") && !strings.HasSuffix(name, "_") {
				t.Errorf("%s: %s is not a metric of Sluice", heading, name)
			}
		}
		for _, block := range promql.FindAllStringSubmatch(text, -1) {
			for line := range strings.Lines(block[1]) {
				n++
				file += fmt.Sprintf("      - record: runbook:%d\n        expr: >-\n          %s", n, line)
			}
		}
	}
	if n == 0 {
		t.Fatal("the runbook has no expressions")
	}
	path := filepath.Join(t.TempDir(), "runbook.yml")
	if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(promtool, "check", "rules", path).CombinedOutput(); err != nil {
		t.Errorf("promtool: %v\n%s\n%s", err, out, file)
	}
}
