package haproxy

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-qos/sluice/internal/testkit"
)

// A HAProxy with chroot finds the agent's socket of costs inside it, as it finds that of questions: SLUICE_COSTS is the path in there.
func TestSettledWithChroot(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("chroot takes root")
	}
	t.Parallel()
	jail, err := os.MkdirTemp("", "jail") // short, as newRig's
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(jail) })
	inside := func(path string) string {
		if err := os.MkdirAll(jail+filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		return jail + path
	}
	outside := &costAgent{path: inside("/run/costs.sock")}
	outside.listen(t)
	c := newRig(t, setup{
		Config:  Config{Env: []string{"SLUICE_COSTS=unix@/run/costs.sock"}, Identify: "header:X-User", Costs: units},
		noAgent: true, // it is not to listen where HAProxy would find it without chroot
		serve: func(w http.ResponseWriter, q *http.Request) {
			// Bob's requests, which may pass while HAProxy takes the agent to be away, cost nothing.
			if q.Header.Get("X-User") == "alice" {
				w.Header().Set("X-Cost", "40")
			}
		},
		edit: func(cfg string) string {
			return strings.Replace(cfg, "\nglobal\n", "\nglobal\n    chroot "+jail+"\n", 1)
		},
	})
	c.costs = outside
	c.charge("100")
	c.listen(t, inside(filepath.Join(c.dir, "spoa.sock")))
	testkit.Eventually(t, "the agent is asked", func() error {
		c.get(t, "X-User: bob")
		if len(c.takeHeard(t)) == 0 {
			return os.ErrNotExist
		}
		return nil
	})
	c.get(t, "X-User: alice")
	c.wantSettled(t, map[string]int64{"alice exports 1764003600": -60})
}
