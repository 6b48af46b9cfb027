package haproxy

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/sluice-qos/sluice/internal/proctest"
	"github.com/sluice-qos/sluice/pkg/limits"
)

// writeBeside is Write for a configuration of somebody's own.
func writeBeside(dir string, c Config) (file string, env []string, err error) {
	if env, err = c.env(); err != nil {
		return "", nil, err
	}
	lines, err := c.Beside(dir, Process{})
	if err != nil {
		return "", nil, err
	}
	if err := os.MkdirAll(filepath.Join(dir, "lua"), 0o755); err != nil {
		return "", nil, err
	}
	lines.Files["theirs.cfg"] = strings.NewReplacer(
		"\ndefaults\n", "\n"+lines.Process+"defaults\n",
		"    use_backend files", lines.Frontend+"    use_backend files",
	).Replace(proctest.Theirs)
	for name, text := range lines.Files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			return "", nil, err
		}
	}
	return filepath.Join(dir, "theirs.cfg"), env, nil
}

// HAProxy takes the lines without a word, whatever the limit file has them be and whatever the environment says.
func TestLinesBesideAreValid(t *testing.T) {
	t.Parallel()
	failed := limits.AddressLimits{FailedAuth: 1, FailedAuthWindow: limits.Minute}
	for _, row := range []struct {
		name   string
		config Config
	}{
		{"as shipped", Config{}},
		{"fitted", Config{Fitted: true, Identify: "header:X-User"}},
		{"credentials", Config{Fitted: true, Identify: "s3,jwt:sub,basic,ip"}},
		{"bandwidth", Config{Fitted: true, Bandwidth: true, Identify: "ip"}},
		{"addresses", Config{Fitted: true, Identify: "ip", Addresses: limits.AddressLimits{Requests: 1, Concurrent: 1}}},
		{"failed authentication", Config{Identify: "ip", Addresses: failed}},
		{"exempt", Config{Fitted: true, Identify: "ip", Exempt: limits.Exempt{Addresses: []string{"10.0.0.0/8"}, Paths: []string{"/a", "/b/*"}}}},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			file, _, err := writeBeside(dir, row.config)
			if err != nil {
				t.Fatal(err)
			}
			for _, env := range [][]string{nil, {"SLUICE_CREDIT=off"}, {"SLUICE_UNREADABLE=deny"}, {"SLUICE_ACCESS_LOG=json"}} {
				out := check(t, dir, file, env...)
				if strings.TrimSpace(strings.Replace(out, "Configuration file is valid", "", 1)) != "" {
					t.Errorf("%v: haproxy -c says %q, want nothing to say", env, out)
				}
			}
		})
	}
}

// What the rules themselves refuse is answered in a configuration of somebody's own as in ours, and goes to none of its backends.
func TestRefusedBeside(t *testing.T) {
	t.Parallel()
	allow := func(heard) vars { return nil }
	failed := limits.AddressLimits{FailedAuth: 1, FailedAuthWindow: limits.Minute}
	for _, row := range []struct {
		name   string
		config Config
		answer func(heard) vars
		header string
		status int // of the second request
		reason string
	}{
		{"by the agent", Config{}, func(heard) vars {
			return vars{"reason": "request-rate", "class": "GET", "limit": uint32(5), "retry": uint32(1)}
		}, "X-User: a", 429, "request-rate"},
		{"by the limit of an address", Config{Addresses: failed}, allow, "X-User: a", 429, "failed-authentication"},
		{"unreadable credentials", Config{Unreadable: "deny"}, allow, "Authorization: Odd", 400, "unreadable-credentials"},
		{"not at all", Config{}, allow, "X-User: a", 401, ""},
		{"exempt", Config{Addresses: failed, Exempt: limits.Exempt{Paths: []string{"/"}}}, allow, "X-User: a", 401, ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			var served atomic.Int32
			r := newRig(t, setup{Config: row.config, beside: true, serve: func(w http.ResponseWriter, _ *http.Request) {
				served.Add(1)
				w.WriteHeader(http.StatusUnauthorized)
			}})
			r.answerWith(row.answer)
			r.get(t, row.header)
			before := served.Load()
			got := r.get(t, row.header)
			if got.Status != row.status || got.Header.Get("Sluice-Reason") != row.reason {
				t.Errorf("status %d, reason %q, want %d, %q", got.Status, got.Header.Get("Sluice-Reason"), row.status, row.reason)
			}
			if refused := served.Load() == before; refused != (row.reason != "") {
				t.Errorf("a backend has not seen it: %t", refused)
			}
		})
	}
}
