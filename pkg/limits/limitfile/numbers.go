package limitfile

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-qos/sluice/pkg/limits"
)

const (
	sizeForms       = "a whole number of bytes, one with kB, MB, GB, KiB, MiB, GiB or TiB, or unlimited"
	priorityForms   = "a whole number from -2047 to 2047, of which the lowest is served first"
	burstForms      = "a whole number from 1; leave it out for none"
	workerForms     = "a whole number from 0 (none here) to 10000"
	waitForms       = "refuse, or wait and a duration from 1ms to 30s, such as wait 2s"
	failedAuthForms = "a number of answers and a window, such as 30/min (/s, /min or /hour), or unlimited"

	liftIt = "write unlimited to lift the limit"
)

// The kinds of numbers.
var (
	sizes      = kind[int64]{forms: sizeForms, parse: parseSize, lifts: true}
	priorities = kind[int]{forms: priorityForms, parse: parsePriority, number: true}
	workers    = kind[int]{forms: workerForms, parse: ParseWorkers, number: true}
	bursts     = kind[int]{forms: burstForms, number: true, parse: func(s string) (int, error) {
		return parseWhole(s, limits.MaxBurst, burstForms, "leave it out for none")
	}}
	perSecond  = counts(limits.MaxPerSecond)
	inProgress = counts(limits.MaxConcurrent)
	jobCounts  = counts(limits.MaxJobs)
	waits      = kind[time.Duration]{forms: waitForms, parse: parseWait}
	failedAuth = kind[failureRate]{forms: failedAuthForms, parse: parseFailures, lifts: true}
)

// counts are whole numbers from 1 to most, or unlimited, which is 0.
func counts(most int) kind[int] {
	return kind[int]{forms: "a whole number or unlimited", lifts: true, number: true, parse: func(s string) (int, error) {
		return parseWhole(s, most, "a whole number in plain digits, or unlimited", liftIt)
	}}
}

// The units of a size. A plain number is bytes.
var (
	unitNames = []string{"kB", "MB", "GB", "KiB", "MiB", "GiB", "TiB"}
	unitBytes = []int64{1e3, 1e6, 1e9, 1 << 10, 1 << 20, 1 << 30, 1 << 40}
)

// parseSize reads a size such as 5000, 500kB or 10MiB as bytes, from 1 to MaxBandwidth.
func parseSize(s string) (int64, error) {
	digits := s[:len(s)-len(strings.TrimLeft(s, "0123456789"))]
	unit := s[len(digits):]
	switch {
	// A number below zero is told like zero: both are meant as none, and there is a word for that.
	case strings.HasPrefix(s, "-") && strings.TrimLeft(s[1:], "0123456789") != s[1:]:
		return 0, tooSmall(s, liftIt)
	case digits == "", strings.ContainsAny(unit, ".,_"):
		return 0, fmt.Errorf("must be %s, got %s", sizeForms, quote(s))
	case !isPlainNumber(digits):
		return 0, fmt.Errorf("must not begin with 0, got %s", quoteUnlessPlain(s))
	}
	// Before the number, which may be too large in one unit and not in another.
	bytes, err := parseUnit(digits, unit)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	switch {
	// Divided, because the product may be beyond 64 bits.
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
	// In one spelling only: mb may be megabytes or megabits to different people.
	if i := slices.Index(unitNames, unit); i >= 0 {
		return unitBytes[i], nil
	}
	// Other programs accept the blank, and YAML takes it for a part of the text.
	if joined := strings.TrimLeft(unit, " "); slices.Contains(unitNames, joined) {
		return 0, fmt.Errorf("must have no blank before the unit, got %s; write %s", quoteUnlessPlain(digits+unit), digits+joined)
	}
	return 0, fmt.Errorf("has the unknown unit %s", choices(unit, unitNames))
}

// isPlainNumber reports whether a text is of digits alone, as people write a number. Go
// and YAML read others too, such as 0x10, 1_000 and 010, each in its own way.
func isPlainNumber(s string) bool {
	// Not by its value: +5 and 5.0 are five, and the schema has one way to write it.
	return s != "" && strings.Trim(s, "0123456789") == "" && (s[0] != '0' || s == "0")
}

// parseWhole reads a whole number from 1 to most, of which forms and none tell in
// errors what is valid and how to say that there is no such number.
func parseWhole(s string, most int, forms, none string) (int, error) {
	// So that a number below zero is told to be too small, and not to be no number.
	digits := strings.TrimPrefix(s, "-")
	if !isPlainNumber(digits) {
		return 0, fmt.Errorf("must be %s, got %s", forms, quote(s))
	}
	// Zero is refused, because to some it means none and to others no limit.
	if digits != s || digits == "0" {
		return 0, tooSmall(s, none)
	}
	n, err := strconv.Atoi(digits)
	if err != nil || n > most {
		return 0, fmt.Errorf("must be at most %d, got %s", most, quoteUnlessPlain(s))
	}
	return n, nil
}

// parsePriority reads a whole number from -MaxPriority to MaxPriority.
func parsePriority(s string) (int, error) {
	if !isPlainNumber(strings.TrimPrefix(s, "-")) || s == "-0" {
		return 0, fmt.Errorf("must be %s, got %s", priorityForms, quote(s))
	}
	n, err := strconv.Atoi(s)
	// HAProxy would cut it to its range, and two priorities would be one.
	if err != nil || n < -limits.MaxPriority || n > limits.MaxPriority {
		return 0, fmt.Errorf("must be %s, got %s", priorityForms, quoteUnlessPlain(s))
	}
	return n, nil
}

// ParseWorkers reads a number of workers: from 0 to MaxWorkers, in plain digits. The
// error goes on where the name of the number leaves off.
func ParseWorkers(s string) (int, error) {
	// Zero is a number of workers: none in this process.
	if !isPlainNumber(s) {
		return 0, fmt.Errorf("must be %s, got %s", workerForms, quote(s))
	}
	n, err := strconv.Atoi(s)
	// River refuses more when it starts, which is too late to see the file.
	if err != nil || n > limits.MaxWorkers {
		return 0, fmt.Errorf("must be at most %d, got %s", limits.MaxWorkers, shorten(s))
	}
	return n, nil
}

// ParseJobs reads a number of jobs: from 1 to MaxJobs, in plain digits. The error goes
// on where the name of the number leaves off.
func ParseJobs(s string) (int, error) {
	return parseWhole(s, limits.MaxJobs, "a whole number from 1 to 100000", "a job that may never run waits for ever")
}

// failureRate is how many failures are possible in a window.
type failureRate struct {
	count  int
	window limits.Window
}

// parseFailures reads a count and a window, such as 30/min.
func parseFailures(s string) (failureRate, error) {
	digits, unit, found := strings.Cut(s, "/")
	if !found {
		// A number alone is the likeliest mistake, and per second would be a bad guess.
		if _, err := strconv.ParseUint(s, 10, 32); err == nil {
			return failureRate{}, fmt.Errorf("has no window, got %s; write %s/min", shorten(s), shorten(s))
		}
		return failureRate{}, fmt.Errorf("must be %s, got %s", failedAuthForms, quote(s))
	}
	// Its errors are those of other numbers, zero included.
	count, err := parseWhole(digits, limits.MaxPerSecond, failedAuthForms, liftIt)
	if err != nil {
		return failureRate{}, err
	}
	// Each at the number of its window.
	units := []string{limits.Second.Unit(), limits.Minute.Unit(), limits.Hour.Unit()}
	w := slices.Index(units, unit)
	if w < 0 {
		return failureRate{}, fmt.Errorf("has the unknown window %s", choices(unit, units))
	}
	return failureRate{count, limits.Window(w)}, nil
}

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
