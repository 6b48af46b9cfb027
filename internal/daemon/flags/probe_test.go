package flags

import (
	"errors"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-qos/sluice/internal/daemon"
	"github.com/sluice-qos/sluice/internal/testkit"
)

// serveAdmin serves a daemon's admin API by these flags, and returns its address.
func serveAdmin(t *testing.T, flags Admin, ready func() error) string {
	t.Helper()
	registry := prometheus.NewRegistry()
	l, gate, err := flags.Listen(slog.New(slog.DiscardHandler), registry)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() {
		served <- daemon.ServeAdmin(t.Context(), l, daemon.AdminHandler(daemon.AdminOptions{Gatherer: registry, Ready: ready, Gate: gate, Lost: func() string { return "3" }}), slog.New(slog.DiscardHandler))
	}()
	t.Cleanup(func() {
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

func TestProbe(t *testing.T) {
	dir := t.TempDir()
	cert, key := testkit.NewAuthority(t, dir).Issue(t, dir, time.Now().Add(time.Hour), "agent.example")
	secure := Admin{Address: "127.0.0.1:0", Cert: cert, Key: key}
	good := serveAdmin(t, Admin{Address: "127.0.0.1:0"}, func() error { return nil })
	bad := serveAdmin(t, Admin{Address: "127.0.0.1:0"}, func() error { return errors.New("no limits yet") })
	secure.Address = serveAdmin(t, secure, func() error { return nil })
	_, port, err := net.SplitHostPort(good)
	if err != nil {
		t.Fatal(err)
	}
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	nobody := testkit.FreeAddr(t)
	for _, tt := range []struct {
		name, what string
		flags      Admin
		want       string // of the error; "" for none
	}{
		{"a daemon that is ready", "ready", Admin{Address: good}, ""},
		{"one that listens on every address", "ready", Admin{Address: ":" + port}, ""},
		{"by every address of IPv4", "ready", Admin{Address: "0.0.0.0:" + port}, ""},
		{"by TLS, with a certificate of another name", "ready", secure, ""},
		{"one that is not ready", "ready", Admin{Address: bad}, "not ready: no limits yet; redis lost: shards 3"},
		{"but healthy", "healthy", Admin{Address: bad}, ""},
		{"nobody listens", "healthy", Admin{Address: nobody}, nobody + " does not answer: connect: connection refused"},
		{"no address", "healthy", Admin{Address: "%"}, `--admin "%": want host:port`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := ""
			if err := (Probe{tt.what}).Ask(t.Context(), tt.flags, testkit.Patience); err != nil {
				got = err.Error()
			}
			if got != tt.want {
				t.Errorf("Ask() = %q, want %q", got, tt.want)
			}
		})
	}
	// Nothing is ever written to a connection that nobody accepts.
	if err := (Probe{"healthy"}).Ask(t.Context(), Admin{Address: silent.Addr().String()}, time.Millisecond); err == nil || !strings.HasSuffix(err.Error(), " does not answer within 1ms") {
		t.Errorf("Ask() of one who never answers = %v", err)
	}
}
