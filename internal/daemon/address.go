package daemon

import (
	"fmt"
	"net"
	"strings"
)

// Loopback reports whether only this machine reaches a host, a name or an address.
func Loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// Local refuses the address, "unix:/path" or "host:port", of a protocol without
// authentication if other machines can reach it. What names the protocol.
func Local(what, address string) error {
	if strings.HasPrefix(address, "unix:") {
		return nil
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("%s address %q: want unix:/path or host:port", what, address)
	}
	if !Loopback(host) {
		return fmt.Errorf("%s address %q can be reached from other machines, and the protocol has no authentication: use unix:/path, or 127.0.0.1", what, address)
	}
	return nil
}
