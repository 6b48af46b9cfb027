//go:build !linux

package agent

import "net"

// processOf is the process at the other end of a unix socket: not told here.
func processOf(net.Conn) int { return 0 }
