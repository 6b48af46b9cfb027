package api

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/internal/daemon"
	"github.com/sluice-qos/sluice/internal/testkit"
)

// operator remembers who asked for an override.
type operator struct {
	tool
	by string
}

func (o *operator) Override(ctx context.Context, a api.OverrideRequest) (api.Override, error) {
	o.by = a.By
	return o.tool.Override(ctx, a)
}

// polygens are one that leads and a standby.
type polygens struct {
	asked   operator
	echo    *echo
	leader  string // its address
	standby http.Handler
	leads   atomic.Pointer[api.Leader] // as the standby knows it; nil: the standby leads
}

func startPolygens(t *testing.T, gate *daemon.Gate, o ForwardOptions) *polygens {
	t.Helper()
	p := &polygens{echo: &echo{}}
	s := httptest.NewServer(daemon.AdminHandler(daemon.AdminOptions{Gatherer: prometheus.NewRegistry(), Ready: func() error { return nil }, Gate: gate, Routes: Routes(p.echo, nil, &p.asked)}))
	t.Cleanup(s.Close)
	p.leader = s.URL
	p.leads.Store(&api.Leader{Name: "one", Address: s.URL})
	p.standby = p.handler(t, o)
	return p
}

// handler is that of a standby.
func (p *polygens) handler(t *testing.T, o ForwardOptions) http.Handler {
	t.Helper()
	o.Logger = slog.New(slog.DiscardHandler)
	o.Leader = func() (api.Leader, bool) {
		if l := p.leads.Load(); l != nil {
			return *l, true
		}
		return api.Leader{}, false
	}
	f, err := NewForwarder(o)
	testkit.Must(t, err)
	t.Cleanup(func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.transport != nil {
			f.transport.CloseIdleConnections()
		}
	})
	return daemon.AdminHandler(daemon.AdminOptions{Gatherer: prometheus.NewRegistry(), Ready: func() error { return nil }, Forward: f.Wrap, Routes: Routes(&echo{}, nil, &tool{})})
}

func askOf(h http.Handler, method, path, body string, header http.Header) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Host = "localhost"
	r.Header.Set("Content-Type", "application/json")
	for name, v := range header {
		r.Header[name] = v
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// A standby has the polygen that leads answer, and itself what is about its own process.
func TestForward(t *testing.T) {
	p := startPolygens(t, nil, ForwardOptions{})
	for _, tt := range []struct {
		method, path string
		status       int
		asked        string
	}{
		{"GET", "/api/v1/users?sort=rate&n=7", 200, "users by rate, 7"},
		{"GET", "/api/v1/users/a%2Fb%20c", 200, `user "a/b c"`},
		{"GET", "/api/v1/users?n=0", 400, ""},
		{"GET", "/", 200, ""},
		{"GET", "/metrics", 200, ""},
		{"GET", "/-/ready", 200, ""},
	} {
		p.echo.asked = ""
		if w := askOf(p.standby, tt.method, tt.path, "", nil); w.Code != tt.status || p.echo.asked != tt.asked {
			t.Errorf("%s %s = %d %s, the leader was asked for %q, want %d and %q", tt.method, tt.path, w.Code, w.Body, p.echo.asked, tt.status, tt.asked)
		}
	}
	w := askOf(p.standby, "PUT", "/api/v1/overrides/alice", `{"reason":"launch","limits":"pro"}`, http.Header{"Origin": {"http://localhost"}})
	if w.Code != 200 || p.asked.by != "anonymous from 127.0.0.1 for 192.0.2.1" {
		t.Errorf("an override = %d %s, by %q, want it by the client, for whom the standby asks", w.Code, w.Body, p.asked.by)
	}
	if w := askOf(p.standby, "PUT", "/api/v1/overrides/alice", `{"reason":"launch","limits":"pro"}`, http.Header{"Origin": {"http://elsewhere"}}); w.Code != 403 {
		t.Errorf("an override by a page of elsewhere = %d, want 403", w.Code)
	}
	p.leads.Store(nil)
	p.echo.asked = "nothing"
	if w := askOf(p.standby, "GET", "/api/v1/instances", "", nil); w.Code != 200 || p.echo.asked != "nothing" {
		t.Errorf("one that leads = %d, and asked another one for %q", w.Code, p.echo.asked)
	}
}

// A token is the leader's to judge, too.
func TestForwardToken(t *testing.T) {
	const token = "a-token-of-an-operator"
	gate, _ := gated(t, "ops "+token+"\n")
	p := startPolygens(t, gate, ForwardOptions{})
	for given, status := range map[string]int{"Bearer " + token: 200, "Bearer another-token-altogether": 401, "": 401} {
		header := http.Header{}
		if given != "" {
			header.Set("Authorization", given)
		}
		if w := askOf(p.standby, "GET", "/api/v1/instances", "", header); w.Code != status {
			t.Errorf("with %q: %d %s, want %d", given, w.Code, w.Body, status)
		}
	}
	askOf(p.standby, "PUT", "/api/v1/overrides/alice", `{"reason":"launch","limits":"pro"}`, http.Header{"Authorization": {"Bearer " + token}})
	if want := "ops from 127.0.0.1 for 192.0.2.1"; p.asked.by != want {
		t.Errorf("an override with a token is by %q, want %q", p.asked.by, want)
	}
}

// What cannot be forwarded says why, and which flag to set.
func TestForwardFails(t *testing.T) {
	p := startPolygens(t, nil, ForwardOptions{})
	for _, tt := range []struct{ name, address, forwarded, want string }{
		{"nothing listens", "http://127.0.0.1:1", "", "polygen one leads, and cannot be reached at http://127.0.0.1:1 from here (connect: connection refused): " + adviseAddress},
		{"tokens would be sent in the clear", "http://192.0.2.1:9090", "", `polygen one leads: address "http://192.0.2.1:9090": want https, because clients' tokens are sent there: ` + adviseAddress},
		{"no address", "", "", `polygen one leads: address "": want http://host:port or https://host:port: ` + adviseAddress},
		{"forwarded once", p.leader, "192.0.2.7", "polygen one leads, and the request was forwarded to another one: ask again. If that lasts, the address " + p.leader + " leads to the wrong polygen: " + adviseAddress},
	} {
		p.leads.Store(&api.Leader{Name: "one", Address: tt.address})
		header := http.Header{}
		if tt.forwarded != "" {
			header.Set(forwardedHeader, tt.forwarded)
		}
		for path, want := range map[string]string{"/api/v1/users": fmt.Sprintf("{%q:%q}\n", "error", tt.want), "/": tt.want + "\n"} {
			w := askOf(p.standby, "GET", path, "", header)
			if got := strings.ReplaceAll(w.Body.String(), `\u0027`, "'"); w.Code != 503 || got != want {
				t.Errorf("%s: %s = %d %s, want 503 %s", tt.name, path, w.Code, got, want)
			}
		}
	}
}

// A leader's certificate is trusted by its authority, or for having the key that the standby has itself.
func TestForwardTLS(t *testing.T) {
	dir := t.TempDir()
	ca := testkit.NewAuthority(t, dir)
	until := time.Now().Add(time.Hour)
	cert, key := ca.Issue(t, dir, until) // for 127.0.0.1
	gateOf := func(cert, key string) *daemon.Gate {
		g, err := daemon.NewGate(daemon.Access{Cert: cert, Key: key}, slog.New(slog.DiscardHandler), nil)
		testkit.Must(t, err)
		return g
	}
	serve := func(cert, key string) string {
		l, g, err := daemon.Access{Cert: cert, Key: key}.Listen("127.0.0.1:0", slog.New(slog.DiscardHandler), nil)
		testkit.Must(t, err)
		serveUntilEnd(t, l, daemon.AdminHandler(daemon.AdminOptions{Gatherer: prometheus.NewRegistry(), Ready: func() error { return nil }, Gate: g, Routes: Routes(&echo{}, nil, nil)}))
		_, port, _ := net.SplitHostPort(l.Addr().String())
		return port
	}
	cert2, key2 := ca.Issue(t, t.TempDir(), until)
	for _, tt := range []struct {
		name    string
		address string
		o       ForwardOptions
		want    string
	}{
		{"the same key", "https://localhost:" + serve(cert, key), ForwardOptions{Gate: gateOf(cert, key)}, ""},
		{"by the authority", "https://127.0.0.1:" + serve(cert2, key2), ForwardOptions{Gate: gateOf(cert, key), CA: ca.File}, ""},
		{"by nobody", "https://127.0.0.1:" + serve(cert2, key2), ForwardOptions{Gate: gateOf(cert, key)}, "set --leader-ca of each polygen to the CA of the others' --admin-cert, or --advertise to a name in it"},
		{"for another name", "https://localhost:" + serve(cert, key), ForwardOptions{Gate: gateOf(cert2, key2), CA: ca.File}, "set --leader-ca of each polygen to the CA of the others' --admin-cert, or --advertise to a name in it"},
	} {
		p := &polygens{}
		p.leads.Store(&api.Leader{Name: "one", Address: tt.address})
		w := askOf(p.handler(t, tt.o), "GET", "/api/v1/instances", "", nil)
		body, _ := io.ReadAll(w.Body)
		if ok := w.Code == 200; ok != (tt.want == "") || !ok && !strings.Contains(strings.ReplaceAll(string(body), `\u0027`, "'"), tt.want) {
			t.Errorf("%s: %d %s, want %q", tt.name, w.Code, body, tt.want)
		}
	}
	if _, err := NewForwarder(ForwardOptions{CA: key}); err == nil || !strings.HasPrefix(err.Error(), "--leader-ca: ") {
		t.Errorf("NewForwarder = %v, want that the file has no certificate", err)
	}
}

// A stream comes through as it is written, ends with the reader, and with the server.
func TestForwardStream(t *testing.T) {
	l := newTap()
	leader, _, _ := serving(t, daemon.AdminHandler(daemon.AdminOptions{Gatherer: prometheus.NewRegistry(), Routes: Routes(l, l, nil)}))
	p := &polygens{}
	p.leads.Store(&api.Leader{Name: "one", Address: "http://" + leader})
	standby, stop, ended := serving(t, p.handler(t, ForwardOptions{}))
	for _, end := range []func(res *http.Response){
		func(res *http.Response) { res.Body.Close() },
		func(*http.Response) { stop() },
	} {
		res, r := watching(t, "http://"+standby+"/api/v1/live")
		wantBlock(t, r, ": the stream begins")
		for n := range 3 {
			l.messages <- &api.Message{Event: "live", Value: n}
			wantBlock(t, r, fmt.Sprintf("event: live\ndata: %d", n))
		}
		end(res)
		l.awaitStop(t)
	}
	if err := <-ended; err != nil {
		t.Errorf("Serve = %v", err)
	}
}
