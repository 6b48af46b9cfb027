package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-qos/sluice/internal/testkit"
)

var shellBlock = regexp.MustCompile("(?s)```sh\n(.*?)```")

// The commands of docs/runbook.md work, on a cluster that has nothing wrong. Those that ask systemd and
// other parts of a machine are not given here.
func TestRunbookCommands(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/runbook.md")
	testkit.Must(t, err)
	elsewhere := []string{"systemctl", "journalctl", "ls", "ss", "date", "chronyc", "export"}
	_, redis := testkit.Redis(t)
	u := startUp(t, "--listen", testkit.FreeAddr(t), "--redis", redis)
	u.awaitReady(t)
	// Where requests cost nothing there is no list by cost. The change is taken up while commands are tried.
	costly := strings.Replace(goodLimits, "tiers:\n  free:\n", "costs: {tokens: {estimate: {default: 10}}}\ntiers:\n  free:\n    costs: {tokens: {day: 1000}}\n", 1)
	testkit.Must(t, os.WriteFile(u.limits, []byte(costly), 0o600))
	// curl takes an answer that is an error for one, too.
	home := t.TempDir()
	testkit.Must(t, os.WriteFile(filepath.Join(home, ".curlrc"), []byte("fail\n"), 0o600))
	env := append(os.Environ(), "HOME="+home, "POLYGEN="+u.admin, "AGENT="+u.admin, "REDIS="+redis, "GORACE=atexit_sleep_ms=0")
	// Nothing here may write where a machine has its settings.
	settings := strings.NewReplacer("/etc/sluice/limits.yaml", u.limits, "/etc/sluice/haproxy", filepath.Join(t.TempDir(), "haproxy"))
	given := map[string]bool{}
	for _, block := range shellBlock.FindAllStringSubmatch(string(text), -1) {
		for line := range strings.Lines(block[1]) {
			line = strings.TrimSpace(line)
			program, _, _ := strings.Cut(line, " ")
			if given[line] || slices.Contains(elsewhere, program) {
				continue
			}
			given[line] = true
			// Of a machine that stands still for a moment /-/ready tells the truth.
			testkit.Eventually(t, line, func() error {
				cmd := exec.Command("bash", "-euo", "pipefail", "-c", settings.Replace(line))
				cmd.Env = env
				out, err := cmd.CombinedOutput()
				if err == nil && strings.HasPrefix(string(out), "ERR ") { // of which redis-cli's exit code tells nothing
					err = errors.New("Redis refuses it")
				}
				if err != nil {
					return fmt.Errorf("%w\n%s", err, out)
				}
				return nil
			})
		}
	}
	if len(given) < 15 {
		t.Errorf("%d commands were given, want those of the document", len(given))
	}
}
