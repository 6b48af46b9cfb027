package haproxy

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/sluice-qos/sluice/internal/proctest"
	"github.com/sluice-qos/sluice/pkg/limits"
)

const keySecret = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="

// hiddenKey is the key that pkg/limits makes of a name with keySecret.
func hiddenKey(t testing.TB, user string) string {
	t.Helper()
	s, err := limits.ParseSecrets([]byte(keySecret))
	if err != nil {
		t.Fatal(err)
	}
	return s.Keys(user)[0]
}

// With a secret, every name reaches the agent and the tables as the key that
// limits.Secrets makes of it.
func TestHiddenKeys(t *testing.T) {
	r := newRig(t, setup{Config: Config{KeySecret: keySecret, Identify: "header:X-User"}})
	names := []string{
		"alice", "a", strings.Repeat("n", 100), strings.Repeat("n", 101), strings.Repeat("n", 10_000), strings.Repeat("n", 9_999) + "m",
		"~alice", "~", "@alice", "@uploads/alice", hiddenKey(t, "alice") + "x", "al~ice", "Zoë ✓", strings.Repeat("ë", 51), "a\xff\xfeb", `a|b, c:d;e%f$g{h}i"j'k\l b` + "`",
		`%[src]${HOME}`, "GET|alice", "a\tb", "\x01ab", "ab\x01", "a\x7fb", "~exempt", "~unreadable", "~others",
		"192.0.2.7", "2001:db8:1:2::", "::", "::ffff:192.0.2.1", "1.2.3", "999.1.1.1", "1.2.3.4.5", "a:b", "a:b:c", "cafe.cafe", "1.2.3.4 5",
	}
	for i, user := range names {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			r.get(t, "X-User: "+user) // the origin may refuse such bytes
			if diff := cmp.Diff([]question{{hiddenKey(t, user), "GET"}}, r.takeAsked(t)); diff != "" {
				t.Errorf("asked about %.80q (-want +got):\n%s", user, diff)
			}
		})
	}
	t.Run("nobody", func(t *testing.T) {
		r.get(t)
		if diff := cmp.Diff([]question{{"~", "GET"}}, r.takeAsked(t)); diff != "" {
			t.Errorf("asked without a name (-want +got):\n%s", diff)
		}
	})
	t.Run("any bytes", func(t *testing.T) {
		rapid.Check(t, func(rt *rapid.T) {
			user := rapid.StringMatching(`[!-~\x80-\xff]([\x01-\x09\x0b\x0c\x0e-\xff]{0,120}[!-~\x80-\xff])?`).Draw(rt, "user")
			r.send(t, httpGET("/", "X-User: "+user))
			if diff := cmp.Diff([]question{{hiddenKey(t, user), "GET"}}, r.takeAsked(t)); diff != "" {
				rt.Fatalf("asked about %q (-want +got):\n%s", user, diff)
			}
		})
	})
}

// Addresses are hidden too, names at endpoints, and what is exempt is not one.
func TestHiddenKeysElsewhere(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{Config: Config{KeySecret: keySecret, Identify: "header:X-User,ip", Env: []string{"SLUICE_ENDPOINT=uploads"}, Exempt: limits.Exempt{Paths: []string{"/exempt"}}}})
	r.get(t)
	r.get(t, "X-User: alice")
	r.send(t, httpGET("/exempt", "X-User: alice"))
	want := []question{{"@uploads/" + hiddenKey(t, client), "GET"}, {"@uploads/" + hiddenKey(t, "alice"), "GET"}, {limits.ExemptKey, "GET"}}
	if diff := cmp.Diff(want, r.takeAsked(t)); diff != "" {
		t.Errorf("asked (-want +got):\n%s", diff)
	}
}

// Credentials that cannot be read are no name: the key that those requests share stays
// as it is, in the question and in the table, so that the limit file's tier for them holds.
func TestUnreadableKeyIsNotHidden(t *testing.T) {
	t.Parallel()
	for endpoint, want := range map[string]string{"": limits.UnreadableKey, "uploads": limits.EndpointKey("uploads", limits.UnreadableKey)} {
		t.Run("endpoint "+endpoint, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, setup{Config: Config{KeySecret: keySecret, Identify: "basic,header:X-User,ip", Env: []string{"SLUICE_ENDPOINT=" + endpoint}}})
			for _, name := range [][]string{nil, {"X-User: alice"}} { // what a later fragment finds changes nothing
				r.get(t, append(name, "Authorization: Bearer opaque")...)
				if diff := cmp.Diff([]question{{want, "GET"}}, r.takeAsked(t)); diff != "" {
					t.Errorf("asked with %q (-want +got):\n%s", name, diff)
				}
			}
			if table := r.cli(t, "show table sluice/active"); !strings.Contains(table, "key="+want+" ") || strings.Count(table, "key=") != 1 {
				t.Errorf("table active has another key than %s:\n%s", want, table)
			}
		})
	}
}

// Neither the tables nor the log lines of HAProxy tell a name or an address, of requests
// that are served, fail, or cannot be read.
func TestHiddenNamesAreInNoTableAndNoLog(t *testing.T) {
	t.Parallel()
	for _, form := range []string{"", "json"} {
		t.Run("access log "+form, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, setup{Config: Config{KeySecret: keySecret, Env: []string{"SLUICE_ACCESS_LOG=" + form}, Identify: "auto"}, serve: func(w http.ResponseWriter, q *http.Request) {
				if q.URL.Path != "/broken" {
					return
				}
				conn, _, err := w.(http.Hijacker).Hijack()
				if err == nil {
					conn.Close() // HAProxy answers 502, and logs it
				}
			}})
			presigned := "?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=melchior%2F20261122%2Fx%2Fs3%2Faws4_request&X-Amz-Date=20261122T000000Z&X-Amz-Expires=60&X-Amz-SignedHeaders=host&X-Amz-Signature=0"
			for _, path := range []string{"/", "/broken"} {
				r.send(t, httpGET(path, "X-User: melchior"))
				r.send(t, httpGET(path, basic("melchior:x")))
				r.send(t, httpGET(path, bearer(`{"sub":"melchior"}`)))
				r.send(t, httpGET(path+presigned))
				r.send(t, httpGET(path)) // by address
			}
			r.send(t, "GET /melchior melchior HTTP/1.1\r\nX-User: melchior\r\n\r\n")
			want := []string{" 502 ", " 400"}
			if form == "json" {
				want = []string{hiddenKey(t, "melchior"), hiddenKey(t, client), `"status":502`, `"status":400`, `"client":"-"`}
			}
			proctest.Eventually(t, "the log's lines", func() error {
				for _, want := range want {
					if !strings.Contains(r.proc.Output(), want) {
						return fmt.Errorf("no %q in\n%s", want, r.proc.Output())
					}
				}
				return nil
			})
			tables := r.cli(t, "show table sluice/active")
			if !strings.Contains(tables, hiddenKey(t, "melchior")) || !strings.Contains(tables, hiddenKey(t, client)) {
				t.Errorf("table active has not the keys:\n%s", tables)
			}
			host, _, _ := net.SplitHostPort(r.addr)
			for _, name := range []string{"melchior", host} {
				if strings.Contains(r.proc.Output(), name) {
					t.Errorf("the log tells %q:\n%s", name, r.proc.Output())
				}
				if strings.Contains(tables, name) {
					t.Errorf("table active tells %q:\n%s", name, tables)
				}
			}
		})
	}
}

// HAProxy does not start with a secret that it cannot use, and does not print it.
func TestSecretThatIsNone(t *testing.T) {
	file, env, err := Write(t.TempDir(), Config{})
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{"", "correct horse!"} {
		cmd := exec.Command(proctest.HAProxyPath(t), "-c", "-f", file)
		cmd.Env = append(append(os.Environ(), env...), "SLUICE_KEY_SECRET="+secret)
		out, err := cmd.CombinedOutput()
		if err == nil {
			t.Errorf("HAProxy takes %q for a secret", secret)
		}
		if secret != "" && strings.Contains(string(out), secret) {
			t.Errorf("HAProxy prints the secret:\n%s", out)
		}
	}
}

// A file of the operator's in front of haproxy.cfg has the secret, and a reload takes
// another one: as the documents say to rotate it.
func TestSecretIsReloaded(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{})
	origin := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(origin.Close)
	file, env, err := Write(filepath.Join(r.dir, "own"), Config{
		Origin: origin.Listener.Addr().String(),
		SPOE:   "unix@" + filepath.Join(r.dir, "spoa.sock"), Peer: "unix@" + filepath.Join(r.dir, "own.sock"), Runtime: filepath.Join(r.dir, "own-runtime.sock"), Stats: filepath.Join(r.dir, "own-stats.sock"),
		Bind: proctest.FreeAddr(t), Threads: 1, VerdictTimeout: proctest.Patience, Env: []string{patientChecks},
	})
	if err != nil {
		t.Fatal(err)
	}
	r.addr, _ = strings.CutPrefix(env[0], "SLUICE_BIND=")
	secret := filepath.Join(r.dir, "secret.cfg")
	has := func(base64, want string, before ...func()) {
		t.Helper()
		proctest.Eventually(t, "the key of alice", func() error {
			for _, do := range before {
				do()
			}
			r.get(t, "X-User: alice")
			if asked := r.takeAsked(t); len(asked) != 1 || asked[0].User != want {
				return fmt.Errorf("asked about %v with the secret %s, want %s", asked, base64, want)
			}
			return nil
		})
	}
	write := func(base64 string) string {
		t.Helper()
		if err := os.WriteFile(secret, []byte("global\n    setenv SLUICE_KEY_SECRET "+base64+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := limits.ParseSecrets([]byte(base64))
		if err != nil {
			t.Fatal(err)
		}
		return s.Keys("alice")[0]
	}
	before := write(keySecret)
	p := proctest.Start(t, env, proctest.HAProxyPath(t), "-W", "-f", secret, "-f", file)
	has(keySecret, before)
	const other = "AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA="
	after := write(other)
	var signalled time.Time
	reload := func() {
		if time.Since(signalled) < time.Second {
			return // the last one may be under way
		}
		if err := p.Signal(syscall.SIGUSR2); err != nil {
			t.Fatal(err)
		}
		signalled = time.Now() // a master that has just begun may lose it
	}
	has(other, after, reload)
}
