package limits

import "net/netip"

// Anonymous reports whether a user's key says that the requests have no name: "~", which
// HAProxy writes for a request without one, an IPv4 address, an IPv6 address or the /64
// of one (2001:db8:1:2::). A hidden key says so if it marks the name as an address. Of a
// key at an endpoint only the part after the endpoint counts.
func Anonymous(key string) bool {
	_, key = SplitEndpoint(key)
	// Of a hidden name nothing can be seen but the mark that HAProxy has set.
	if IsHidden(key) {
		return key[1+2*idBytes] == addressMark
	}
	if key == "~" {
		return true
	}
	if !looksLikeAddress(key) {
		return false // nearly all names: what netip says of them would be allocated
	}
	_, err := netip.ParseAddr(key)
	return err == nil
}
