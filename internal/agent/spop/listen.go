package spop

import (
	"net"

	"github.com/sluice-qos/sluice/internal/daemon"
)

// Listen listens on "unix:/path" or "host:port". SPOP has no authentication: anybody who reaches
// the address can ask for verdicts and so use up a user's limit. Prefer the
// unix socket, and bind TCP to loopback.
func Listen(address string) (net.Listener, error) { return daemon.Socket("SPOE", address) }
