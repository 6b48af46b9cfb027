package testkit

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// echoAt serves at an address until the test ends, and answers with what it gets.
func echoAt(t *testing.T, network, at string) string {
	t.Helper()
	l, err := net.Listen(network, at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_, _ = io.Copy(conn, conn)
			}()
		}
	}()
	return l.Addr().String()
}

func echoed(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	_ = conn.SetDeadline(time.Now().Add(Patience))
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(text))
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != text {
		t.Fatalf("echoed %q, %v, want %q", got, err, text)
	}
}

// A link leads to TCP and to unix sockets. What it held passes later, and a reset ends what is there but lets new
// connections through.
func TestLink(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "link") // not t.TempDir: its path may be too long for a unix socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	for network, at := range map[string]string{"tcp": "127.0.0.1:0", "unix": filepath.Join(dir, "echo.sock")} {
		t.Run(network, func(t *testing.T) {
			l := NewLink(t, echoAt(t, network, at), 0)
			l.Delay.Store(int64(time.Millisecond))
			l.Jitter.Store(int64(time.Millisecond))
			conn, err := net.Dial(network, l.Addr)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			echoed(t, conn, "before")

			l.Hold()
			if _, err := io.WriteString(conn, "held"); err != nil {
				t.Fatal(err)
			}
			_ = conn.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
			if n, err := conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("Read of a link that stands still = %d, %v", n, err)
			}
			l.Stop(nil)
			_ = conn.SetReadDeadline(time.Now().Add(Patience))
			if _, err := io.ReadFull(conn, make([]byte, 4)); err != nil {
				t.Errorf("what was held does not arrive: %v", err)
			}

			l.Reset()
			want := error(syscall.ECONNRESET)
			if network == "unix" {
				want = io.EOF
			}
			if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, want) {
				t.Errorf("Read after a reset = %v, want %v", err, want)
			}
			again, err := net.Dial(network, l.Addr)
			if err != nil {
				t.Fatal(err)
			}
			defer again.Close()
			echoed(t, again, "after")
		})
	}
}

// A link whose rate is limited takes as long as that says.
func TestLinkRate(t *testing.T) {
	t.Parallel()
	l := NewLink(t, echoAt(t, "tcp", "127.0.0.1:0"), 0)
	conn, err := net.Dial("tcp", l.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	l.Rate.Store(100_000)
	began := time.Now()
	echoed(t, conn, string(make([]byte, 10_000)))
	if took := time.Since(began); took < 100*time.Millisecond {
		t.Errorf("10 kB at 100 kB/s took %v there and back", took)
	}
}
