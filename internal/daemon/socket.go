package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strings"
	"syscall"
)

// socketMode lets HAProxy in through the socket's group. To connect one needs
// the right to write.
const socketMode = 0o660

// Socket listens on "unix:/path" or "host:port", for a protocol without authentication that only HAProxy is to speak. A
// socket file that nobody listens on any more is replaced. What names the protocol.
func Socket(what, address string) (net.Listener, error) {
	l, err := socket(address)
	if err != nil {
		return nil, fmt.Errorf("listen for %s: %w", what, err)
	}
	return l, nil
}

func socket(address string) (net.Listener, error) {
	path, ok := strings.CutPrefix(address, "unix:")
	if !ok {
		return net.Listen("tcp", address)
	}
	// An agent that was killed leaves its socket behind, and the kernel lets nobody listen on a path that is
	// there.
	if err := removeStale(path); err != nil {
		return nil, err
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	// The umask decides what a new socket allows. HAProxy runs as another user of the same group.
	if err := os.Chmod(path, socketMode); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// removeStale removes a socket file that a dead process left. It removes
// neither a socket that answers nor a file of another kind.
func removeStale(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	// A wrong path must not cost the operator a file.
	if info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("%s exists and is not a socket", path)
	}
	// Only asking tells a socket that is served from one that is left over.
	conn, err := net.Dial("unix", path)
	if err == nil {
		_ = conn.Close()
		return fmt.Errorf("%s: %w", path, syscall.EADDRINUSE)
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return err
	}
	return os.Remove(path)
}
