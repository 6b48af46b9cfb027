package haproxy

import (
	"fmt"
	"net/netip"
	"regexp"
	"strings"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// listedPath is a path that can stand in a list: HAProxy reads a line as it is, but
// for blanks around it, and a request's path has printable ASCII alone.
var listedPath = regexp.MustCompile(`^/[!-~]*$`)

// exemptLists are the lines that the addresses and paths of a limit file add to the
// lists, by the list's name.
func exemptLists(e limits.Exempt) (map[string]string, error) {
	lists := map[string]string{}
	// In files rather than words of a rule, which has place for some sixty.
	for _, text := range e.Addresses {
		network, err := parseNetwork(text)
		if err != nil {
			return nil, fmt.Errorf("exempt address %q: want an address or a network such as 10.0.0.0/8", text)
		}
		lists["exempt-addresses.lst"] += network.String() + "\n"
	}
	for _, path := range e.Paths {
		name := "exempt-paths.lst"
		prefix, folder := strings.CutSuffix(path, "*")
		if folder {
			name = "exempt-prefixes.lst"
		}
		// A line break would make two lines of one path, and the second could exempt everything.
		if !listedPath.MatchString(prefix) {
			return nil, fmt.Errorf("exempt path %q: want a path as clients write it, from its first / on", path)
		}
		lists[name] += prefix + "\n"
	}
	return lists, nil
}

// parseNetwork reads an address or a network; one of IPv4 that is written as IPv6 is
// one of IPv4, as HAProxy sees clients.
func parseNetwork(text string) (netip.Prefix, error) {
	if addr, err := netip.ParseAddr(text); err == nil && addr.Zone() == "" {
		addr = addr.Unmap()
		return netip.PrefixFrom(addr, addr.BitLen()), nil
	}
	p, err := netip.ParsePrefix(text)
	if err != nil {
		return p, err
	}
	if a := p.Addr(); a.Is4In6() && p.Bits() >= 96 {
		p = netip.PrefixFrom(a.Unmap(), p.Bits()-96)
	}
	return p.Masked(), nil
}
