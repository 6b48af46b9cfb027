package daemon

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/internal/testkit"
)

// rig is a server of three connections at most.
type rig struct {
	*Listener
	closed atomic.Int64
	hold   chan struct{} // of those who ask for /hold
	held   chan struct{}
}

func startServer(t *testing.T, secure bool) *rig {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{hold: make(chan struct{}), held: make(chan struct{}, 3)}
	r.Listener = BoundConnections(l, 3, func(net.Conn) { r.closed.Add(1) })
	server := &http.Server{
		ReadHeaderTimeout: time.Hour,
		ErrorLog:          log.New(io.Discard, "", 0),
		Handler: http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			if q.URL.Path == "/hold" {
				r.held <- struct{}{}
				<-r.hold
			}
			fmt.Fprint(w, "well")
		}),
	}
	TrackRequests(server)
	var serving net.Listener = r.Listener
	if secure {
		certified := httptest.NewTLSServer(nil)
		serving = tls.NewListener(serving, &tls.Config{Certificates: certified.TLS.Certificates})
		certified.Close()
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(serving)
	}()
	t.Cleanup(func() {
		_ = server.Close()
		<-done
	})
	return r
}

type client struct {
	net.Conn
	answers *bufio.Reader
}

func (r *rig) dial(t *testing.T, secure bool) *client {
	t.Helper()
	c, err := net.Dial("tcp", r.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if secure {
		c = tls.Client(c, &tls.Config{InsecureSkipVerify: true})
	}
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(testkit.Patience))
	return &client{c, bufio.NewReader(c)}
}

func (c *client) send(path string) error {
	_, err := fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", path)
	return err
}

// answered reads an answer.
func (c *client) answered() error {
	res, err := http.ReadResponse(c.answers, nil)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	_, err = io.ReadAll(res.Body)
	return err
}

func (c *client) ask(path string) error { return errors.Join(c.send(path), c.answered()) }

func (r *rig) awaitOpen(t *testing.T, n int) {
	t.Helper()
	testkit.Eventually(t, "connections are counted", func() error {
		if got := r.Connections(); got != n {
			return fmt.Errorf("%d are open, want %d", got, n)
		}
		return nil
	})
}

// The one that has been idle for longest makes room, whether it never asked or has asked.
func TestTheLongestIdleMakesRoom(t *testing.T) {
	for name, secure := range map[string]bool{"HTTP": false, "TLS": true} {
		t.Run(name, func(t *testing.T) {
			r := startServer(t, secure)
			first, second := r.dial(t, secure), r.dial(t, secure)
			for _, c := range []*client{first, second, first} { // so that the second one is idle for longest
				if err := c.ask("/"); err != nil {
					t.Fatal(err)
				}
			}
			silent, err := net.Dial("tcp", r.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer silent.Close()
			r.awaitOpen(t, 3)
			if err := r.dial(t, secure).ask("/"); err != nil {
				t.Errorf("one more is not answered: %v", err)
			}
			if err := second.answered(); err == nil {
				t.Error("the one that was idle for longest is still open")
			}
			if err := r.dial(t, secure).ask("/"); err != nil { // the first makes room
				t.Errorf("another one is not answered: %v", err)
			}
			if err := r.dial(t, secure).ask("/"); err != nil { // the silent one does
				t.Errorf("a third one is not answered: %v", err)
			}
			_ = silent.SetDeadline(time.Now().Add(testkit.Patience))
			if _, err := silent.Read(make([]byte, 1)); err == nil {
				t.Error("the one that never asked is still open")
			}
			if open, closed := r.Connections(), r.closed.Load(); open != 3 || closed != 3 {
				t.Errorf("%d are open and %d were closed, want 3 and 3", open, closed)
			}
		})
	}
}

// What is in use stays: then the new one is closed.
func TestThoseInUseStay(t *testing.T) {
	for name, secure := range map[string]bool{"HTTP": false, "TLS": true} {
		t.Run(name, func(t *testing.T) {
			r := startServer(t, secure)
			var users []*client
			for range 3 {
				c := r.dial(t, secure)
				if err := c.send("/hold"); err != nil {
					t.Fatal(err)
				}
				<-r.held
				users = append(users, c)
			}
			if err := r.dial(t, secure).ask("/"); err == nil {
				t.Error("a fourth one is answered")
			}
			testkit.Eventually(t, "the fourth one counts as closed", func() error { // after the client sees it
				if closed := r.closed.Load(); closed != 1 {
					return fmt.Errorf("%d were closed, want 1", closed)
				}
				return nil
			})
			close(r.hold)
			for _, c := range users {
				if err := c.answered(); err != nil {
					t.Errorf("one that was in use has %v", err)
				}
				c.Close()
			}
			r.awaitOpen(t, 0)
			if err := r.dial(t, secure).ask("/"); err != nil {
				t.Errorf("with room again one is not answered: %v", err)
			}
		})
	}
}

func TestDescriptorsAreDivided(t *testing.T) {
	for _, tt := range []struct {
		descriptors, agents int
		origin              bool
		admin, spoe         int
	}{
		{1 << 20, 1, false, 128, 16384},
		{20000, 1, false, 128, 16384},
		{20000, 1, true, 128, 9888},
		{20000, 16, true, 128, 603},
		{4096, 1, false, 128, 3872},
		{1024, 1, false, 128, 800},
		{256, 1, false, 32, 160},
		{64, 1, false, 8, 40},
		{1, 1, false, 0, 1},
	} {
		admin, spoe := ForAdmin(tt.descriptors), ForSPOE(tt.descriptors, tt.agents, tt.origin)
		if admin != tt.admin || spoe != tt.spoe {
			t.Errorf("of %d descriptors the admin API has %d, and each of %d agents (origin: %v) %d, want %d and %d",
				tt.descriptors, admin, tt.agents, tt.origin, spoe, tt.admin, tt.spoe)
		}
		if sum := admin + tt.agents*spoe; tt.descriptors >= 64 && (sum >= tt.descriptors || tt.origin && sum+tt.agents*spoe >= tt.descriptors) {
			t.Errorf("of %d descriptors nothing is left", tt.descriptors)
		}
	}
}

func TestLocal(t *testing.T) {
	for address, want := range map[string]string{
		"unix:/run/sluice/spoa.sock": "",
		"unix:relative":              "",
		"127.0.0.1:9000":             "",
		"127.9.9.9:9000":             "",
		"[::1]:9000":                 "",
		"localhost:9000":             "",
		":9000":                      `SPOE address ":9000" can be reached from other machines, and the protocol has no authentication: use unix:/path, or 127.0.0.1`,
		"0.0.0.0:9000":               `SPOE address "0.0.0.0:9000" can be reached from other machines, and the protocol has no authentication: use unix:/path, or 127.0.0.1`,
		"[::]:9000":                  `SPOE address "[::]:9000" can be reached from other machines, and the protocol has no authentication: use unix:/path, or 127.0.0.1`,
		"10.0.0.7:9000":              `SPOE address "10.0.0.7:9000" can be reached from other machines, and the protocol has no authentication: use unix:/path, or 127.0.0.1`,
		"edge.example:9000":          `SPOE address "edge.example:9000" can be reached from other machines, and the protocol has no authentication: use unix:/path, or 127.0.0.1`,
		"/run/sluice/spoa.sock":      `SPOE address "/run/sluice/spoa.sock": want unix:/path or host:port`,
		"":                           `SPOE address "": want unix:/path or host:port`,
	} {
		got := ""
		if err := Local("SPOE", address); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("Local(%q) = %q, want %q", address, got, want)
		}
	}
}
