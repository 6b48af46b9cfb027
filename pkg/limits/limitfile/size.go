package limitfile

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// units are the units of a size. A plain number is bytes.
var units = []struct {
	name  string
	bytes int64
}{
	{"kB", 1e3}, {"MB", 1e6}, {"GB", 1e9},
	{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40},
}

const sizeForms = "a whole number of bytes, one with kB, MB, GB, KiB, MiB, GiB or TiB, or unlimited"

const priorityForms = "a whole number from -2047 to 2047, of which the lowest is served first"

// parseSize reads a size such as 5000, 500kB or 10MiB as bytes, from 1 to
// MaxBandwidth. The error goes on where "bandwidth" leaves off.
func parseSize(s string) (int64, error) {
	digits := s[:len(s)-len(strings.TrimLeft(s, "0123456789"))]
	unit := s[len(digits):]
	switch {
	case strings.HasPrefix(s, "-") && strings.TrimLeft(s[1:], "0123456789") != s[1:]:
		return 0, tooSmall(s, liftIt)
	case digits == "", strings.ContainsAny(unit, ".,_"):
		return 0, fmt.Errorf("must be %s, got %s", sizeForms, quote(s))
	case len(digits) > 1 && digits[0] == '0':
		return 0, fmt.Errorf("must not begin with 0, got %s", quoteUnlessPlain(s))
	}
	bytes, err := parseUnit(digits, unit)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	switch {
	case err != nil || n > limits.MaxBandwidth/bytes:
		return 0, fmt.Errorf("must be at most 1TiB per second, got %s", quoteUnlessPlain(s))
	case n == 0:
		return 0, tooSmall(s, liftIt)
	}
	return n * bytes, nil
}

// parseUnit returns how many bytes a unit is. The digits before it are for the
// error.
func parseUnit(digits, unit string) (int64, error) {
	if unit == "" {
		return 1, nil
	}
	names := make([]string, len(units))
	for i, u := range units {
		if u.name == unit {
			return u.bytes, nil
		}
		names[i] = u.name
	}
	if joined := strings.TrimLeft(unit, " "); slices.Contains(names, joined) {
		return 0, fmt.Errorf("must have no blank before the unit, got %s; write %s", quoteUnlessPlain(digits+unit), digits+joined)
	}
	return 0, fmt.Errorf("has the unknown unit %s", choices(unit, names))
}

// parseCount reads a whole number from 1 to most. The error goes on where the
// name of the limit leaves off.
func parseCount(s string, most int) (int, error) {
	return parseWhole(s, most, "a whole number in plain digits, or unlimited", liftIt)
}

// parseWhole reads a whole number from 1 to most, of which forms and none tell in
// errors what is valid and how to say that there is no such number.
func parseWhole(s string, most int, forms, none string) (int, error) {
	digits := strings.TrimPrefix(s, "-")
	if digits == "" || strings.Trim(digits, "0123456789") != "" || len(digits) > 1 && digits[0] == '0' {
		return 0, fmt.Errorf("must be %s, got %s", forms, quote(s))
	}
	if digits != s || digits == "0" {
		return 0, tooSmall(s, none)
	}
	n, err := strconv.Atoi(digits)
	if err != nil || n > most {
		return 0, fmt.Errorf("must be at most %d, got %s", most, quoteUnlessPlain(s))
	}
	return n, nil
}

// parsePriority reads a whole number from -MaxPriority to MaxPriority. The error
// goes on where the name of the field leaves off.
func parsePriority(s string) (int, error) {
	digits := strings.TrimPrefix(s, "-")
	if digits == "" || strings.Trim(digits, "0123456789") != "" || digits[0] == '0' && s != "0" {
		return 0, fmt.Errorf("must be %s, got %s", priorityForms, quote(s))
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < -limits.MaxPriority || n > limits.MaxPriority {
		return 0, fmt.Errorf("must be %s, got %s", priorityForms, quoteUnlessPlain(s))
	}
	return n, nil
}

const liftIt = "write unlimited to lift the limit"

func tooSmall(s, none string) error {
	return fmt.Errorf("must be 1 or more, got %s; %s", quoteUnlessPlain(s), none)
}

// quoteUnlessPlain is quote without the quotes around a plain number or size.
func quoteUnlessPlain(s string) string {
	for _, c := range s {
		if (c < '0' || c > '9') && (c < 'A' || c > 'z') && c != '-' {
			return quote(s)
		}
	}
	return shorten(s)
}
