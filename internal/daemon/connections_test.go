package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-qos/sluice/internal/testkit"
)

// A client who may ask without a token, or has none, keeps no connection.
func TestHealthAndRefusalsEndTheConnection(t *testing.T) {
	g, _, _, reg := gated(t, "ann "+annsToken)
	sick := func() error { return fmt.Errorf("not serving yet") }
	for _, tt := range []struct {
		path, token string
		ready       func() error
		status      int
		close       bool
	}{
		{"/-/healthy", "", sick, 200, true},
		{"/-/ready", "", func() error { return nil }, 200, true},
		{"/-/ready", "", sick, 503, true},
		{"/metrics", "", sick, 401, true},
		{"/metrics", bobsToken, sick, 401, true},
		{"/api/v1/users", "", sick, 401, true},
		{"/-/reload", "", sick, 401, true},
		{"/metrics", annsToken, sick, 200, false},
		{"/api/v1/users", annsToken, sick, 200, false},
	} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		serveUntilEnd(t, l, AdminHandler(AdminOptions{Gatherer: reg, Ready: tt.ready, Routes: (&routes{}).add, Gate: g}))
		r, err := http.NewRequest(http.MethodGet, "http://"+l.Addr().String()+tt.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if tt.token != "" {
			r.Header.Set("Authorization", "Bearer "+tt.token)
		}
		client := &http.Client{Transport: &http.Transport{}}
		res, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		client.CloseIdleConnections()
		if res.StatusCode != tt.status || res.Close != tt.close {
			t.Errorf("GET %s with token %q = %d, which ends the connection: %v, want %d and %v", tt.path, tt.token, res.StatusCode, res.Close, tt.status, tt.close)
		}
	}
}

// serveUntilEnd serves until the test ends.
func serveUntilEnd(t *testing.T, l net.Listener, h http.Handler) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- ServeAdmin(ctx, l, h, slog.New(slog.DiscardHandler)) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("ServeAdmin() = %v, want nil", err)
		}
	})
}

// However many connections are opened, few are, who asks is answered, and it is told of.
func TestConnectionsAreBounded(t *testing.T) {
	reg, log := prometheus.NewRegistry(), &testkit.Buffer{}
	l, gate, err := Access{}.Listen("127.0.0.1:0", slog.New(slog.NewTextHandler(log, nil)), reg)
	if err != nil {
		t.Fatal(err)
	}
	serveUntilEnd(t, l, AdminHandler(AdminOptions{Gatherer: reg, Ready: func() error { return nil }, Gate: gate}))
	const opened = 500
	for range opened {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	var body string
	testkit.Eventually(t, "those that are too many are closed", func() error {
		var status int
		if status, body, err = get("http://" + l.Addr().String() + "/metrics"); err != nil || status != 200 {
			return fmt.Errorf("GET /metrics = %d, %w", status, err)
		}
		for line := range strings.Lines(body) {
			var n int
			if _, err := fmt.Sscanf(line, "sluice_admin_closed_connections_total %d", &n); err == nil && n >= opened+1-128 {
				return nil
			}
		}
		return fmt.Errorf("the metrics are\n%s", body)
	})
	if n := strings.Count(log.String(), "too many connections are open"); n < 1 || n > 3 { // one in ten seconds
		t.Errorf("%d lines of the log tell of it, want one: %s", n, log)
	}
}
