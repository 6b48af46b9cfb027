package main

import (
	"bytes"
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-qos/sluice/internal/admin"
	"github.com/sluice-qos/sluice/internal/testcert"
)

const token = "0123456789abcdef"

// writeFile writes a file of a test's folder.
func writeFile(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// serveTLS serves a polygen's API with TLS, which wants a token.
func serveTLS(t *testing.T, ca *testcert.Authority, until time.Time) string {
	t.Helper()
	dir := t.TempDir()
	cert, key := ca.Issue(t, dir, until)
	access := admin.Access{TokenFile: writeFile(t, dir, "tokens", "ann "+token), Cert: cert, Key: key}
	l, gate, err := access.Listen("127.0.0.1:0", slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	s := &httptest.Server{Listener: l, Config: &http.Server{
		Handler:  admin.Handler(admin.Options{Gatherer: prometheus.NewRegistry(), API: cluster(), Gate: gate}),
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
	}}
	s.Start()
	t.Cleanup(s.Close)
	return l.Addr().String()
}

// Every command that asks an API asks with a token and by TLS, and says what to do
// when it may not ask.
func TestAsksWithTokenAndTLS(t *testing.T) {
	for _, name := range []string{"SLUICE_ADMIN_TOKEN_FILE", "SLUICE_ADMIN_CA"} {
		t.Setenv(name, "") // restores it
		os.Unsetenv(name)
	}
	dir := t.TempDir()
	ca := testcert.New(t, dir)
	address, expired := serveTLS(t, ca, time.Now().Add(time.Hour)), serveTLS(t, ca, time.Now().Add(-time.Hour))
	plain := serve(cluster())
	defer plain.Close()
	clear := plain.Listener.Addr().String()
	good := writeFile(t, dir, "token", "# mine\n"+token+"\n")
	other := writeFile(t, dir, "other", "bob 0123456789abcdefg")
	short := writeFile(t, dir, "short", "short")
	limits := writeFile(t, dir, "limits.yaml", goodLimits)

	for _, command := range [][]string{{"top", "--once"}, {"explain", "bob", "--limits", limits}} {
		for _, tt := range []struct {
			name string
			args []string
			want string // the error; "" is none
		}{
			{"with all", []string{"--admin", "https://" + address, "--admin-ca", ca.File, "--admin-token-file", good}, ""},
			{"with a slash at the end", []string{"--admin", "https://" + address + "/", "--admin-ca", ca.File, "--admin-token-file", good}, ""},
			{"in the clear to this machine", []string{"--admin", clear}, ""},
			{"the same with its scheme", []string{"--admin", "http://" + clear, "--admin-token-file", good}, ""},
			{"without a token", []string{"--admin", "https://" + address, "--admin-ca", ca.File},
				"https://" + address + " wants a token: give one with --admin-token-file"},
			{"with another token", []string{"--admin", "https://" + address, "--admin-ca", ca.File, "--admin-token-file", other},
				"https://" + address + " does not know the token of " + other + ": give another one with --admin-token-file"},
			{"with no token of the kind", []string{"--admin", "https://" + address, "--admin-ca", ca.File, "--admin-token-file", short},
				"--admin-token-file: token file " + short + ": line 1: a token of 5 characters: want 16 to 1024, such as from: openssl rand -hex 32"},
			{"without a token file that is named", []string{"--admin", clear, "--admin-token-file", dir + "/none"},
				"--admin-token-file: token file: open " + dir + "/none: no such file or directory"},
			{"without the authority", []string{"--admin", "https://" + address, "--admin-token-file", good},
				"https://" + address + " has a certificate that nobody known signed: name its authority's with --admin-ca"},
			{"with no authority", []string{"--admin", "https://" + address, "--admin-ca", good},
				"--admin-ca: " + good + " holds no certificate in PEM form"},
			{"without the authority that is named", []string{"--admin", "https://" + address, "--admin-ca", dir + "/none"},
				"--admin-ca: open " + dir + "/none: no such file or directory"},
			{"with TLS where there is none", []string{"--admin", "https://" + clear, "--admin-ca", ca.File},
				clear + " speaks HTTP: use http://" + clear + " with --admin"},
			{"without TLS where there is", []string{"--admin", address},
				address + " speaks HTTPS: use https://" + address + " with --admin"},
			{"a token for others in the clear", []string{"--admin", "192.0.2.1:9090", "--admin-token-file", good},
				"a token is not sent to 192.0.2.1:9090 unencrypted: use https://192.0.2.1:9090 with --admin"},
			{"a token for a name in the clear", []string{"--admin", "http://polygen.example:9090", "--admin-token-file", good},
				"a token is not sent to http://polygen.example:9090 unencrypted: use https://polygen.example:9090 with --admin"},
		} {
			t.Run(command[0]+" "+tt.name, func(t *testing.T) {
				var stdout, stderr bytes.Buffer
				code := run(append(command, tt.args...), &stdout, &stderr)
				want := ""
				if tt.want != "" {
					want = "sluice " + command[0] + ": " + tt.want + "\n"
				}
				if stderr.String() != want || code != map[bool]int{true: 0, false: 1}[want == ""] || (stdout.Len() > 0) != (want == "") {
					t.Errorf("sluice %q ended with %d: %s\nwant %s", append(command, tt.args...), code, &stderr, want)
				}
			})
		}
		t.Run(command[0]+" with a certificate that has expired", func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			code := run(append(command, "--admin", "https://"+expired, "--admin-ca", ca.File, "--admin-token-file", good), &stdout, &stderr)
			if want := "sluice " + command[0] + ": https://" + expired + ": x509: certificate has expired or is not yet valid: "; code != 1 || !strings.HasPrefix(stderr.String(), want) {
				t.Errorf("it ended with %d: %s\nwant %s…", code, &stderr, want)
			}
		})
	}

	t.Run("by its environment", func(t *testing.T) {
		t.Setenv("SLUICE_ADMIN_TOKEN_FILE", good)
		t.Setenv("SLUICE_ADMIN_CA", ca.File)
		var stdout, stderr bytes.Buffer
		if code := run([]string{"top", "--once", "--admin", "https://" + address}, &stdout, &stderr); code != 0 {
			t.Errorf("sluice top ended with %d: %s", code, &stderr)
		}
	})
}

func TestBaseURL(t *testing.T) {
	for _, tt := range []struct{ address, want string }{
		{"127.0.0.1:9090", "http://127.0.0.1:9090"},
		{"[::1]:9090", "http://[::1]:9090"},
		{"polygen:9090", "http://polygen:9090"},
		{"http://polygen:9090", "http://polygen:9090"},
		{"https://polygen:9090", "https://polygen:9090"},
		{"https://polygen:9090/", "https://polygen:9090"},
		{"", ""}, {"9090", ""}, {"polygen", ""}, {"https://polygen", ""}, {"ftp://polygen:21", ""}, {"https://polygen:9090/x", ""},
		{"ann:secret@polygen:9090", ""}, {"https://ann@polygen:9090", ""}, {"polygen:9090?x", ""}, {"https://polygen:9090#x", ""}, {"https://https://polygen:9090", ""},
		{"polygen:9090\n", ""}, {"https://:9090:1", ""},
	} {
		if got, err := baseURL(tt.address); got != tt.want || (err == nil) != (tt.want != "") {
			t.Errorf("baseURL(%q) = %q, %v, want %q", tt.address, got, err, tt.want)
		}
	}
}

// A redirect is not followed, so that a token goes nowhere else; and a token that
// changes is sent from the next question on.
func TestTokenGoesToOnePlace(t *testing.T) {
	var tokens []string
	away := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("a redirect is followed") }))
	defer away.Close()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		tokens = append(tokens, r.Header.Get("Authorization"))
		http.Redirect(w, r, away.URL, http.StatusTemporaryRedirect)
	}))
	defer s.Close()
	address := s.Listener.Addr().String()
	dir := t.TempDir()
	a, err := newAPI(address, Access{AdminTokenFile: writeFile(t, dir, "token", token)})
	if err != nil {
		t.Fatal(err)
	}
	defer a.close()
	ask := func() {
		t.Helper()
		var answer struct{}
		want := "what listens at " + address + " is no polygen (it answers \"307 Temporary Redirect\"): " + adminHint
		if err := a.get(t.Context(), "/api/v1/users", &answer); err == nil || err.Error() != want {
			t.Errorf("get() = %v, want %s", err, want)
		}
	}
	ask()
	writeFile(t, dir, "token", "ann 0123456789abcdefg")
	ask()
	if want := "Bearer " + token + ", Bearer 0123456789abcdefg"; strings.Join(tokens, ", ") != want {
		t.Errorf("sent %q, want %s", tokens, want)
	}
}

// A certificate of another name is not taken.
func TestCertificateOfAnotherName(t *testing.T) {
	dir := t.TempDir()
	ca := testcert.New(t, dir)
	address := serveTLS(t, ca, time.Now().Add(time.Hour))
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	a, err := newAPI("https://localhost:"+port, Access{AdminCA: ca.File, AdminTokenFile: writeFile(t, dir, "token", token)})
	if err != nil {
		t.Fatal(err)
	}
	defer a.close()
	if v := a.client.Transport.(*http.Transport).TLSClientConfig.MinVersion; v != tls.VersionTLS12 {
		t.Errorf("the least version is %x, want TLS 1.2", v)
	}
	var answer struct{}
	if err := a.get(t.Context(), "/api/v1/users", &answer); err == nil || !strings.HasPrefix(err.Error(), "https://localhost:"+port+": x509: ") {
		t.Errorf("get() = %v, want that the certificate is for another name", err)
	}
}
