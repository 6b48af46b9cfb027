package daemon

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sluice-qos/sluice/internal/testkit"
)

// gated is a gate with a token file, and what it logs.
func gated(t *testing.T, tokens string) (g *Gate, path string, log *testkit.Buffer, reg *prometheus.Registry) {
	t.Helper()
	path, log, reg = t.TempDir()+"/tokens", &testkit.Buffer{}, prometheus.NewRegistry()
	replaceFile(t, path, tokens)
	g, err := NewGate(Access{TokenFile: path}, slog.New(slog.NewTextHandler(log, nil)), reg)
	if err != nil {
		t.Fatal(err)
	}
	return g, path, log, reg
}

// What tells of users or of the daemon, or changes something, wants a token, however
// its path is written; health and pages do not.
func TestToken(t *testing.T) {
	g, _, log, reg := gated(t, "ann "+annsToken+"\n"+bobsToken)
	e := &routes{}
	h := AdminHandler(AdminOptions{Gatherer: reg, Ready: func() error { return nil }, Reload: func() error { return nil }, Routes: e.add, Gate: g})
	const missing, unknown = `Bearer realm="sluice"`, `Bearer realm="sluice", error="invalid_token"`
	for _, tt := range []struct {
		name, method, path, authorization string
		status                            int
		challenge                         string
	}{
		{"a token with a name", "GET", "/api/v1/users", "Bearer " + annsToken, 200, ""},
		{"a token without", "GET", "/api/v1/users", "Bearer " + bobsToken, 200, ""},
		{"a scheme in small letters", "GET", "/api/v1/users", "bearer  " + annsToken, 200, ""},
		{"none", "GET", "/api/v1/users", "", 401, missing},
		{"another scheme", "GET", "/api/v1/users", "Basic " + annsToken, 401, missing},
		{"the token alone", "GET", "/api/v1/users", annsToken, 401, missing},
		{"an unknown one", "GET", "/api/v1/users", "Bearer 0123456789abcdef-eve", 401, unknown},
		{"the beginning of one", "GET", "/api/v1/users", "Bearer " + annsToken[:16], 401, unknown},
		{"one and more", "GET", "/api/v1/users", "Bearer " + annsToken + "x", 401, unknown},
		{"two", "GET", "/api/v1/users", "Bearer " + annsToken + " " + bobsToken, 401, unknown},
		{"an empty one", "GET", "/api/v1/users", "Bearer ", 401, unknown},
		{"a name for a token", "GET", "/api/v1/users", "Bearer ann", 401, unknown},
		{"headers alone", "HEAD", "/api/v1/users", "", 401, missing},
		{"a user", "GET", "/api/v1/users/alice", "", 401, missing},
		{"a user whose name leads elsewhere", "GET", "/api/v1/users/..%2f..%2f..%2f..%2fx", "", 401, missing},
		{"a path that is none", "GET", "/api/v1/x", "", 401, missing},
		{"a change", "POST", "/api/v1/users/alice", "", 401, missing},
		{"an escaped path", "GET", "/%61pi/v1/users", "", 401, missing},
		{"metrics", "GET", "/metrics", "", 401, missing},
		{"metrics with a token", "GET", "/metrics", "Bearer " + annsToken, 200, ""},
		{"reload", "POST", "/-/reload", "", 401, missing},
		{"reload with a token", "POST", "/-/reload", "Bearer " + annsToken, 200, ""},
		{"what else is there", "GET", "/-/quit", "", 401, missing},
		{"health", "GET", "/-/healthy", "", 200, ""},
		{"readiness", "GET", "/-/ready", "", 200, ""},
		{"health with any token", "GET", "/-/healthy", "Bearer x", 200, ""},
		{"the page", "GET", "/", "", 200, ""},
		{"what is no file of it", "GET", "/none.js", "", 404, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e.asked = ""
			r := httptest.NewRequest(tt.method, tt.path, nil)
			if tt.authorization != "" {
				r.Header.Set("Authorization", tt.authorization)
			}
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if got := w.Header().Get("WWW-Authenticate"); w.Code != tt.status || got != tt.challenge {
				t.Errorf("%s %s with %q = %d with the challenge %q, want %d with %q", tt.method, tt.path, tt.authorization, w.Code, got, tt.status, tt.challenge)
			}
			if w.Code == 401 && e.asked != "" {
				t.Errorf("%s %s with %q asked for %s", tt.method, tt.path, tt.authorization, e.asked)
			}
			var failed apiError
			if strings.HasPrefix(tt.path, "/api/") && (json.Unmarshal(w.Body.Bytes(), &failed) != nil || (failed.Error == "") != (w.Code == 200)) {
				t.Errorf("%s %s = %s, want JSON, with an error if it is one", tt.method, tt.path, w.Body)
			}
		})
	}
	// As many as there were.
	want := 18.0
	if got := testutil.ToFloat64(g.unauthorized); got != want {
		t.Errorf("sluice_admin_unauthorized_total = %v, want %v", got, want)
	}
	if out := log.String(); strings.Contains(out, annsToken) || strings.Contains(out, bobsToken) || strings.Contains(out, "-eve") {
		t.Errorf("the log has a token:\n%s", out)
	}
}

// A request that is not cleaned, as CONNECT's are not, finds no way around.
func TestTokenIsWantedWhateverThePath(t *testing.T) {
	g, _, _, reg := gated(t, annsToken)
	e := &routes{}
	h := AdminHandler(AdminOptions{Gatherer: reg, Routes: e.add, Reload: func() error { e.asked = "reload"; return nil }, Gate: g})
	for _, path := range []string{"/x/../api/v1/users", "//api/v1/users", "/./api/v1/users", "/api//v1/users", "/-/../api/v1/users", "/-/healthy/../../api/v1/users",
		"/-//reload", "/-/ready/../reload", "/api/v1/users/%2e%2e", "/API/v1/users", "/metrics/", "/%2fapi/v1/users", "/api%2fv1%2fusers"} {
		for _, method := range []string{"GET", "POST", "CONNECT", "OPTIONS"} {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest(method, "http://localhost"+path, nil))
			if w.Code == 200 || e.asked != "" || strings.Contains(w.Body.String(), "sluice_") {
				t.Errorf("%s %s = %d %s, and asked %q, want a refusal", method, path, w.Code, w.Body, e.asked)
			}
		}
	}
}

func TestCaller(t *testing.T) {
	g, _, _, reg := gated(t, "ann "+annsToken+"\n"+bobsToken)
	open, err := NewGate(Access{}, nil, prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name        string
		gate        *Gate
		path, token string
		want        string
	}{
		{"a token's name", g, "/api/v1/x", annsToken, "ann"},
		{"a token without one", g, "/api/v1/x", bobsToken, "token"},
		{"nobody is asked", open, "/api/v1/x", annsToken, "anonymous"},
		{"there is no gate", nil, "/api/v1/x", annsToken, "anonymous"},
		{"where nobody is asked", g, "/-/healthy", annsToken, "anonymous"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got string
			h := tt.gate.requireToken(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = Caller(r) }))
			r := httptest.NewRequest("GET", tt.path, nil)
			r.Header.Set("Authorization", "Bearer "+tt.token)
			h.ServeHTTP(httptest.NewRecorder(), r)
			if got != tt.want {
				t.Errorf("caller of %s = %q, want %q", tt.path, got, tt.want)
			}
		})
	}
	if n, err := testutil.GatherAndCount(reg); n == 0 || err != nil {
		t.Errorf("GatherAndCount() = %d, %v", n, err)
	}
	if problems, err := testutil.GatherAndLint(reg); err != nil || len(problems) > 0 {
		t.Errorf("GatherAndLint() = %v, %v, want no problem", problems, err)
	}
}

// The log has one line of those who are refused in 10 s, with how many there were.
func TestRefusalsAreLoggedNowAndThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, _, log, _ := gated(t, annsToken)
		h := g.requireToken(http.NotFoundHandler())
		refuse := func(n int, from string) {
			for range n {
				r := httptest.NewRequest("GET", "/metrics", nil)
				r.RemoteAddr = from
				h.ServeHTTP(httptest.NewRecorder(), r)
			}
		}
		refuse(3, "192.0.2.1:1")
		time.Sleep(9 * time.Second)
		refuse(2, "192.0.2.2:1")
		time.Sleep(time.Second)
		refuse(1, "192.0.2.3:1")
		var got []string
		for line := range strings.Lines(log.String()) {
			_, said, _ := strings.Cut(line, " remote=")
			got = append(got, strings.TrimSpace(said))
		}
		if want := []string{"192.0.2.1:1 requests=1", "192.0.2.3:1 requests=5"}; !reflect.DeepEqual(got, want) {
			t.Errorf("logged %q, want %q", got, want)
		}
	})
}

// Files are looked at when they are used, and once a second at most; an error is
// logged once.
func TestRotatedLooksOnceASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, path, log, _ := gated(t, annsToken)
		good := func(token string) bool { _, ok := g.tokens.current().ownerOf(token); return ok }
		step := func(after time.Duration, ann, bob bool) {
			t.Helper()
			time.Sleep(after)
			if gotAnn, gotBob := good(annsToken), good(bobsToken); gotAnn != ann || gotBob != bob {
				t.Errorf("%v later: ann %v, bob %v, want %v, %v", after, gotAnn, gotBob, ann, bob)
			}
		}
		step(0, true, false)
		replaceFile(t, path, bobsToken)
		step(999*time.Millisecond, true, false)
		step(time.Millisecond, false, true)
		replaceFile(t, path, "")
		step(time.Second, false, true)
		step(time.Second, false, true)
		step(time.Hour, false, true)
		if n := strings.Count(log.String(), "refused"); n != 1 {
			t.Errorf("a broken file is logged %d times, want once:\n%s", n, log)
		}
		replaceFile(t, path, bobsToken)
		step(time.Second, false, true)
		replaceFile(t, path, "")
		step(time.Second, false, true)
		if n := strings.Count(log.String(), "refused"); n != 2 {
			t.Errorf("broken twice is logged %d times, want twice:\n%s", n, log)
		}
	})
}

// A secret that everybody may read is told of, but not one that Kubernetes mounts.
func TestReadersAreWarnedOf(t *testing.T) {
	for _, tt := range []struct {
		name string
		mode os.FileMode
		link bool
		warn bool
	}{
		{"the owner's", 0o600, false, false},
		{"the group's", 0o640, false, false},
		{"everybody's", 0o644, false, true},
		{"everybody's, of Kubernetes", 0o644, true, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir, log := t.TempDir(), &testkit.Buffer{}
			path := dir + "/tokens"
			if tt.link {
				if err := os.Mkdir(dir+"/..data", 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.Symlink("..data/tokens", path); err != nil {
					t.Fatal(err)
				}
				path = dir + "/..data/tokens"
			}
			if err := os.WriteFile(path, []byte(annsToken), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(path, tt.mode); err != nil {
				t.Fatal(err)
			}
			if _, err := NewGate(Access{TokenFile: dir + "/tokens"}, slog.New(slog.NewTextHandler(log, nil)), prometheus.NewRegistry()); err != nil {
				t.Fatal(err)
			}
			if got := strings.Contains(log.String(), "chmod o-r"); got != tt.warn {
				t.Errorf("warned %v, want %v:\n%s", got, tt.warn, log)
			}
		})
	}
}

// Every token that is read is good, and its owner is its name; an error tells nothing
// of what the file holds.
func FuzzTokens(f *testing.F) {
	f.Add("ann " + annsToken + "\n# x\n" + bobsToken)
	f.Add("ann\x00 " + annsToken)
	f.Add("\xff")
	f.Fuzz(func(t *testing.T, file string) {
		all, err := ParseTokens([]byte(file))
		if err != nil {
			for _, word := range strings.Fields(file) {
				if len(word) >= 16 && strings.Contains(err.Error(), word) {
					t.Errorf("ParseTokens(%q) = %v, which tells %q", file, err, word)
				}
			}
			return
		}
		digests, err := digestTokens("file", []byte(file))
		if err != nil {
			t.Fatalf("digestTokens(%q) = %v, want none", file, err)
		}
		for _, s := range all {
			r := httptest.NewRequest("GET", "/", nil)
			r.Header.Set("Authorization", "Bearer "+s.Token)
			token, _ := bearer(r)
			if name, ok := digests.ownerOf(token); name != s.Name || !ok {
				t.Errorf("owner(%q) = %q, %v, want %q", token, name, ok, s.Name)
			}
		}
	})
}

// routes are paths of an API, which keep what they were asked.
type routes struct{ asked string }

func (e *routes) add(mux *http.ServeMux) {
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/" {
			http.NotFound(w, r)
		}
	})
	mux.HandleFunc("/api/v1/users", func(w http.ResponseWriter, r *http.Request) {
		e.asked = r.URL.Path
		WriteJSON(w, http.StatusOK, struct{}{})
	})
	mux.HandleFunc("/api/", func(w http.ResponseWriter, r *http.Request) {
		e.asked = r.URL.Path
		WriteError(w, r, http.StatusNotFound, "no such path")
	})
}
