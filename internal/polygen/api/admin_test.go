package api

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
)

func TestHandler(t *testing.T) {
	reg := prometheus.NewRegistry()
	reg.MustRegister(prometheus.NewCounter(prometheus.CounterOpts{Name: "sluice_test_total"}))
	broken := errors.New("limits.yaml:3:1: no")
	tests := []struct {
		name, method, path string
		err                error // of Ready and Reload
		status             int
		body               string
	}{
		{"metrics", "GET", "/metrics", nil, 200, "sluice_test_total 0"},
		{"healthy whatever happens", "GET", "/-/healthy", broken, 200, "healthy"},
		{"ready", "GET", "/-/ready", nil, 200, "ready"},
		{"not ready says why", "GET", "/-/ready", broken, 503, "limits.yaml:3:1: no"},
		{"reload", "POST", "/-/reload", nil, 200, "reloaded"},
		{"a broken file is told with its position", "POST", "/-/reload", broken, 400, "limits.yaml:3:1: no"},
		{"reload changes something: GET will not do", "GET", "/-/reload", nil, 405, ""},
		{"nothing else", "GET", "/x", nil, 404, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := Handler(Options{Gatherer: reg, Ready: func() error { return tt.err }, Reload: func() error { return tt.err }})
			r := httptest.NewRequest(tt.method, tt.path, nil)
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if w.Code != tt.status || !strings.Contains(w.Body.String(), tt.body) {
				t.Errorf("%s %s = %d %q, want %d and %q", tt.method, tt.path, w.Code, w.Body, tt.status, tt.body)
			}
		})
	}
}

// An agent without some shards of Redis is ready, and names them.
func TestReadyNamesLostShards(t *testing.T) {
	for _, tt := range []struct {
		err          error
		lost, accept string
		status       int
		want         string
	}{
		{nil, "3 7 registry", "", 200, "ready\nredis lost: shards 3 7 registry\n"},
		{nil, "3 7 registry", "application/json", 200, `{"ready":true,"redis_lost":"3 7 registry"}` + "\n"},
		{nil, "", "application/json", 200, `{"ready":true}` + "\n"},
		{errors.New("not serving yet"), "all", "", 503, "not serving yet\nredis lost: shards all\n"},
		{errors.New("not serving yet"), "all", "application/json", 503, `{"ready":false,"reason":"not serving yet","redis_lost":"all"}` + "\n"},
	} {
		h := Handler(Options{Gatherer: prometheus.NewRegistry(), Ready: func() error { return tt.err }, Lost: func() string { return tt.lost }})
		r, w := httptest.NewRequest("GET", "/-/ready", nil), httptest.NewRecorder()
		r.Header.Set("Accept", tt.accept)
		h.ServeHTTP(w, r)
		if w.Code != tt.status || w.Body.String() != tt.want {
			t.Errorf("GET /-/ready as %q while %q are lost = %d %q, want %d %q", tt.accept, tt.lost, w.Code, w.Body, tt.status, tt.want)
		}
	}
}

func TestServeEndsWithItsContext(t *testing.T) {
	defer goleak.VerifyNone(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		done <- Serve(ctx, l, Handler(Options{Gatherer: prometheus.NewRegistry()}), slog.New(slog.DiscardHandler))
	}()
	res, err := http.Get("http://" + l.Addr().String() + "/-/healthy")
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, res.Body)
	res.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Serve() = %v, want nil", err)
	}
}
