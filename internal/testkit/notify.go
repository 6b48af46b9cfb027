package testkit

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// TellsSystemd starts a service with a Redis and what it needs to find systemd, waits until it has told each of what is wanted
// and that it lives, and ends it.
func TellsSystemd(t testing.TB, start func(redis string, env ...string) *Process, want ...string) {
	t.Helper()
	env, heard := systemd(t, 300*time.Millisecond)
	_, redis := Redis(t)
	p := start(redis, env...)
	for _, w := range append(want, "WATCHDOG=1") {
		heard(w)
	}
	if err := p.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	heard("STOPPING=1")
}

// systemd listens as systemd does to a service with Type=notify and WatchdogSec. heard waits until the service has told what
// is wanted, and fails the test with all that it has told.
func systemd(t testing.TB, watchdog time.Duration) (env []string, heard func(want string)) {
	t.Helper()
	dir, err := os.MkdirTemp("", "notify") // not t.TempDir: its path may be too long for a unix socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	address := filepath.Join(dir, "notify.sock")
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: address, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { socket.Close() })
	var told []string
	message := make([]byte, 4096)
	return []string{"NOTIFY_SOCKET=" + address, "WATCHDOG_USEC=" + strconv.FormatInt(watchdog.Microseconds(), 10)}, func(want string) {
		t.Helper()
		_ = socket.SetReadDeadline(time.Now().Add(Patience))
		for {
			n, err := socket.Read(message)
			if err != nil {
				t.Fatalf("systemd heard %q and not %s: %v", told, want, err)
			}
			if told = append(told, string(message[:n])); string(message[:n]) == want {
				return
			}
		}
	}
}
