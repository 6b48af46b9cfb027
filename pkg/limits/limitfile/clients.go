package limitfile

import (
	"gopkg.in/yaml.v3"

	"github.com/sluice-qos/sluice/pkg/limits"
)

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
