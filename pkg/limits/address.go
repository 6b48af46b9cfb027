package limits

import "strings"

// Anonymous reports whether a user's key says that the requests have no name: "~", which
// HAProxy writes for a request without one, an IPv4 address, an IPv6 address or the /64
// of one (2001:db8:1:2::). A hidden key says so if it marks the name as an address. Of a
// key at an endpoint only the part after the endpoint counts.
func Anonymous(key string) bool {
	_, key = SplitEndpoint(key)
	if IsHidden(key) {
		return key[1+2*idBytes] == addressMark
	}
	return key == "~" || isIPv4(key) || isIPv6(key)
}

// isIPv4 reports whether s is four numbers from 0 to 255 without leading zeros.
func isIPv4(s string) bool {
	if len(s) > len("255.255.255.255") {
		return false
	}
	for i := range 4 {
		part, rest, more := strings.Cut(s, ".")
		if more != (i < 3) || part == "" || len(part) > 3 || len(part) > 1 && part[0] == '0' {
			return false
		}
		n := 0
		for _, c := range []byte(part) {
			if c < '0' || c > '9' {
				return false
			}
			n = 10*n + int(c-'0')
		}
		if n > 255 {
			return false
		}
		s = rest
	}
	return true
}

// isIPv6 reports whether s is an IPv6 address: eight groups of one to four hex
// digits, or fewer with one "::", of which the last two may be an IPv4 address.
func isIPv6(s string) bool {
	if len(s) > len("ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255") || !strings.Contains(s, ":") {
		return false
	}
	before, after, short := strings.Cut(s, "::")
	if !short {
		return groups(s, true) == 8
	}
	if strings.Contains(after, "::") {
		return false
	}
	n, m := 0, 0
	if before != "" {
		if n = groups(before, false); n < 0 {
			return false
		}
	}
	if after != "" {
		if m = groups(after, true); m < 0 {
			return false
		}
	}
	return n+m <= 7
}

// groups counts the 16-bit groups of a part of an IPv6 address, or returns -1 if it
// is not one. The last may be an IPv4 address, which counts as two, if it ends there.
func groups(s string, ends bool) int {
	for n := 0; ; {
		part, rest, more := strings.Cut(s, ":")
		if !more && ends && isIPv4(part) {
			return n + 2
		}
		if part == "" || len(part) > 4 || strings.Trim(part, "0123456789abcdefABCDEF") != "" {
			return -1
		}
		n++
		if !more {
			return n
		}
		s = rest
	}
}
