package limitfile

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-qos/sluice/pkg/limits"
)

const (
	costLimitForms = "a whole number, one with k, M or G, or unlimited"
	estimateForms  = "a whole number from 0 (nothing), or one with k, M or G"
)

var (
	costLimits = kind[int64]{forms: costLimitForms, parse: parseCostLimit, lifts: true}
	estimates  = kind[int64]{forms: estimateForms, silent: true, parse: func(s string) (int64, error) { return parseCost(s, estimateForms) }}
)

// The thousands, millions and billions of a cost, and the digits of each.
var (
	costSuffixes = []string{"k", "M", "G"}
	costDigits   = []int{3, 6, 9}
)

// parseCostLimit reads a limit of what requests cost, from 1 to MaxCost.
func parseCostLimit(s string) (int64, error) {
	n, err := parseCost(s, costLimitForms)
	if errors.Is(err, errBelowZero) || err == nil && n == 0 {
		return 0, tooSmall(s, liftIt)
	}
	return n, err
}

// parseCost reads a number such as 5000, 20k or 1.5M, from 0 to MaxCost. The error goes on where
// the name of the number leaves off.
func parseCost(s, forms string) (int64, error) {
	number := s[:len(s)-len(strings.TrimLeft(s, "0123456789."))]
	whole, fraction, point := strings.Cut(number, ".")
	suffix := s[len(number):]
	switch {
	case strings.HasPrefix(s, "-") && strings.TrimLeft(s[1:], "0123456789") != s[1:]:
		return 0, fmt.Errorf("%w, got %s", errBelowZero, quoteUnlessPlain(s))
	case whole == "", point && fraction == "", strings.Contains(fraction, "."), strings.ContainsAny(suffix, ",_"):
		return 0, fmt.Errorf("must be %s, got %s", forms, quote(s))
	// Also 0.5M: there is one way to write it, which is 500k.
	case whole[0] == '0' && s != "0":
		return 0, fmt.Errorf("must not begin with 0, got %s", quoteUnlessPlain(s))
	}
	digits := 0
	if suffix != "" {
		i := slices.Index(costSuffixes, suffix)
		trimmed := strings.TrimLeft(suffix, " ")
		switch {
		case i >= 0:
			digits = costDigits[i]
		case slices.Contains(costSuffixes, trimmed):
			return 0, fmt.Errorf("must have no blank before %s, got %s; write %s", trimmed, quote(s), shorten(number)+trimmed)
		default:
			return 0, fmt.Errorf("has the unknown suffix %s", choices(suffix, costSuffixes))
		}
	}
	// Nothing costs a part of one: whoever writes 1.2345k has counted wrong.
	if len(fraction) > digits {
		return 0, fmt.Errorf("must be a whole number, got %s", quoteUnlessPlain(s))
	}
	n, err := strconv.ParseInt(whole+fraction+strings.Repeat("0", digits-len(fraction)), 10, 64)
	if err != nil || n > limits.MaxCost {
		return 0, fmt.Errorf("must be at most 1000G, got %s", quoteUnlessPlain(s))
	}
	return n, nil
}

var errBelowZero = errors.New("must be 0 or more")
