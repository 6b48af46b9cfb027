package daemon

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sluice-qos/sluice/internal/testkit"
)

func TestCheck(t *testing.T) {
	const others = " can be reached from other machines: set "
	none, full := Access{}, Access{TokenFile: "t", Cert: "c", Key: "k"}
	for _, tt := range []struct {
		name    string
		access  Access
		address string
		want    string
	}{
		{"this machine alone", none, "127.0.0.1:9090", ""},
		{"another address of it", none, "127.0.0.2:0", ""},
		{"by name", none, "localhost:9090", ""},
		{"by IPv6", none, "[::1]:9090", ""},
		{"this machine with everything", full, "127.0.0.1:9090", ""},
		{"this machine with a token", Access{TokenFile: "t"}, "127.0.0.1:9090", ""},
		{"this machine with TLS", Access{Cert: "c", Key: "k"}, "127.0.0.1:9090", ""},
		{"all addresses with everything", full, "0.0.0.0:9090", ""},
		{"all addresses", none, "0.0.0.0:9090", `address "0.0.0.0:9090"` + others + "--admin-token-file and --admin-cert and --admin-key, or use 127.0.0.1"},
		{"all of IPv6", none, "[::]:9090", `address "[::]:9090"` + others + "--admin-token-file and --admin-cert and --admin-key, or use 127.0.0.1"},
		{"no address", none, ":9090", `address ":9090"` + others + "--admin-token-file and --admin-cert and --admin-key, or use 127.0.0.1"},
		{"one that others reach", none, "10.1.2.3:9090", `address "10.1.2.3:9090"` + others + "--admin-token-file and --admin-cert and --admin-key, or use 127.0.0.1"},
		{"a name that only begins so", none, "127.0.0.1.example.com:1", `address "127.0.0.1.example.com:1"` + others + "--admin-token-file and --admin-cert and --admin-key, or use 127.0.0.1"},
		{"others with a token in the clear", Access{TokenFile: "t"}, ":9090", `address ":9090"` + others + "--admin-cert and --admin-key, or use 127.0.0.1"},
		{"others with TLS and no token", Access{Cert: "c", Key: "k"}, ":9090", `address ":9090"` + others + "--admin-token-file, or use 127.0.0.1"},
		{"a certificate without its key", Access{Cert: "c"}, "127.0.0.1:1", "--admin-cert is set without --admin-key"},
		{"a key without its certificate", Access{TokenFile: "t", Key: "k"}, ":1", "--admin-key is set without --admin-cert"},
		{"no port", none, "localhost", `address "localhost": want host:port`},
		{"nothing", full, "", `address "": want host:port`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := ""
			if err := tt.access.CheckAddress(tt.address); err != nil {
				got = err.Error()
			}
			if got != tt.want {
				t.Errorf("%+v.Check(%q) = %q, want %q", tt.access, tt.address, got, tt.want)
			}
			l, _, err := tt.access.Listen(tt.address, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
			if err == nil {
				l.Close()
			}
			if tt.want != "" && (err == nil || err.Error() != tt.want) {
				t.Errorf("%+v.Listen(%q) = %v, want %q", tt.access, tt.address, err, tt.want)
			}
		})
	}
}

// What cannot be listened with is told with the flag and the file.
func TestListenRefuses(t *testing.T) {
	dir := t.TempDir()
	ca := testkit.NewAuthority(t, dir)
	cert, key := ca.Issue(t, dir, time.Now().Add(time.Hour))
	other := t.TempDir()
	_, otherKey := ca.Issue(t, other, time.Now().Add(time.Hour))
	empty := filepath.Join(dir, "empty")
	replaceFile(t, empty, "# nobody\n")
	for _, tt := range []struct {
		name   string
		access Access
		want   string
	}{
		{"no token file", Access{TokenFile: dir + "/none"}, "--admin-token-file: open " + dir + "/none: no such file or directory"},
		{"a token file without any", Access{TokenFile: empty}, "--admin-token-file: token file " + empty + ": it holds no token"},
		{"no certificate", Access{Cert: dir + "/none", Key: key}, "--admin-cert: open " + dir + "/none: no such file or directory"},
		{"no key", Access{Cert: cert, Key: dir + "/none"}, "--admin-cert: open " + dir + "/none: no such file or directory"},
		{"what is none", Access{Cert: empty, Key: key}, "--admin-cert: certificate " + empty + " with key " + key + ": tls: failed to find any PEM data in certificate input"},
		{"another one's key", Access{Cert: cert, Key: otherKey}, "--admin-cert: certificate " + cert + " with key " + otherKey + ": tls: private key does not match public key"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l, _, err := tt.access.Listen("127.0.0.1:0", slog.New(slog.DiscardHandler), prometheus.NewRegistry())
			if err == nil {
				l.Close()
			}
			if err == nil || err.Error() != tt.want {
				t.Errorf("Listen() = %v, want %s", err, tt.want)
			}
		})
	}
}

// replaceFile replaces a file at once.
func replaceFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// secured is a server with TLS and a token, and a client that knows its authority.
type secured struct {
	*http.Client
	url, dir string
	ca       *testkit.Authority
	registry *prometheus.Registry
	log      *testkit.Buffer
}

func newSecured(t *testing.T) *secured {
	t.Helper()
	dir := t.TempDir()
	s := &secured{dir: dir, ca: testkit.NewAuthority(t, dir), registry: prometheus.NewRegistry(), log: &testkit.Buffer{}}
	cert, key := s.ca.Issue(t, dir, time.Now().Add(time.Hour), "sluice.example")
	replaceFile(t, dir+"/tokens", "ann "+annsToken+"\n")
	log := slog.New(slog.NewTextHandler(s.log, nil))
	l, gate, err := Access{TokenFile: dir + "/tokens", Cert: cert, Key: key}.Listen("127.0.0.1:0", log, s.registry)
	if err != nil {
		t.Fatal(err)
	}
	gate.tokens.every, gate.certificate.every = 10*time.Millisecond, 10*time.Millisecond
	h := AdminHandler(AdminOptions{Gatherer: s.registry, Ready: func() error { return nil }, Routes: (&routes{}).add, Gate: gate})
	serveUntilEnd(t, l, h)
	pool := x509.NewCertPool()
	pool.AddCert(s.leaf(t, s.ca.File))
	s.url = "https://" + l.Addr().String()
	s.Client = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, DisableKeepAlives: true, ForceAttemptHTTP2: true}}
	return s
}

// get asks with a token, "" for none, under a name, "" for the address.
func (s *secured) get(t *testing.T, path, token, host string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), "GET", s.url+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if req.Host = host; token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := s.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res, string(body)
}

func TestTLS(t *testing.T) {
	s := newSecured(t)
	for _, tt := range []struct {
		name, path, token, host string
		status                  int
	}{
		{"with the token", "/api/v1/users", annsToken, "", 200},
		{"under a name, which only the certificate proves", "/api/v1/users", annsToken, "sluice.example:9090", 200},
		{"without", "/api/v1/users", "", "", 401},
		{"with another", "/metrics", bobsToken, "", 401},
		{"metrics", "/metrics", annsToken, "", 200},
		{"health without", "/-/healthy", "", "", 200},
	} {
		res, body := s.get(t, tt.path, tt.token, tt.host)
		if res.StatusCode != tt.status || res.ProtoMajor != 2 || res.TLS.Version < tls.VersionTLS12 {
			t.Errorf("%s: GET %s = %s by %s, want %d by HTTP/2: %s", tt.name, tt.path, res.Status, res.Proto, tt.status, body)
		}
	}
	old := s.Transport.(*http.Transport).TLSClientConfig.Clone()
	old.MinVersion, old.MaxVersion = tls.VersionTLS10, tls.VersionTLS11
	if conn, err := tls.Dial("tcp", strings.TrimPrefix(s.url, "https://"), old); err == nil {
		conn.Close()
		t.Error("TLS 1.1 is spoken")
	}
	res, err := http.Get("http" + strings.TrimPrefix(s.url, "https") + "/api/v1/users")
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != 400 {
		t.Errorf("GET in the clear = %s, want 400", res.Status)
	}
	if out := s.log.String(); strings.Contains(out, "TLS") {
		t.Errorf("a handshake that fails is logged:\n%s", out)
	}
}

// leaf reads the first certificate of a file.
func (s *secured) leaf(t *testing.T, file string) *x509.Certificate {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(text)
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// A token and a certificate that change take effect without a restart, and broken
// ones do not.
func TestRotation(t *testing.T) {
	s := newSecured(t)
	cert := s.dir + "/cert.pem"
	serves := func(what string, serial *x509.Certificate, tokens map[string]int) {
		t.Helper()
		testkit.Eventually(t, what, func() error {
			for token, status := range tokens {
				res, _ := s.get(t, "/api/v1/users", token, "")
				if got := res.TLS.PeerCertificates[0]; res.StatusCode != status || !got.Equal(serial) {
					return fmt.Errorf("token …%s: %d with certificate %v, want %d with %v", token[len(token)-3:], res.StatusCode, got.SerialNumber, status, serial.SerialNumber)
				}
			}
			return nil
		})
	}
	valid := func(what string, token, certificate int) {
		t.Helper()
		testkit.Eventually(t, what, func() error {
			s.get(t, "/metrics", annsToken, "")
			return testutil.GatherAndCompare(s.registry, strings.NewReader(`
# HELP sluice_admin_file_valid 1 if the file of the admin API (token or certificate) was good when it was last looked at, 0 if it is broken or gone and what it held before is in use.
# TYPE sluice_admin_file_valid gauge
sluice_admin_file_valid{file="certificate"} `+fmt.Sprint(certificate)+`
sluice_admin_file_valid{file="token"} `+fmt.Sprint(token)+"\n"), "sluice_admin_file_valid")
		})
	}
	first := s.leaf(t, cert)
	serves("the first ones", first, map[string]int{annsToken: 200, bobsToken: 401})

	replaceFile(t, s.dir+"/tokens", "ann "+annsToken+"\nbob "+bobsToken+"\n")
	serves("two tokens", first, map[string]int{annsToken: 200, bobsToken: 200})

	replaceFile(t, s.dir+"/tokens", "ann short\n")
	valid("a broken token file shows", 0, 1)
	serves("the tokens stay", first, map[string]int{annsToken: 200, bobsToken: 200})

	if err := os.Remove(s.dir + "/tokens"); err != nil {
		t.Fatal(err)
	}
	valid("so does one that is gone", 0, 1)
	replaceFile(t, s.dir+"/tokens", "ann "+annsToken+"\n")
	valid("a good one is good", 1, 1)
	serves("bob is out", first, map[string]int{annsToken: 200, bobsToken: 401})

	until := time.Now().Add(30 * time.Minute).Truncate(time.Second)
	s.ca.Issue(t, s.dir, until, "sluice.example")
	second := s.leaf(t, cert)
	serves("the second certificate", second, map[string]int{annsToken: 200})
	valid("both are good", 1, 1)
	if _, text := s.get(t, "/metrics", annsToken, ""); !strings.Contains(text, fmt.Sprintf("\nsluice_admin_certificate_expiry_timestamp_seconds %v\n", float64(until.Unix()))) {
		t.Errorf("the metrics do not say that it expires at %v:\n%s", until.Unix(), text)
	}

	replaceFile(t, cert, "nothing")
	valid("a broken certificate shows", 1, 0)
	serves("the second stays", second, map[string]int{annsToken: 200})
	if out := s.log.String(); strings.Count(out, "file=certificate") != 2 || strings.Contains(out, annsToken) || strings.Contains(out, bobsToken) {
		t.Errorf("want two lines of the certificate, one for its change and one for its error, and no token:\n%s", out)
	}
}
