package prometheus

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/sluice-qos/sluice/internal/testkit"
)

// The jobs in comments are good as well, once their files are there.
func TestPromtoolAcceptsTheJobsInComments(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Fatal("promtool is missing: run scripts/setup promtool, or install Debian's package prometheus")
	}
	example, err := os.ReadFile("prometheus.yml")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "sluice.token"), []byte("0123456789abcdef"), 0o600); err != nil {
		t.Fatal(err)
	}
	ca := testkit.NewAuthority(t, dir)
	jobs := "scrape_configs:\n"
	for _, line := range regexp.MustCompile(`(?m)^  # (- |  ).*\n`).FindAllString(string(example), -1) {
		jobs += strings.Replace(line, "# ", "", 1)
	}
	jobs = strings.NewReplacer("/etc/prometheus/sluice.token", dir+"/sluice.token", "/etc/prometheus/sluice-ca.pem", ca.File).Replace(jobs)
	for _, want := range []string{"job_name: sluice\n", "job_name: sluice-spoa\n", "credentials_file: " + dir, "ca_file: " + dir} {
		if !strings.Contains(jobs, want) {
			t.Errorf("the jobs in comments have no %q:\n%s", want, jobs)
		}
	}
	file := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(file, []byte(jobs), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(promtool, "check", "config", file).CombinedOutput(); err != nil {
		t.Errorf("promtool: %v\n%s\n%s", err, out, jobs)
	}
}
