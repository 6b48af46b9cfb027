package apitest

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-qos/sluice/internal/daemon"
	"github.com/sluice-qos/sluice/internal/polygen/api"
	"github.com/sluice-qos/sluice/internal/testkit"
)

// Token is what ServeTLS wants.
const Token = "0123456789abcdef"

// WriteFile writes a file of a test's folder.
func WriteFile(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// ServeTLS serves a polygen's API with TLS, which wants a token.
func ServeTLS(t *testing.T, ca *testkit.Authority, until time.Time) string {
	t.Helper()
	dir := t.TempDir()
	cert, key := ca.Issue(t, dir, until)
	access := daemon.Access{TokenFile: WriteFile(t, dir, "tokens", "ann "+Token), Cert: cert, Key: key}
	l, gate, err := access.Listen("127.0.0.1:0", slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	s := &httptest.Server{Listener: l, Config: &http.Server{
		Handler:  daemon.AdminHandler(daemon.AdminOptions{Gatherer: prometheus.NewRegistry(), Routes: api.Routes(Cluster(), nil, nil), Gate: gate}),
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
	}}
	s.Start()
	t.Cleanup(s.Close)
	return l.Addr().String()
}
