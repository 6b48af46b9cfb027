package proctest

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
)

// ports are those that this process has been given.
var ports struct {
	sync.Mutex
	file  *os.File // in which a lock on the byte of a port's number reserves it
	given map[int]bool
}

// FreeAddr is a loopback address that nobody listens on, and that no test is given until
// the test process ends: two HAProxies can listen on one port without noticing. The port
// is below those that the kernel gives to who names none, so that no connection of
// another test takes it before its server is there.
func FreeAddr(t testing.TB) string {
	t.Helper()
	const first, last = 10000, 32767
	for range 1000 {
		port := first + rand.IntN(last-first+1)
		addr := fmt.Sprintf("127.0.0.1:%d", port)
		reserved, err := reserve(port)
		if err != nil {
			t.Fatal(err)
		}
		if !reserved {
			continue
		}
		if l, err := net.Listen("tcp", addr); err == nil {
			l.Close()
			return addr
		}
	}
	t.Fatal("no free port that was not given before")
	return ""
}

// reserve reports whether the port is this process's from now on, and was nobody's before.
// The lock ends with the process.
func reserve(port int) (bool, error) {
	ports.Lock()
	defer ports.Unlock()
	if ports.given[port] {
		return false, nil
	}
	if ports.file == nil {
		name := filepath.Join(os.TempDir(), fmt.Sprintf("sluice-test-ports-%d", os.Getuid()))
		file, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return false, fmt.Errorf("reserve a port: %w", err)
		}
		ports.file, ports.given = file, make(map[int]bool)
	}
	lock := syscall.Flock_t{Type: syscall.F_WRLCK, Whence: io.SeekStart, Start: int64(port), Len: 1}
	switch err := syscall.FcntlFlock(ports.file.Fd(), syscall.F_SETLK, &lock); err {
	case nil:
		ports.given[port] = true
		return true, nil
	case syscall.EAGAIN, syscall.EACCES:
		return false, nil // another test process has it
	default:
		return false, fmt.Errorf("reserve port %d: %w", port, err)
	}
}
