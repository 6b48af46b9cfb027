package agent

import (
	"net"
	"syscall"
)

// processOf is the process at the other end of a unix socket, 0 if it cannot be
// told.
func processOf(conn net.Conn) int {
	unix, ok := conn.(*net.UnixConn)
	// Over TCP nobody says which process it is.
	if !ok {
		return 0
	}
	raw, err := unix.SyscallConn()
	if err != nil {
		return 0
	}
	pid := 0
	err = raw.Control(func(fd uintptr) {
		if c, err := syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED); err == nil {
			pid = int(c.Pid)
		}
	})
	if err != nil {
		return 0
	}
	return pid
}
