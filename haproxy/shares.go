package haproxy

import "github.com/sluice-qos/sluice/pkg/limits"

// lendsShares is whether credit brings shares: where somebody's bandwidth is limited, a
// sticky counter is free for a request of theirs.
func (c Config) lendsShares() bool {
	return c.Addresses == (limits.AddressLimits{}) && (!c.Fitted || c.Bandwidth)
}
