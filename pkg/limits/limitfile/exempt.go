package limitfile

import (
	"net/netip"

	"gopkg.in/yaml.v3"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// How much exempt may hold.
const (
	maxExempt = 10_000 // users, and addresses
	maxPaths  = 1000
)

var exemptFields = fields[limits.Exempt]{
	list("users", `[probe, "mon-*"]`, maxExempt, func(x *limits.Exempt) *[]string { return &x.Users }, (*file).isExemptUser),
	list("addresses", "[10.0.0.0/8, 192.0.2.7]", maxExempt, func(x *limits.Exempt) *[]string { return &x.Addresses }, (*file).isAddress),
	list("paths", `[/healthz, "/static/*"]`, maxPaths, func(x *limits.Exempt) *[]string { return &x.Paths }, (*file).isExemptPath),
}

// readExempt reads who is not limited.
func (f *file) readExempt(where place, n *yaml.Node) {
	readFields(f, &f.content.Exempt, where, n, "{users: [probe], addresses: [10.0.0.0/8], paths: [/healthz]}", exemptFields)
}

func (f *file) isExemptUser(n *yaml.Node, where place) bool {
	// Before the check: what is refused makes no set, so that its line is never asked for.
	f.origins.exempt[n.Value] = n.Line
	return !limits.IsPattern(n.Value) || f.isUsablePattern(n, where)
}

func (f *file) isExemptPath(n *yaml.Node, where place) bool {
	switch {
	case !pathsForm.MatchString(n.Value):
		f.errorf(n, `%s: each must be a path such as /healthz, without blanks, ? or #, or the beginning of one with * behind it, such as "/static/*", got %s`, where, quote(n.Value))
	case len(n.Value) > maxPathBytes:
		f.errorf(n, "%s: each must have at most %d bytes, got %d", where, maxPathBytes, len(n.Value))
	default:
		return true
	}
	return false
}

// isAddress checks an IP address, or a network of them in CIDR form.
func (f *file) isAddress(n *yaml.Node, where place) bool {
	// A network first, so that its error is at hand if it is no address either.
	network, err := netip.ParsePrefix(n.Value)
	if address, err := netip.ParseAddr(n.Value); err == nil && address.Zone() == "" {
		// One way to write an address, so that it shows when it is there twice.
		if address.Is4In6() {
			f.errorf(n, "%s: %s is an IPv4 address; write %s", where, n.Value, address.Unmap())
			return false
		}
		return true
	}
	switch {
	case err != nil || network.Addr().Is4In6():
		f.errorf(n, `%s: each must be an IP address, or a network such as 10.0.0.0/8 or "2001:db8::/32", got %s`, where, quote(n.Value))
	// Whoever writes a host's bits means the host, or has the length wrong.
	case network != network.Masked():
		f.errorf(n, "%s: %s is an address in a network; write %s for the network, or the address alone", where, n.Value, network.Masked())
	default:
		return true
	}
	return false
}

// countExemptPatterns counts the patterns among the exempt users.
func (f *file) countExemptPatterns() int {
	n := 0
	// They are tried for each user, like those of users, so that one bound holds for both.
	for _, name := range f.content.Exempt.Users {
		if limits.IsPattern(name) {
			n++
		}
	}
	return n
}

// readUsersFrom checks the patterns of further files. Reading them is the work of
// ReadFiles.
func (f *file) readUsersFrom(_ place, n *yaml.Node) {
	before := f.count()
	for range f.eachGlob(n) {
	}
	// Without them all their users would have the default tier, and nobody would notice.
	if !f.bundled && f.count() == before {
		f.errorf(n, "users_from names further files, which are not here; load the limit file by its path")
	}
}

// What each address of clients may do.
var (
	failedAuthFields = fields[limits.AddressLimits]{{"per_address", func(f *file, a *limits.AddressLimits, at place, n *yaml.Node) {
		var r failureRate
		failedAuth.read(f, &r, at, n)
		a.FailedAuth, a.FailedAuthWindow = r.count, r.window
	}}}
	perAddressFields = fields[limits.AddressLimits]{
		scalar("requests", perSecond, func(a *limits.AddressLimits) *int { return &a.Requests }),
		scalar("concurrent", inProgress, func(a *limits.AddressLimits) *int { return &a.Concurrent }),
	}
)

func (f *file) readFailedAuth(where place, n *yaml.Node) {
	f.readOfAddresses(where, n, "{per_address: 30/min}", failedAuthFields)
}

func (f *file) readPerAddress(where place, n *yaml.Node) {
	f.readOfAddresses(where, n, "{requests: 100, concurrent: 20}", perAddressFields)
}

func (f *file) readOfAddresses(where place, n *yaml.Node, example string, all fields[limits.AddressLimits]) {
	// One that limits nothing is more likely a mistake.
	if n.Kind == yaml.MappingNode && len(n.Content) == 0 {
		f.errorf(n, "%s is empty; leave it out, or write %s", where, example)
	}
	readFields(f, &f.content.AddressLimits, where, n, example, all)
}
