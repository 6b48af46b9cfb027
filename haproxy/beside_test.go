package haproxy

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/pkg/limits"
)

// theirCounters are the sticky counters of a frontend of somebody's own: all that HAProxy before 2.8 has.
const theirCounters = "    http-request track-sc0 src table theirs\n    http-request track-sc1 src table theirs\n    http-request track-sc2 src table theirs\n"

// writeBeside is Write for a configuration of somebody's own. Its frontend uses counters 0 to 2 where HAProxy has others for Sluice.
func writeBeside(t testing.TB) func(dir string, c Config) (file string, env []string, err error) {
	return func(dir string, c Config) (file string, env []string, err error) {
		process, theirs := Process{}, testkit.Theirs
		if versionAtLeast(t, 2, 8) {
			process.FirstCounter = 3
			theirs = strings.Replace(theirs, "    acl refused", theirCounters+"    acl refused", 1) + "backend theirs\n    stick-table type ip size 100 store gpc0\n"
		}
		lines, err := c.Beside(dir, process)
		if err != nil {
			return "", nil, err
		}
		if err := os.MkdirAll(filepath.Join(dir, "lua"), 0o755); err != nil {
			return "", nil, err
		}
		lines.Files["theirs.cfg"] = strings.NewReplacer(
			"\ndefaults\n", "\n"+lines.Process+"defaults\n",
			"    use_backend files", lines.Frontend+lines.Choice+"    use_backend files",
		).Replace(theirs)
		for name, text := range lines.Files {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				return "", nil, err
			}
		}
		return filepath.Join(dir, "theirs.cfg"), c.Env, nil
	}
}

// besideAddresses are the lines with everything that refuses by itself.
var besideAddresses = setup{beside: true, Config: Config{
	Env: []string{"SLUICE_UNREADABLE=deny"}, Identify: "basic,header:X-User", Exempt: limits.Exempt{Paths: []string{"/exempt"}},
	Addresses: limits.AddressLimits{FailedAuth: 1, FailedAuthWindow: limits.Hour},
}}

// What the rules themselves refuse is answered in a configuration of somebody's own as in ours, and goes to none of its backends.
func TestRefusedBeside(t *testing.T) {
	var served atomic.Int32
	r := shared(t, besideAddresses.with(func(w http.ResponseWriter, _ *http.Request) {
		served.Add(1)
		w.WriteHeader(http.StatusUnauthorized)
	}))
	r.refuseWith(refuseBad)
	for _, row := range []struct {
		name, request string
		status        int
		reason        string
	}{
		{"by the agent", httpGET("/", "X-User: bad"), 429, "request-rate"},
		{"unreadable credentials", httpGET("/", "Authorization: Odd"), 400, "unreadable-credentials"},
		{"exempt", httpGET("/exempt", "X-User: bad"), 401, ""},
		{"not at all", httpGET("/", "X-User: a"), 401, ""},
		{"by the limit of an address", httpGET("/", "X-User: a"), 429, "failed-authentication"},
		{"exempt from that", httpGET("/exempt", "X-User: a"), 401, ""},
	} {
		before := served.Load()
		got := r.send(t, row.request)[0]
		if got.Status != row.status || got.Header.Get("Sluice-Reason") != row.reason {
			t.Errorf("%s: status %d, reason %q, want %d, %q", row.name, got.Status, got.Header.Get("Sluice-Reason"), row.status, row.reason)
		}
		if refused := served.Load() == before; refused != (row.reason != "") {
			t.Errorf("%s: no backend has seen it: %t", row.name, refused)
		}
	}
}
