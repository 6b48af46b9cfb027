package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/sluice-qos/sluice/internal/testkit"
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
			h := AdminHandler(AdminOptions{Gatherer: reg, Ready: func() error { return tt.err }, Reload: func() error { return tt.err }})
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
		h := AdminHandler(AdminOptions{Gatherer: prometheus.NewRegistry(), Ready: func() error { return tt.err }, Lost: func() string { return tt.lost }})
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
		done <- ServeAdmin(ctx, l, AdminHandler(AdminOptions{Gatherer: prometheus.NewRegistry()}), slog.New(slog.DiscardHandler))
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

// A client who never reads the answer must not keep memory and a connection for ever.
func TestAnswerThatNobodyReadsEnds(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	failed, done := make(chan error, 1), make(chan error, 1)
	go func() {
		done <- serveWithin(ctx, l, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, err := w.Write(make([]byte, 64<<20)) // more than fits in between
			failed <- err
		}), slog.New(slog.DiscardHandler), 200*time.Millisecond, testkit.Patience)
	}()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
	select {
	case err := <-failed:
		if err == nil {
			t.Error("the answer was written, though nobody reads it")
		}
	case <-time.After(testkit.Patience):
		t.Error("the answer is still being written")
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("serve() = %v", err)
	}
}

// Who writes something is to learn what became of it, though the process is to end.
func TestServeFinishesWhatIsUnderWay(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	asked, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- serveWithin(ctx, l, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			close(asked)
			select {
			case err := <-ended:
				ended <- err
				fmt.Fprint(w, "too late")
			case <-time.After(200 * time.Millisecond):
				fmt.Fprint(w, "in time")
			}
		}), slog.New(slog.DiscardHandler), testkit.Patience, testkit.Patience)
	}()
	go func() {
		<-asked
		cancel()
	}()
	if _, body, err := get("http://" + l.Addr().String()); body != "in time" || err != nil {
		t.Errorf("an answer under way at the end = %q, %v, want that serve() waits for it", body, err)
	}
	if err := <-ended; err != nil {
		t.Errorf("serve() = %v", err)
	}
}

func get(url string) (status int, body string, err error) {
	res, err := http.Get(url)
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	var b bytes.Buffer
	_, err = b.ReadFrom(res.Body)
	return res.StatusCode, b.String(), err
}
