package limitfile

import (
	"net/netip"
	"slices"

	"gopkg.in/yaml.v3"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// How much exempt and endpoints may hold.
const (
	maxExempt    = 10_000 // users, and addresses
	maxPaths     = 1000
	maxEndpoints = 64
)

// readEndpoints reads the names of the endpoints.
func (f *file) readEndpoints(n *yaml.Node) {
	where := place{field: "endpoints"}
	for item := range f.eachItem(n, where, "[uploads, api]", maxEndpoints) {
		if !endpointForm.MatchString(item.Value) {
			f.errorf(item, "%s: the name %s is not usable; write 1 to %d of a-z, 0-9 and -, of which the first is no -", where, quote(item.Value), limits.MaxEndpoint)
			continue
		}
		f.content.Endpoints = append(f.content.Endpoints, item.Value)
	}
	slices.Sort(f.content.Endpoints)
}

// readExempt reads who is not limited.
func (f *file) readExempt(n *yaml.Node) {
	where := place{field: "exempt"}
	x := &f.content.Exempt
	for key, value := range f.eachEntry(n, where, "{users: [probe], addresses: [10.0.0.0/8], paths: [/healthz]}") {
		at := where.atField("exempt." + key.Value)
		switch key.Value {
		case "users":
			for item := range f.eachItem(value, at, `[probe, "mon-*"]`, maxExempt) {
				if !limits.IsPattern(item.Value) || f.isUsablePattern(item, at) {
					x.Users = append(x.Users, item.Value)
				}
			}
		case "addresses":
			for item := range f.eachItem(value, at, "[10.0.0.0/8, 192.0.2.7]", maxExempt) {
				if f.isAddress(item, at) {
					x.Addresses = append(x.Addresses, item.Value)
				}
			}
		case "paths":
			f.readExemptPaths(value, at)
		default:
			f.refuseUnknown(key, where, "field", exemptFields)
		}
	}
}

func (f *file) readExemptPaths(n *yaml.Node, where place) {
	for item := range f.eachItem(n, where, `[/healthz, "/static/*"]`, maxPaths) {
		switch {
		case !pathsForm.MatchString(item.Value):
			f.errorf(item, `%s: each must be a path such as /healthz, without blanks, ? or #, or the beginning of one with * behind it, such as "/static/*", got %s`, where, quote(item.Value))
		case len(item.Value) > maxPathBytes:
			f.errorf(item, "%s: each must have at most %d bytes, got %d", where, maxPathBytes, len(item.Value))
		default:
			f.content.Exempt.Paths = append(f.content.Exempt.Paths, item.Value)
		}
	}
}

// isAddress checks an IP address, or a network of them in CIDR form.
func (f *file) isAddress(n *yaml.Node, where place) bool {
	network, err := netip.ParsePrefix(n.Value)
	if address, err := netip.ParseAddr(n.Value); err == nil && address.Zone() == "" {
		if address.Is4In6() {
			f.errorf(n, "%s: %s is an IPv4 address; write %s", where, n.Value, address.Unmap())
			return false
		}
		return true
	}
	switch {
	case err != nil || network.Addr().Is4In6():
		f.errorf(n, `%s: each must be an IP address, or a network such as 10.0.0.0/8 or "2001:db8::/32", got %s`, where, quote(n.Value))
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
	for _, name := range f.content.Exempt.Users {
		if limits.IsPattern(name) {
			n++
		}
	}
	return n
}

// readUsersFrom checks the patterns of further files. Reading them is the work of
// ReadFile.
func (f *file) readUsersFrom(n *yaml.Node) {
	before := len(f.found) + f.more
	for range f.eachGlob(n) {
	}
	if !f.bundled && len(f.found)+f.more == before {
		f.errorf(n, "users_from names further files, which are not here; load the limit file by its path")
	}
}

// eachGlob yields the patterns of users_from.
func (f *file) eachGlob(n *yaml.Node) func(yield func(*yaml.Node) bool) {
	return func(yield func(*yaml.Node) bool) {
		where := place{field: "users_from"}
		if n.Kind == yaml.ScalarNode {
			if f.isText(n, where) && f.isGlob(n, where) {
				yield(n)
			}
			return
		}
		for item := range f.eachItem(n, where, "[users.d/*.yaml]", maxGlobs) {
			if f.isGlob(item, where) && !yield(item) {
				return
			}
		}
	}
}
