package daemon

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// What pages of other sites may do: lead here, and nothing else.
func TestOtherSites(t *testing.T) {
	t.Parallel()
	h := AdminHandler(AdminOptions{Gatherer: prometheus.NewRegistry(), Reload: func() error { return nil }})
	from := func(site, mode, to string) http.Header {
		return http.Header{"Sec-Fetch-Site": {site}, "Sec-Fetch-Mode": {mode}, "Sec-Fetch-Dest": {to}}
	}
	origin := func(o string) http.Header { return http.Header{"Origin": {o}} }
	for _, tt := range []struct {
		name, method, path string
		header             http.Header
		want               int
	}{
		{"a link", "GET", "/metrics", from("cross-site", "navigate", "document"), 200},
		{"a link of a neighbour", "GET", "/metrics", from("same-site", "navigate", "document"), 200},
		{"a frame", "GET", "/metrics", from("cross-site", "navigate", "iframe"), 403},
		{"an old frame", "GET", "/metrics", from("cross-site", "navigate", "frame"), 403},
		{"a neighbour's frame", "GET", "/metrics", from("same-site", "navigate", "iframe"), 403},
		{"an object", "GET", "/metrics", from("cross-site", "navigate", "object"), 403},
		{"an embedded one", "GET", "/metrics", from("cross-site", "navigate", "embed"), 403},
		{"a picture", "GET", "/metrics", from("cross-site", "no-cors", "image"), 403},
		{"a script's question", "GET", "/metrics", from("cross-site", "cors", "empty"), 403},
		{"a document that is no navigation", "GET", "/metrics", from("cross-site", "cors", "document"), 403},
		{"no word of where to", "GET", "/metrics", http.Header{"Sec-Fetch-Site": {"cross-site"}, "Sec-Fetch-Mode": {"navigate"}}, 403},
		{"an address that is typed", "GET", "/metrics", http.Header{"Sec-Fetch-Site": {"none"}}, 200},
		{"a form that leads here", "POST", "/-/reload", from("cross-site", "navigate", "document"), 403},
		{"this page", "GET", "/metrics", from("same-origin", "cors", "empty"), 200},
		{"no browser", "GET", "/metrics", nil, 200},
		{"a form of a browser that says nothing but its origin", "POST", "/-/reload", origin("http://evil.example"), 403},
		{"one of another port", "POST", "/-/reload", origin("http://example.com:8080"), 403},
		{"one that hides its origin", "POST", "/-/reload", origin("null"), 403},
		{"a page of this address", "POST", "/-/reload", origin("http://example.com"), 200},
		{"curl", "POST", "/-/reload", nil, 200},
	} {
		r := httptest.NewRequest(tt.method, tt.path, nil)
		for k, v := range tt.header {
			r.Header[k] = v
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != tt.want {
			t.Errorf("%s: %s %s with %v = %d, want %d", tt.name, tt.method, tt.path, tt.header, w.Code, tt.want)
		}
	}
}

// Everybody may know what is not ready, and nobody where it is.
func TestReadyTellsNoAddress(t *testing.T) {
	refused := &net.OpError{Op: "dial", Net: "tcp", Addr: &net.TCPAddr{IP: net.IPv4(192, 0, 2, 7), Port: 6379}, Err: errors.New("connection refused")}
	bus := fmt.Errorf("lead: %w: %w", errors.New("redis is unavailable"), refused)
	for _, tt := range []struct {
		name string
		err  error
		want string
	}{
		{"polygen without Redis", fmt.Errorf("redis cannot be reached: %w", bus), "redis cannot be reached (the log says why)"},
		{"in sluice up", fmt.Errorf("polygen: redis cannot be reached: %w", bus), "polygen: redis cannot be reached (the log says why)"},
		{"the agent's own words", errors.New("no peers session with HAProxy"), "no peers session with HAProxy"},
		{"more than one cause", bus, "lead (the log says why)"},
		{"nothing but a cause", fmt.Errorf("%w", refused), "not ready (the log says why)"},
	} {
		h := AdminHandler(AdminOptions{Gatherer: prometheus.NewRegistry(), Ready: func() error { return tt.err }})
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", "/-/ready", nil))
		if got := strings.TrimSuffix(w.Body.String(), "\n"); w.Code != 503 || got != tt.want {
			t.Errorf("%s: GET /-/ready = %d %q, want 503 %q", tt.name, w.Code, got, tt.want)
		}
	}
}
