// Package internal_test holds the fences between the commands, over everything that they
// link: an import that a linter sees may come in by another package, too.
package internal_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/sluice-qos/sluice/"

func TestFences(t *testing.T) {
	for _, tt := range []struct {
		name, pkg string
		without   []string // packages that it does not link, nor any below them
	}{
		{"the agent does not know polygen", "cmd/spoa",
			[]string{"internal/polygen", "cmd/sluice", "github.com/alicebob/miniredis/v2"}},
		{"polygen does not know the agent, and does not talk to HAProxy", "cmd/polygen",
			[]string{"internal/agent", "haproxy", "github.com/negasus/haproxy-spoe-go", "github.com/alicebob/miniredis/v2"}},
		{"background jobs do without Redis", "pkg/jobs",
			[]string{"internal/redisbus", "github.com/redis/go-redis/v9"}},
		{"a worker that follows polygen links neither daemon", "pkg/jobs/redislimits",
			[]string{"internal/polygen", "internal/agent", "internal/daemon/flags", "github.com/alicebob/miniredis/v2"}},
		{"the API's types know no daemon", "internal/api",
			[]string{"internal/polygen", "internal/redisbus", "internal/daemon", "internal/agent", "github.com/prometheus/client_golang", "github.com/redis/go-redis/v9"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			linked := dependencies(t, tt.pkg)
			for _, forbidden := range tt.without {
				if i := slices.IndexFunc(linked, func(pkg string) bool { return pkg == forbidden || strings.HasPrefix(pkg, forbidden+"/") }); i >= 0 {
					t.Errorf("%s links %s, want nothing of %s", tt.pkg, linked[i], forbidden)
				}
			}
		})
	}
}

// What decides about requests links neither YAML nor anything else that is not of the standard
// library or its own.
func TestCores(t *testing.T) {
	cores := []string{"pkg/limits", "pkg/ratelimit", "pkg/concurrency", "pkg/bandwidth", "pkg/cost", "pkg/credit", "pkg/quota"}
	allowed := append(slices.Clone(cores), "pkg/internal/agenda", "pkg/internal/changes", "pkg/internal/reports", "pkg/cause")
	for _, core := range cores {
		for _, pkg := range dependencies(t, core) {
			first, _, _ := strings.Cut(pkg, "/") // of the standard library's there is none with a dot
			if (first == "pkg" || strings.Contains(first, ".")) && !slices.Contains(allowed, pkg) {
				t.Errorf("%s links %s, want the standard library and %q alone", core, pkg, allowed)
			}
		}
	}
}

// dependencies are all packages that one links, those of this module without its name.
func dependencies(t *testing.T, pkg string) []string {
	t.Helper()
	out, err := exec.Command("go", "list", "-deps", "-f", "{{.ImportPath}} {{.Dir}}", module+pkg).Output()
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for line := range strings.Lines(string(out)) {
		path, folder, _ := strings.Cut(strings.TrimSpace(line), " ")
		short, ours := strings.CutPrefix(path, module)
		if ours {
			watch(t, folder)
		}
		all = append(all, short)
	}
	if !slices.Contains(all, pkg) {
		t.Fatalf("go list -deps %s = %q, want it to end with itself", pkg, all)
	}
	return all
}

// watch looks at the files of a package, so that go test does not repeat a result of before
// one of them changed: it cannot see what go list reads.
func watch(t *testing.T, folder string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*.go"))
	for _, f := range files {
		if _, statErr := os.Stat(f); statErr != nil {
			err = statErr
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Random tests of all packages draw from a seed that make gives them, so that make test has the
// same result for the same code.
func TestMakeFixesTheSeedOfRandomTests(t *testing.T) {
	makefile, err := os.ReadFile("../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	show := exec.Command("make", "--no-print-directory", "-f", "-", "show-seed")
	show.Stdin = strings.NewReader(string(makefile) + "\nshow-seed: ; @echo $$RAPID_SEED\n")
	show.Env = []string{"PATH=" + os.Getenv("PATH")} // without what a make around this test gives it
	seed, err := show.CombinedOutput()
	if n, notNumber := strconv.ParseUint(strings.TrimSpace(string(seed)), 10, 64); err != nil || notNumber != nil || n == 0 {
		t.Errorf("RAPID_SEED in make's commands = %q, %v; want a number above 0, for 0 stands for a random one", seed, err)
	}
}
