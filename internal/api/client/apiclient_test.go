package client

import (
	"crypto/tls"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/internal/testkit"
	"github.com/sluice-qos/sluice/internal/testkit/apitest"
)

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
		if got, err := baseURL(tt.address, AdminFlags); got != tt.want || (err == nil) != (tt.want != "") {
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
	a, err := NewClient(address, Access{TokenFile: apitest.WriteFile(t, dir, "token", apitest.Token)})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	ask := func() {
		t.Helper()
		var answer struct{}
		want := "what listens at " + address + " is no polygen (it answers \"307 Temporary Redirect\"): " + Hint
		if err := a.GetJSON(t.Context(), "/api/v1/users", &answer); err == nil || err.Error() != want {
			t.Errorf("Get() = %v, want %s", err, want)
		}
	}
	ask()
	apitest.WriteFile(t, dir, "token", "ann 0123456789abcdefg")
	ask()
	if want := "Bearer " + apitest.Token + ", Bearer 0123456789abcdefg"; strings.Join(tokens, ", ") != want {
		t.Errorf("sent %q, want %s", tokens, want)
	}
}

// A certificate of another name is not taken.
func TestCertificateOfAnotherName(t *testing.T) {
	dir := t.TempDir()
	ca := testkit.NewAuthority(t, dir)
	address := apitest.ServeTLS(t, ca, time.Now().Add(time.Hour))
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	a, err := NewClient("https://localhost:"+port, Access{CA: ca.File, TokenFile: apitest.WriteFile(t, dir, "token", apitest.Token)})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	if v := a.client.Transport.(*http.Transport).TLSClientConfig.MinVersion; v != tls.VersionTLS12 {
		t.Errorf("the least version is %x, want TLS 1.2", v)
	}
	var answer struct{}
	if err := a.GetJSON(t.Context(), "/api/v1/users", &answer); err == nil || !strings.HasPrefix(err.Error(), "https://localhost:"+port+": x509: ") {
		t.Errorf("Get() = %v, want that the certificate is for another name", err)
	}
}

// An address that accepts and never answers is told with how long was waited.
func TestNoAnswer(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	address := silent.Addr().String()
	a, err := NewClient(address, Access{})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	a.client.Timeout = time.Millisecond // the error says what it usually is
	var answer struct{}
	want := address + " does not answer within 10s: " + Hint
	if err := a.GetJSON(t.Context(), "/api/v1/users", &answer); err == nil || err.Error() != want {
		t.Errorf("Get() = %v, want %s", err, want)
	}
}
