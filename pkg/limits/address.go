package limits

import "net/netip"

// Anonymous reports whether a user's key says that the requests have no name: "~", which
// HAProxy writes for a request without one, an IPv4 address, an IPv6 address or the /64
// of one (2001:db8:1:2::).
func Anonymous(key string) bool {
	if key == "~" {
		return true
	}
	if !looksLikeAddress(key) {
		return false // nearly all names: what netip says of them would be allocated
	}
	_, err := netip.ParseAddr(key)
	return err == nil
}

// looksLikeAddress reports whether a name is four numbers of up to three digits with dots
// between them, or hex digits, dots and two or more colons. Every address is.
func looksLikeAddress(name string) bool {
	colons, numbers, digits := 0, 1, 0
	v4 := true
	for i := range len(name) {
		switch c := name[i]; {
		case c == ':':
			colons++
			v4 = false
		case c == '.':
			v4 = v4 && digits > 0
			numbers, digits = numbers+1, 0
		case c >= '0' && c <= '9':
			digits++
			v4 = v4 && digits <= 3
		case c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F':
			v4 = false
		default:
			return false
		}
	}
	return colons >= 2 || v4 && numbers == 4 && digits > 0
}
