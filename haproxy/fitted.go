package haproxy

import "github.com/sluice-qos/sluice/pkg/limits"

// ForLimits is what a limit file says about HAProxy's files, which are fitted to it.
func ForLimits(set *limits.Set) Config {
	return Config{
		Classes: set.Classes(), CreditClasses: CreditClasses(set), Exempt: set.Exempt(), Addresses: set.AddressLimits(),
		Costs: set.CostUnits(), Fitted: true, Bandwidth: set.LimitsBandwidth(),
	}
}

// readsCredentials is whether the identifier can find that credentials are unreadable.
func (i Identifier) readsCredentials() bool { return i.Kind != "header" && i.Kind != "ip" }
