package limits

import (
	"net/netip"
	"strings"
)

// Anonymous reports whether a user's key says that the requests have no name: "~", which
// HAProxy writes for a request without one, an IPv4 address, an IPv6 address or the /64
// of one (2001:db8:1:2::).
func Anonymous(key string) bool {
	if key == "~" {
		return true
	}
	// ParseAddr allocates an error, so that other names, nearly all of them, must not get there.
	if strings.Trim(key, "0123456789abcdefABCDEF.:") != "" || strings.Count(key, ".") != 3 && !strings.Contains(key, "::") && strings.Count(key, ":") != 7 {
		return false
	}
	_, err := netip.ParseAddr(key)
	return err == nil
}
