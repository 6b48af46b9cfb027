package limitfile

import (
	"fmt"
	"strings"
	"time"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// parseWait reads what becomes of a request over a limit: refuse, which is 0, or
// wait and a duration up to MaxWait. The error goes on where the name of the field
// leaves off.
func parseWait(s string) (time.Duration, error) {
	if s == "refuse" {
		return 0, nil
	}
	length, ok := strings.CutPrefix(s, "wait ")
	if !ok {
		// A duration alone is clear in what it means, so the error has it as it must be written.
		if _, err := parseDuration(s); err == nil {
			return 0, fmt.Errorf("must be %s, got %s; write wait %s", waitForms, quote(s), s)
		}
		return 0, fmt.Errorf("must be %s, got %s", waitForms, quote(s))
	}
	return parseDuration(length)
}

// parseDuration reads a duration such as 250ms, 2s or 1.5s: whole milliseconds, as
// HAProxy counts them, from one to MaxWait.
func parseDuration(s string) (time.Duration, error) {
	// By hand, because time.ParseDuration reads 1h1m and .5s and -2s, of which the schema knows nothing.
	number := s[:len(s)-len(strings.TrimLeft(s, "0123456789."))]
	whole, fraction, point := strings.Cut(number, ".")
	unit := s[len(number):]
	trimmed := strings.TrimLeft(unit, " ")
	switch {
	case whole == "", point && fraction == "", strings.Contains(fraction, "."):
		return 0, fmt.Errorf("must be %s, got a wait of %s", waitForms, quote(s))
	case unit == "":
		return 0, fmt.Errorf("has no unit, got %s; write %[1]ss or %[1]sms", shorten(s))
	case trimmed != "ms" && trimmed != "s":
		return 0, fmt.Errorf("has the unknown unit %s (valid: ms, s)", quote(unit))
	case trimmed != unit:
		return 0, fmt.Errorf("must have no blank before the unit, got %s; write %s", quote(s), shorten(number)+trimmed)
	// 010 is ten to some programs and eight to others; the schema has none of them.
	case len(whole) > 1 && whole[0] == '0':
		return 0, fmt.Errorf("must not begin with 0, got %s", shorten(s))
	// HAProxy's timeouts are whole milliseconds.
	case unit == "ms" && point, len(fraction) > 3:
		return 0, fmt.Errorf("must be in whole milliseconds, got %s", shorten(s))
	}
	// What is left is a form that it reads as people do.
	d, err := time.ParseDuration(s)
	switch {
	case err != nil || d > limits.MaxWait:
		return 0, fmt.Errorf("must wait at most %v, got %s", limits.MaxWait, shorten(s))
	case d == 0:
		return 0, fmt.Errorf("must wait %v or more, got %s; write refuse not to wait", time.Millisecond, shorten(s))
	}
	return d, nil
}
