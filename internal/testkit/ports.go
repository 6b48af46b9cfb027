package testkit

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
	return FreeAddrs(t, 1)
}

// FreeAddrs is FreeAddr for the first of n ports in a row.
func FreeAddrs(t testing.TB, n int) string {
	t.Helper()
	const first, last = 10000, 32767
	for range 1000 {
		port := first + rand.IntN(last-first+2-n)
		free, err := reserveFree(port, n)
		if err != nil {
			t.Fatal(err)
		}
		if free {
			return loopback(port)
		}
	}
	t.Fatalf("no %d free ports in a row that were not given before", n)
	return ""
}

func loopback(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }

// reserveFree reserves n ports, and reports whether it has got all and nobody listens on one.
func reserveFree(first, n int) (bool, error) {
	for port := first; port < first+n; port++ {
		reserved, err := reserve(port)
		if err != nil || !reserved {
			return false, err
		}
		l, err := net.Listen("tcp", loopback(port))
		if err != nil {
			return false, nil
		}
		l.Close()
	}
	return true, nil
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
