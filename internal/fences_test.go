// Package internal_test holds the fences between the commands, over everything that they
// link: an import that a linter sees may come in by another package, too.
package internal_test

import (
	"os/exec"
	"slices"
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
			[]string{"internal/polygen", "internal/limitfile", "internal/limitwatch", "internal/up", "github.com/alicebob/miniredis/v2"}},
		{"polygen does not know the agent, and does not talk to HAProxy", "cmd/polygen",
			[]string{"internal/spoa", "internal/peers", "internal/spop", "internal/runtimeapi", "haproxy", "github.com/negasus/haproxy-spoe-go", "github.com/alicebob/miniredis/v2"}},
		{"the API's types know no daemon", "internal/api",
			[]string{"internal/admin", "internal/bus", "internal/cli", "internal/polygen", "internal/spoa", "github.com/prometheus/client_golang", "github.com/redis/go-redis/v9"}},
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

// dependencies are all packages that one links, those of this module without its name.
func dependencies(t *testing.T, pkg string) []string {
	t.Helper()
	out, err := exec.Command("go", "list", "-deps", module+pkg).Output()
	if err != nil {
		t.Fatal(err)
	}
	all := strings.Fields(strings.ReplaceAll(string(out), module, ""))
	if !slices.Contains(all, pkg) {
		t.Fatalf("go list -deps %s = %q, want it to end with itself", pkg, all)
	}
	return all
}
