package limits

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"gopkg.in/yaml.v3"
)

// AddressLimits bound what comes from one address of clients, whatever users the
// requests name. Each HAProxy enforces them by itself, from its configuration: they hold
// at each HAProxy, not over the cluster. The zero AddressLimits limit nothing.
type AddressLimits struct {
	Requests   int // in each second; 0 means unlimited
	Concurrent int // requests in progress; 0 means unlimited

	// FailedAuth is how many answers 401 or 403 of the origin an address may cause in
	// a FailedAuthWindow before it is refused; 0 means unlimited.
	FailedAuth       int
	FailedAuthWindow Window
}

// FailedAuthString is the limit of failed authentication as the limit file has it,
// such as "30/min", or "" without one.
func (a AddressLimits) FailedAuthString() string {
	if a.FailedAuth == 0 {
		return ""
	}
	return strconv.Itoa(a.FailedAuth) + "/" + windowUnits[a.FailedAuthWindow]
}

// AddressLimits returns the limits of each address that HAProxy has to enforce: none
// unless the mode of the file is Enforce, for HAProxy cannot try a limit without
// refusing anybody.
func (s *Set) AddressLimits() AddressLimits {
	if s.mode != Enforce {
		return AddressLimits{}
	}
	return s.addressLimits
}

// windowUnits are the windows as a rate such as 30/min names them.
var windowUnits = [...]string{Second: "s", Minute: "min", Hour: "hour"}

var (
	failedAuthFields = []string{"per_address"}
	perAddressFields = []string{"requests", "concurrent"}
)

const failedAuthForms = "a number of answers and a window, such as 30/min (/s, /min or /hour), or unlimited"

func (f *file) failedAuth(n *yaml.Node) {
	const example = "{per_address: 30/min}"
	where := place{field: "failed_auth"}
	f.notEmpty(n, where, example)
	for key, value := range f.entries(n, where, example) {
		if key.Value == "per_address" {
			f.failuresPer(value, where.at("failed_auth.per_address"))
		} else {
			f.unknown(key, where, "field", failedAuthFields)
		}
	}
}

// failuresPer reads a rate such as 30/min.
func (f *file) failuresPer(n *yaml.Node, where place) {
	if !f.plain(n) || isUnlimited(n) {
		return
	}
	if n.Kind != yaml.ScalarNode || isNull(n) {
		f.errorf(n, "%s must be %s, got %s", where, failedAuthForms, describe(n))
		return
	}
	count, window, err := parseFailures(n.Value)
	if err != nil {
		f.errorf(n, "%s %v", where, err)
		return
	}
	f.set.addressLimits.FailedAuth, f.set.addressLimits.FailedAuthWindow = count, window
}

// parseFailures reads a count and a window. The error goes on where the name of the
// field leaves off.
func parseFailures(s string) (count int, w Window, err error) {
	digits, unit, found := strings.Cut(s, "/")
	if !found {
		if _, err := strconv.ParseUint(s, 10, 32); err == nil {
			return 0, 0, fmt.Errorf("has no window, got %s; write %s/min", cut(s), cut(s))
		}
		return 0, 0, fmt.Errorf("must be %s, got %s", failedAuthForms, quote(s))
	}
	if count, err = parseWhole(digits, MaxPerSecond, failedAuthForms, liftIt); err != nil {
		return 0, 0, err
	}
	at := slices.Index(windowUnits[:], unit)
	if at < 0 {
		return 0, 0, fmt.Errorf("has the unknown window %s", choices(unit, windowUnits[:]))
	}
	return count, Windows[at], nil
}

func (f *file) perAddress(n *yaml.Node) {
	const example = "{requests: 100, concurrent: 20}"
	where := place{field: "per_address"}
	f.notEmpty(n, where, example)
	for key, value := range f.entries(n, where, example) {
		at := where.at("per_address." + key.Value)
		switch key.Value {
		case "requests":
			f.count(&f.set.addressLimits.Requests, at, value, MaxPerSecond)
		case "concurrent":
			f.count(&f.set.addressLimits.Concurrent, at, value, MaxConcurrent)
		default:
			f.unknown(key, where, "field", perAddressFields)
		}
	}
}

// notEmpty reports a mapping without entries: one that limits nothing is more likely
// a mistake.
func (f *file) notEmpty(n *yaml.Node, where place, example string) {
	if n.Kind == yaml.MappingNode && len(n.Content) == 0 {
		f.errorf(n, "%s is empty; leave it out, or write %s", where, example)
	}
}
