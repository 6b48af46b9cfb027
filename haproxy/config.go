package haproxy

import (
	"fmt"
	"net/netip"
	"regexp"
	"strings"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// Config is what Write can set.
type Config struct {
	Env           []string // variables of the table in haproxy.cfg, as "SLUICE_CREDIT=off"; others are the process's own environment's
	Identify      string   // chain for ParseIdentify; zero: TryOut
	Classes       []limits.Class
	CreditClasses []string      // that have tickets, as the function of this name says; nil: all requests, and every verb
	Exempt        limits.Exempt // its addresses and paths; the users are the agent's
	Addresses     limits.AddressLimits
	Costs         []limits.CostUnit // what requests can cost, sorted by name
	Fitted        bool              // leaves out what this Config does not need: the lists that Exempt has nothing for, and the like
	Bandwidth     bool              // of Fitted: somebody's bandwidth is limited; only then HAProxy can hold bodies, and before 2.7 buffers are large
}

// ForLimits is what a limit file says about HAProxy's files, which are fitted to it.
func ForLimits(set *limits.Set) Config {
	return Config{
		Classes: set.Classes(), CreditClasses: CreditClasses(set), Exempt: set.Exempt(), Addresses: set.AddressLimits(),
		Costs: set.CostUnits(), Fitted: true, Bandwidth: set.LimitsBandwidth(),
	}
}

// listedPath is a path that can stand in a list: HAProxy reads a line as it is, but
// for blanks around it, and a request's path has printable ASCII alone.
var listedPath = regexp.MustCompile(`^/[!-~]*$`)

// exemptLists are the lines that the addresses and paths of a limit file add to the
// lists, by the list's name.
func exemptLists(e limits.Exempt) (map[string]string, error) {
	lists := map[string]string{}
	// In files rather than words of a rule, which has place for some sixty.
	for _, text := range e.Addresses {
		_, err := netip.ParsePrefix(text)
		if address, addressErr := netip.ParseAddr(text); err != nil && (addressErr != nil || address.Zone() != "") {
			return nil, fmt.Errorf("exempt address %q: want an address or a network such as 10.0.0.0/8", text)
		}
		lists["exempt-addresses.lst"] += text + "\n"
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
