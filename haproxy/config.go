package haproxy

import (
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// Config is what Write can set. A zero field stays what the process's own
// environment says, or else the default in haproxy.cfg.
type Config struct {
	Bind           string        // SLUICE_BIND: where clients connect, such as "127.0.0.1:8080"
	Origin         string        // SLUICE_ORIGIN: the server to protect, "host:port"
	SPOE           string        // SLUICE_SPOE: where the agent answers, "unix@/path" or "127.0.0.1:port"
	Peer           string        // SLUICE_PEER: where HAProxy's peers listen, "unix@/path" or "127.0.0.1:port"
	Runtime        string        // SLUICE_RUNTIME: path of the socket by which the agent takes credit back
	Stats          string        // SLUICE_STATS: path of the stats socket; zero: none
	Instance       string        // SLUICE_INSTANCE: what the access log calls this HAProxy; zero: the host's name
	Unreadable     string        // SLUICE_UNREADABLE: "share" or "deny"
	RefuseStatus   int           // SLUICE_REFUSE_STATUS: 429 or 503
	VerdictTimeout time.Duration // SLUICE_VERDICT_TIMEOUT, in whole milliseconds
	Threads        int           // SLUICE_THREADS; zero: one per CPU
	Env            []string      // other variables of the table in haproxy.cfg, as "SLUICE_CREDIT=off"

	Identify      string // chain for ParseIdentify; zero: TryOut
	Classes       []limits.Class
	CreditClasses []string      // that have tickets, as the function of this name says; nil: all requests, and every verb
	Exempt        limits.Exempt // its addresses and paths; the users are the agent's
	Addresses     limits.AddressLimits
	Costs         []limits.CostUnit // what requests can cost, sorted by name
	CostsSocket   string            // SLUICE_COSTS: where the agent hears what they did cost, as SPOE
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

// env returns the variables that c sets. HAProxy takes each as one word, whatever is in it, and says
// what is wrong with it; a status that haproxy.cfg has no answer for it would send as 429.
func (c Config) env() ([]string, error) {
	// The one value that HAProxy itself would not complain of.
	if c.RefuseStatus != 0 && c.RefuseStatus != 429 && c.RefuseStatus != 503 {
		return nil, fmt.Errorf("refuse status %d: want 429 or 503", c.RefuseStatus)
	}
	// What is not set is left out rather than set empty: then the process's own environment decides, and after
	// it haproxy.cfg.
	var env []string
	for _, variable := range []struct{ name, value string }{
		{"SLUICE_BIND", c.Bind},
		{"SLUICE_ORIGIN", c.Origin},
		{"SLUICE_SPOE", c.SPOE},
		{"SLUICE_PEER", c.Peer},
		{"SLUICE_COSTS", c.CostsSocket},
		{"SLUICE_RUNTIME", c.Runtime},
		{"SLUICE_STATS", c.Stats},
		{"SLUICE_INSTANCE", c.Instance},
		{"SLUICE_UNREADABLE", c.Unreadable},
		{"SLUICE_REFUSE_STATUS", unlessZero(int64(c.RefuseStatus), "")},
		{"SLUICE_VERDICT_TIMEOUT", unlessZero(c.VerdictTimeout.Milliseconds(), "ms")},
		{"SLUICE_THREADS", unlessZero(int64(c.Threads), "")},
	} {
		if variable.value != "" {
			env = append(env, variable.name+"="+variable.value)
		}
	}
	return append(env, c.Env...), nil
}

func unlessZero(n int64, unit string) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatInt(n, 10) + unit
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
