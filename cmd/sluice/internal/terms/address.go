package terms

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// OfAddresses are what the limits of each address say: by the field's path, and as a
// line has them. Those that there are not are "none" and "".
func OfAddresses(a limits.AddressLimits) []AddressTerm {
	number := func(n int) string {
		if n == 0 {
			return "none"
		}
		return strconv.Itoa(n)
	}
	all := []AddressTerm{
		{"failed_auth.per_address", cmp.Or(a.FailedAuthString(), "none"), "failed authentication " + a.FailedAuthString()},
		{"per_address.requests", number(a.Requests), fmt.Sprintf("%d/s", a.Requests)},
		{"per_address.concurrent", number(a.Concurrent), fmt.Sprintf("%d in progress", a.Concurrent)},
	}
	for i, t := range all {
		if t.Value == "none" {
			all[i].InLine = ""
		}
	}
	return all
}

// AddressTerm is one limit of each address.
type AddressTerm struct{ Name, Value, InLine string }

// DescribeAddresses is a line about the limits of each address, "" without any.
func DescribeAddresses(a limits.AddressLimits) string {
	var words []string
	for _, t := range OfAddresses(a) {
		if t.InLine != "" {
			words = append(words, t.InLine)
		}
	}
	return strings.Join(words, ", ")
}
