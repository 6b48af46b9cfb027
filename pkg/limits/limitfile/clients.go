package limitfile

import (
	"fmt"
	"strconv"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/sluice-qos/sluice/pkg/limits"
)

var (
	failedAuthFields = []string{"per_address"}
	perAddressFields = []string{"requests", "concurrent"}
)

const failedAuthForms = "a number of answers and a window, such as 30/min (/s, /min or /hour), or unlimited"

func (f *file) readFailedAuth(n *yaml.Node) {
	const example = "{per_address: 30/min}"
	where := place{field: "failed_auth"}
	f.refuseEmpty(n, where, example)
	for key, value := range f.eachEntry(n, where, example) {
		if key.Value == "per_address" {
			f.readFailureRate(value, where.atField("failed_auth.per_address"))
		} else {
			f.refuseUnknown(key, where, "field", failedAuthFields)
		}
	}
}

// readFailureRate reads a rate such as 30/min.
func (f *file) readFailureRate(n *yaml.Node, where place) {
	if !f.isScalar(n, where, failedAuthForms) || isUnlimited(n) {
		return
	}
	count, window, err := parseFailures(n.Value)
	if err != nil {
		f.errorf(n, "%s %v", where, err)
		return
	}
	f.content.AddressLimits.FailedAuth, f.content.AddressLimits.FailedAuthWindow = count, window
}

// parseFailures reads a count and a window. The error goes on where the name of the
// field leaves off.
func parseFailures(s string) (count int, w limits.Window, err error) {
	digits, unit, found := strings.Cut(s, "/")
	if !found {
		if _, err := strconv.ParseUint(s, 10, 32); err == nil {
			return 0, 0, fmt.Errorf("has no window, got %s; write %s/min", shorten(s), shorten(s))
		}
		return 0, 0, fmt.Errorf("must be %s, got %s", failedAuthForms, quote(s))
	}
	if count, err = parseWhole(digits, limits.MaxPerSecond, failedAuthForms, liftIt); err != nil {
		return 0, 0, err
	}
	var units []string
	for _, window := range limits.Windows {
		if window.Unit() == unit {
			return count, window, nil
		}
		units = append(units, window.Unit())
	}
	return 0, 0, fmt.Errorf("has the unknown window %s", choices(unit, units))
}

func (f *file) readPerAddress(n *yaml.Node) {
	const example = "{requests: 100, concurrent: 20}"
	where := place{field: "per_address"}
	f.refuseEmpty(n, where, example)
	for key, value := range f.eachEntry(n, where, example) {
		at := where.atField("per_address." + key.Value)
		switch key.Value {
		case "requests":
			f.readCount(&f.content.AddressLimits.Requests, at, value, limits.MaxPerSecond)
		case "concurrent":
			f.readCount(&f.content.AddressLimits.Concurrent, at, value, limits.MaxConcurrent)
		default:
			f.refuseUnknown(key, where, "field", perAddressFields)
		}
	}
}

// refuseEmpty reports a mapping without entries: one that limits nothing is more likely
// a mistake.
func (f *file) refuseEmpty(n *yaml.Node, where place, example string) {
	if n.Kind == yaml.MappingNode && len(n.Content) == 0 {
		f.errorf(n, "%s is empty; leave it out, or write %s", where, example)
	}
}
