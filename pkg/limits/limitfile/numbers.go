package limitfile

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/sluice-qos/sluice/pkg/limits"
)

type kind[T any] struct {
	forms  string                  // what is valid, for errors
	parse  func(string) (T, error) // its errors follow the name of the field
	lifts  bool                    // unlimited is valid, and means the zero T
	number bool                    // quotes around it are an error
	text   bool                    // a number, true and false are errors unless they are in quotes
}

// read reads a scalar, and reports whether it is valid.
func read[T any](f *file, k kind[T], at place, n *yaml.Node) (v T, ok bool) {
	if !f.is(n, at, yaml.ScalarNode, k.forms) {
		return v, false
	}
	if k.lifts && isUnlimited(n) {
		return v, true
	}
	// The text, not the value that YAML makes of it: to YAML 010 is eight.
	v, err := k.parse(n.Value)
	switch tag := n.ShortTag(); {
	case err != nil:
		f.errorf(n, "%s %v", at, err)
	// The JSON Schema has one type for each of these values.
	case k.text && (tag == "!!int" || tag == "!!float" || tag == "!!bool"):
		f.errorf(n, "%s must be text, got %s; write it in quotes", at, shorten(n.Value))
	case k.number && tag == "!!str":
		f.errorf(n, "%s must be a number, got text; write %v without quotes", at, v)
	default:
		return v, true
	}
	return *new(T), false
}

// into reads a scalar to a place, which is zero after an error.
func into[T any](f *file, to *T, k kind[T]) func(place, *yaml.Node) {
	return func(at place, n *yaml.Node) { *to, _ = read(f, k, at, n) }
}

const (
	priorityForms   = "a whole number from -2047 to 2047, of which the lowest is served first"
	waitForms       = "refuse, or wait and a duration from 1ms to 30s, such as wait 2s"
	failedAuthForms = "a number of answers and a window, such as 30/min (/s, /min or /hour), or unlimited"
	timeForms       = "a date such as 2026-12-01, which begins at 00:00 UTC, or a time such as 2026-12-01T18:00:00Z"
	dayStartForms   = `a time of day from "00:00" to "23:59"`

	liftIt = "write unlimited to lift the limit"
)

var (
	// timeForm is a date or a time of RFC 3339 in the years from 2000 to 2199.
	timeForm = regexp.MustCompile(`^2[01][0-9]{2}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])` +
		`(T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9]))?$`)
	dayStartForm = regexp.MustCompile(`^([01][0-9]|2[0-3]):[0-5][0-9]$`)

	sizes            = kind[int64]{forms: sizeScale.forms, parse: sizeScale.parse, lifts: true}
	rateLimits       = orRefuse(kind[int64]{forms: rateScale.forms, parse: rateScale.parse, lifts: true})
	costLimits       = orRefuse(kind[int64]{forms: costScale.forms, parse: costScale.parse, lifts: true})
	estimates        = kind[int64]{forms: estimateScale.forms, parse: estimateScale.parse}
	perSecond        = counts(limits.MaxPerSecond)
	inProgress       = countsOr(limits.MaxConcurrent, "write requests: 0 to refuse every request, or unlimited to lift the limit")
	jobCounts        = counts(limits.MaxJobs)
	bursts           = numbers(1, limits.MaxBurst, "a whole number from 1; leave it out for none", "leave it out for none")
	workers          = numbers(0, limits.MaxWorkers, "a whole number from 0 (none here) to 10000", "")
	dedicatedWorkers = numbers(1, limits.MaxWorkers, "a whole number from 1 to 10000", "leave the class out for none")
	priorities       = kind[int64]{forms: priorityForms, parse: parsePriority, number: true}
	waits            = kind[int64]{forms: waitForms, parse: parseWait}
	times            = kind[time.Time]{forms: timeForms, parse: parseTime}
	dayStarts        = kind[time.Duration]{forms: dayStartForms, text: true, parse: parseDayStart}
	failedAuth       = kind[failureRate]{forms: failedAuthForms, parse: parseFailures, lifts: true}
)

func numbers(least, most int64, forms, none string) kind[int64] {
	return kind[int64]{forms: forms, number: true, parse: wholeNumber(least, most, forms, none)}
}

// counts are whole numbers from 1 to most, or unlimited.
func counts(most int64) kind[int64] { return countsOr(most, liftIt) }

func countsOr(most int64, none string) kind[int64] {
	k := numbers(1, most, "a whole number in plain digits, or unlimited", none)
	k.forms, k.lifts = "a whole number or unlimited", true
	return k
}

// refuses is the value of a limit of 0, because the value 0 stands for unlimited.
const refuses = -1

// orRefuse also reads 0.
func orRefuse(k kind[int64]) kind[int64] {
	parse := k.parse
	k.parse = func(s string) (int64, error) {
		switch {
		case s == "0":
			return refuses, nil
		case strings.HasPrefix(s, "-") && isPlainNumber(s[1:]):
			return 0, fmt.Errorf("must be 0 or more, got %s; %s", s, liftIt)
		}
		return parse(s)
	}
	return k
}

// wholeNumber parses numbers from least, 0 or 1, to most. none says what to write for no such
// number.
func wholeNumber(least, most int64, forms, none string) func(string) (int64, error) {
	return func(s string) (int64, error) {
		digits := s
		if least > 0 {
			digits = strings.TrimPrefix(s, "-")
		}
		switch {
		case !isPlainNumber(digits):
			return 0, mustBe(forms, s)
		// To some people zero means none, and to others no limit.
		case least > 0 && (digits != s || digits == "0"):
			return 0, tooSmall(s, none)
		}
		n, err := strconv.ParseInt(digits, 10, 64)
		if err != nil || n > most {
			return 0, fmt.Errorf("must be at most %d, got %s", most, quoteUnlessPlain(s))
		}
		return n, nil
	}
}

// isPlainNumber reports whether a text is of digits alone. Go and YAML read others too, such as
// 0x10, 1_000 and 010, each in its own way.
func isPlainNumber(s string) bool {
	return s != "" && strings.Trim(s, "0123456789") == "" && (s[0] != '0' || s == "0")
}

type scale struct {
	forms    string
	word     string // for a unit in errors
	units    []string
	factors  []int64
	most     int64
	mostText string
	fraction bool // 1.5k is valid
	zero     bool // 0 is valid
}

var (
	sizeScale = scale{
		forms: "a whole number of bytes, one with kB, MB, GB, KiB, MiB, GiB or TiB, or unlimited", word: "unit", units: []string{"kB", "MB", "GB", "KiB", "MiB", "GiB", "TiB"},
		factors: []int64{1e3, 1e6, 1e9, 1 << 10, 1 << 20, 1 << 30, 1 << 40}, most: limits.MaxBandwidth, mostText: "1TiB per second",
	}
	costScale = scale{
		forms: "a whole number, one with k, M or G, or unlimited", word: "suffix", units: []string{"k", "M", "G"}, factors: []int64{1e3, 1e6, 1e9},
		most: limits.MaxCost, mostText: "1000G", fraction: true,
	}
	rateScale = scale{
		forms: "a whole number, one with k or M, or unlimited", word: "suffix", units: []string{"k", "M"}, factors: []int64{1e3, 1e6},
		most: limits.MaxPerSecond, mostText: "1000000000", fraction: true,
	}
	estimateScale = func() scale {
		c := costScale
		c.forms, c.zero = "a whole number from 0 (nothing), or one with k, M or G", true
		return c
	}()
)

// parse reads a number such as 5000, 10MiB or 1.5M.
func (c scale) parse(s string) (int64, error) {
	number := s[:len(s)-len(strings.TrimLeft(s, "0123456789."))]
	whole, fraction, point := strings.Cut(number, ".")
	unit := s[len(number):]
	switch {
	case strings.HasPrefix(s, "-") && strings.TrimLeft(s[1:], "0123456789") != s[1:]:
		if c.zero {
			return 0, fmt.Errorf("must be 0 or more, got %s", quoteUnlessPlain(s))
		}
		return 0, tooSmall(s, liftIt)
	case whole == "", point && (fraction == "" || !c.fraction), strings.Contains(fraction, "."), strings.ContainsAny(unit, ".,_"):
		return 0, mustBe(c.forms, s)
	// With fractions 0.5M is refused too: the way to write it is 500k.
	case whole[0] == '0' && (len(whole) > 1 || c.fraction && s != "0"):
		return 0, fmt.Errorf("must not begin with 0, got %s", quoteUnlessPlain(s))
	}
	factor := int64(1)
	if unit != "" {
		trimmed := strings.TrimLeft(unit, " ")
		switch i := slices.Index(c.units, unit); {
		// In one spelling only: to different people mb are megabytes or megabits.
		case i >= 0:
			factor = c.factors[i]
		case slices.Contains(c.units, trimmed):
			before := trimmed
			if c.word == "unit" {
				before = "the unit"
			}
			return 0, fmt.Errorf("must have no blank before %s, got %s; write %s", before, quote(s), shorten(number)+trimmed)
		default:
			return 0, fmt.Errorf("has the unknown %s %s", c.word, choices{unit, c.units})
		}
	}
	for range fraction {
		if factor%10 != 0 {
			return 0, fmt.Errorf("must be a whole number, got %s", quoteUnlessPlain(s))
		}
		factor /= 10
	}
	n, err := strconv.ParseInt(whole+fraction, 10, 64)
	switch {
	case err != nil || n > c.most/factor:
		return 0, fmt.Errorf("must be at most %s, got %s", c.mostText, quoteUnlessPlain(s))
	case n == 0 && !c.zero:
		return 0, tooSmall(s, liftIt)
	}
	return n * factor, nil
}

func parsePriority(s string) (int64, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	switch {
	case !isPlainNumber(strings.TrimPrefix(s, "-")) || s == "-0":
		return 0, mustBe(priorityForms, s)
	case err != nil || n < -limits.MaxPriority || n > limits.MaxPriority:
		return 0, fmt.Errorf("must be %s, got %s", priorityForms, shorten(s))
	}
	return n, nil
}

// ParseWorkers reads a number of workers: from 0 to MaxWorkers, in plain digits. The
// error follows the name of the number.
func ParseWorkers(s string) (int, error) {
	n, err := workers.parse(s)
	return int(n), err
}

// ParseJobs reads a number of jobs: from 1 to MaxJobs, in plain digits. The error follows
// the name of the number.
func ParseJobs(s string) (int, error) {
	n, err := wholeNumber(1, limits.MaxJobs, "a whole number from 1 to 100000", "a job that may never run waits for ever")(s)
	return int(n), err
}

type failureRate struct {
	count  int
	window limits.Window
}

// parseFailures reads a count and a window, such as 30/min.
func parseFailures(s string) (failureRate, error) {
	digits, unit, found := strings.Cut(s, "/")
	if !found {
		if _, err := strconv.ParseUint(s, 10, 32); err == nil {
			return failureRate{}, fmt.Errorf("has no window, got %s; write %s/min", shorten(s), shorten(s))
		}
		return failureRate{}, mustBe(failedAuthForms, s)
	}
	count, err := wholeNumber(1, limits.MaxPerSecond, failedAuthForms, liftIt)(digits)
	if err != nil {
		return failureRate{}, err
	}
	units := []string{limits.Second.Unit(), limits.Minute.Unit(), limits.Hour.Unit()}
	i := slices.Index(units, unit)
	if i < 0 {
		return failureRate{}, fmt.Errorf("has the unknown window %s", choices{unit, units})
	}
	return failureRate{int(count), limits.Window(i)}, nil
}

// parseWait reads refuse, which is 0, or wait and a duration.
func parseWait(s string) (int64, error) {
	if s == "refuse" {
		return 0, nil
	}
	length, ok := strings.CutPrefix(s, "wait ")
	d, err := parseDuration(length)
	switch {
	case ok:
		return int64(d), err
	case err == nil:
		return 0, fmt.Errorf("must be %s, got %s; write wait %s", waitForms, quote(s), s)
	}
	return 0, mustBe(waitForms, s)
}

// parseDuration reads a duration such as 250ms, 2s or 1.5s: whole milliseconds, as HAProxy
// counts them, from one to MaxWait.
func parseDuration(s string) (time.Duration, error) {
	// time.ParseDuration also reads 1h1m and .5s and -2s, which the schema refuses.
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
	case len(whole) > 1 && whole[0] == '0':
		return 0, fmt.Errorf("must not begin with 0, got %s", shorten(s))
	case unit == "ms" && point, len(fraction) > 3:
		return 0, fmt.Errorf("must be in whole milliseconds, got %s", shorten(s))
	}
	d, err := time.ParseDuration(s)
	switch {
	case err != nil || d > limits.MaxWait:
		return 0, fmt.Errorf("must wait at most %v, got %s", limits.MaxWait, shorten(s))
	case d == 0:
		return 0, fmt.Errorf("must wait %v or more, got %s; write refuse not to wait", time.Millisecond, shorten(s))
	}
	return d, nil
}

// parseTime reads what timeForm describes, if there is such a day.
func parseTime(s string) (t time.Time, err error) {
	switch {
	case !timeForm.MatchString(s):
		err = errors.New("no date and no time")
	case strings.Contains(s, "T"):
		t, err = time.Parse(time.RFC3339, s)
	default:
		t, err = time.Parse(time.DateOnly, s)
	}
	if err != nil {
		return t, fmt.Errorf("must be %s, from the year 2000 to 2199, got %s", timeForms, quote(s))
	}
	return t, nil
}

// parseDayStart reads a time of day.
func parseDayStart(s string) (time.Duration, error) {
	t, err := time.Parse("15:04", s)
	if err != nil || !dayStartForm.MatchString(s) {
		return 0, mustBe(dayStartForms, s)
	}
	return time.Duration(t.Hour())*time.Hour + time.Duration(t.Minute())*time.Minute, nil
}

func mustBe(forms, s string) error { return fmt.Errorf("must be %s, got %s", forms, quote(s)) }

func tooSmall(s, none string) error {
	return fmt.Errorf("must be 1 or more, got %s; %s", quoteUnlessPlain(s), none)
}

// quoteUnlessPlain is quote without the quotes around a plain number or size.
func quoteUnlessPlain(s string) string {
	if strings.ContainsFunc(s, func(c rune) bool { return (c < '0' || c > '9') && (c < 'A' || c > 'z') && c != '-' }) {
		return quote(s)
	}
	return shorten(s)
}
