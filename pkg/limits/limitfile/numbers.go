package limitfile

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	_ "time/tzdata" // every program knows the same zones, whatever the machine has

	"github.com/sluice-qos/sluice/pkg/limits"
)

// kind says which values a scalar may have.
type kind struct {
	forms  string                      // what is valid, for errors
	parse  func(string) (int64, error) // its errors follow the name of the field; nil if only unlimited is valid
	lifts  bool                        // unlimited is valid
	number bool                        // quotes around it are an error
	text   bool                        // a number, true and false are errors unless they are in quotes
	name   bool                        // true, false and null are errors unless they are in quotes
}

const (
	priorityForms   = "a whole number from -2047 to 2047, of which the lowest is served first"
	waitForms       = "refuse, or wait and a duration from 1ms to 30s, such as wait 2s"
	failedAuthForms = "a number of answers and a window, such as 30/min (/s, /min or /hour), or unlimited"
	timeForms       = "a date such as 2026-12-01, which begins at 00:00 UTC, or a time such as 2026-12-01T18:00:00Z"
	timeOfDayForms  = `a time of day from "00:00" to "23:59"`
	timeZoneForms   = "the name of a time zone, such as Europe/Berlin or UTC"
	jsonPathForms   = "the names that lead to a number, with dots between them, such as usage.total_tokens: each of A-Z, a-z, 0-9, _ and -, at most 8 names and 128 bytes"
	headerNameForms = "the name of a header, such as X-Cost"
	pathRegexForms  = "a regular expression such as '^/[^/]+/?$'"
	prefixForms     = "the beginning of a path, such as /reports/, without blanks, ? or #"

	liftIt = "write unlimited to lift the limit"
)

var (
	modeNames      = []string{limits.Enforce.String(), limits.DryRun.String(), limits.Off.String()}
	jobsClasses    = []string{limits.PriorityQueues, limits.DefaultQueues}
	failedNames    = []string{"free", "estimate"}
	failureWindows = []string{limits.Second.Unit(), limits.Minute.Unit(), limits.Hour.Unit()}
)

// kinds are those of a limit file, as the tags of file.go name them. Times are Unix times in ns, and
// times of day in ns after midnight.
var kinds = map[string]kind{
	"lift":           {forms: unlimited, lifts: true},
	"tierName":       {forms: "the name of a tier", parse: anyText, name: true},
	"groupName":      {forms: "the name of a group", parse: anyText, name: true},
	"mode":           choice("mode", modeNames),
	"amount":         {forms: amountScale.forms, parse: amountScale.parse, lifts: true},
	"burst":          numbers(1, limits.MaxBurst, "a whole number from 1; leave it out for none", "leave it out for none"),
	"perSecond":      counts(limits.MaxPerSecond, liftIt),
	"inProgress":     counts(limits.MaxConcurrent, "write requests: 0 to refuse every request, or unlimited to lift the limit"),
	"size":           {forms: sizeScale.forms, parse: sizeScale.parse, lifts: true},
	"wait":           {forms: waitForms, parse: parseWait},
	"priority":       {forms: priorityForms, parse: parsePriority, number: true},
	"jobCount":       counts(limits.MaxJobs, liftIt),
	"jobsClass":      {forms: "priority or default", parse: parseJobsClass},
	"workerCount":    numbers(0, limits.MaxWorkers, "a whole number from 0 (none here) to 10000", ""),
	"dedicatedCount": numbers(1, limits.MaxWorkers, "a whole number from 1 to 10000", "leave the class out for none"),
	"comment":        {forms: "text", parse: parseComment},
	"until":          {forms: timeForms, parse: parseTime},
	"timeZone":       {forms: timeZoneForms, parse: parseTimeZone, text: true},
	"timeOfDay":      {forms: timeOfDayForms, parse: parseTimeOfDay, text: true},
	"dayOfMonth":     numbers(1, limits.MaxMonthStart, "a day of the month from 1 to 28", "the first day of a month is 1"),
	"failureRate":    {forms: failedAuthForms, parse: parseFailureCount, lifts: true},
	"failedCost":     choice("cost", failedNames),
	"estimated":      {forms: estimateScale.forms, parse: estimateScale.parse},
	"jsonPath":       {forms: jsonPathForms, parse: parseJSONPath, text: true},
	"times":          numbers(1, limits.MaxCostTimes, "a whole number from 1 to 1000000", "leave the path out"),
	"headerName":     {forms: headerNameForms, parse: parseHeaderName, text: true},
	"headerValue":    {forms: `text, or "" for any`, parse: parseHeaderValue},
	"pathPrefix":     {forms: prefixForms, parse: parsePrefix},
	"pathRegex":      {forms: pathRegexForms, parse: parseRegex, name: true},
}

// choice is one of some names; its value is the index of the name.
func choice(what string, names []string) kind {
	forms := strings.Join(names[:len(names)-1], ", ") + " or " + names[len(names)-1]
	return kind{forms: forms, parse: func(s string) (int64, error) {
		i := slices.Index(names, s)
		if i < 0 {
			return 0, fmt.Errorf("has the unknown %s %s", what, choices{s, names})
		}
		return int64(i), nil
	}}
}

func numbers(least, most int64, forms, none string) kind {
	return kind{forms: forms, number: true, parse: wholeNumber(least, most, forms, none)}
}

// counts are whole numbers from 1 to most, or unlimited.
func counts(most int64, none string) kind {
	k := numbers(1, most, "a whole number in plain digits, or unlimited", none)
	k.forms, k.lifts = "a whole number or unlimited", true
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
	fraction bool   // 1.5k is valid
	zero     bool   // 0 is valid
	none     string // what to write for no limit
}

var (
	sizeScale = scale{
		forms: "a whole number of bytes, one with kB, MB, GB, KiB, MiB, GiB or TiB, or unlimited", word: "unit", units: []string{"kB", "MB", "GB", "KiB", "MiB", "GiB", "TiB"},
		factors: []int64{1e3, 1e6, 1e9, 1 << 10, 1 << 20, 1 << 30, 1 << 40}, most: limits.MaxBandwidth, mostText: "1TiB per second",
	}
	amountScale = scale{
		forms: "a whole number, one with k, M or G, or unlimited", word: "suffix", units: []string{"k", "M", "G"}, factors: []int64{1e3, 1e6, 1e9},
		most: limits.MaxCost, mostText: "1000G", fraction: true, zero: true, none: "; " + liftIt,
	}
	estimateScale = func() scale {
		c := amountScale
		c.forms, c.none = "a whole number from 0 (nothing), or one with k, M or G", ""
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
			return 0, fmt.Errorf("must be 0 or more, got %s%s", quoteUnlessPlain(s), c.none)
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
	n, err := kinds["workerCount"].parse(s)
	return int(n), err
}

// ParseJobs reads a number of jobs: from 1 to MaxJobs, in plain digits. The error follows
// the name of the number.
func ParseJobs(s string) (int, error) {
	n, err := wholeNumber(1, limits.MaxJobs, "a whole number from 1 to 100000", "a job that may never run waits for ever")(s)
	return int(n), err
}

func parseFailureCount(s string) (int64, error) {
	count, _, err := parseFailures(s)
	return count, err
}

// parseFailures reads a count and a window, such as 30/min.
func parseFailures(s string) (count int64, w limits.Window, err error) {
	digits, unit, found := strings.Cut(s, "/")
	if !found {
		if _, err := strconv.ParseUint(s, 10, 32); err == nil {
			return 0, 0, fmt.Errorf("has no window, got %s; write %s/min", shorten(s), shorten(s))
		}
		return 0, 0, mustBe(failedAuthForms, s)
	}
	if count, err = wholeNumber(1, limits.MaxPerSecond, failedAuthForms, liftIt)(digits); err != nil {
		return 0, 0, err
	}
	i := slices.Index(failureWindows, unit)
	if i < 0 {
		return 0, 0, fmt.Errorf("has the unknown window %s", choices{unit, failureWindows})
	}
	return count, limits.Window(i), nil
}

// waitForm is of durations in whole milliseconds, as HAProxy counts them.
var waitForm = regexp.MustCompile(`^(0|[1-9][0-9]*)(ms|(\.[0-9]{1,3})?s)$`)

// parseWait reads refuse, which is 0, or wait and a duration, in ns.
func parseWait(s string) (int64, error) {
	length, waits := strings.CutPrefix(s, "wait ")
	switch {
	case s == "refuse":
		return 0, nil
	case !waits && waitForm.MatchString(s):
		return 0, fmt.Errorf("must be %s, got %s; write wait %s", waitForms, quote(s), s)
	case !waits || !waitForm.MatchString(length):
		return 0, mustBe(waitForms, s)
	}
	d, err := time.ParseDuration(length)
	switch {
	case err != nil || d > limits.MaxWait:
		return 0, fmt.Errorf("must wait at most %v, got %s", limits.MaxWait, shorten(length))
	case d == 0:
		return 0, fmt.Errorf("must wait %v or more, got %s; write refuse not to wait", time.Millisecond, shorten(length))
	}
	return int64(d), nil
}

// timeForm is a date or a time of RFC 3339 in the years from 2000 to 2199.
var timeForm = regexp.MustCompile(`^2[01][0-9]{2}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])` +
	`(T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9]))?$`)

// parseTime reads what timeForm describes, if there is such a day.
func parseTime(s string) (int64, error) {
	layout := time.DateOnly
	if strings.Contains(s, "T") {
		layout = time.RFC3339
	}
	t, err := time.Parse(layout, s)
	if err != nil || !timeForm.MatchString(s) {
		return 0, fmt.Errorf("must be %s, from the year 2000 to 2199, got %s", timeForms, quote(s))
	}
	return t.UnixNano(), nil
}

var timeOfDayForm = regexp.MustCompile(`^([01][0-9]|2[0-3]):[0-5][0-9]$`)

func parseTimeOfDay(s string) (int64, error) {
	t, err := time.Parse("15:04", s)
	if err != nil || !timeOfDayForm.MatchString(s) {
		return 0, mustBe(timeOfDayForms, s)
	}
	return int64(time.Duration(t.Hour())*time.Hour + time.Duration(t.Minute())*time.Minute), nil
}

func parseTimeZone(s string) (int64, error) {
	// Local is that of the machine, and each has its own.
	if _, err := time.LoadLocation(s); err != nil || s == "" || s == "Local" {
		return 0, fmt.Errorf("must be %s, got %s, which the IANA time zone database does not have", timeZoneForms, quote(s))
	}
	return 0, nil
}

func parseJobsClass(s string) (int64, error) {
	if s == limits.ScheduledQueues {
		return 0, errors.New("must be priority or default: the scheduled queues are for jobs that a scheduler starts, of any user")
	}
	return choice("class", jobsClasses).parse(s)
}

const maxComment = 1000 // bytes

func parseComment(s string) (int64, error) {
	if len(s) > maxComment {
		return 0, fmt.Errorf("is longer than %d bytes", maxComment)
	}
	return 0, nil
}

func anyText(string) (int64, error) { return 0, nil }

// maxJSONPath bounds a path, in bytes.
const maxJSONPath = 128

var jsonPathForm = regexp.MustCompile(`^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+){0,7}$`)

func parseJSONPath(s string) (int64, error) {
	if len(s) > maxJSONPath || !jsonPathForm.MatchString(s) {
		return 0, mustBe(jsonPathForms, s)
	}
	return 0, nil
}

// hopByHop are the headers that are about one connection: HAProxy neither gets the origin's from it
// nor sends the client's to it (RFC 9110, 7.6.1).
var hopByHop = []string{"connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"}

func parseHeaderName(s string) (int64, error) {
	switch {
	case !headerForm.MatchString(s):
		return 0, mustBe(headerNameForms, s)
	case slices.Contains(hopByHop, strings.ToLower(s)):
		return 0, fmt.Errorf("must not be %s, which is about one connection and does not reach the other side", s)
	}
	return 0, nil
}

func parseHeaderValue(s string) (int64, error) {
	if !valueForm.MatchString(s) || len(s) > maxValueBytes {
		return 0, fmt.Errorf("must be 1 to %d printable ASCII characters without blanks around them, got %s", maxValueBytes, quote(s))
	}
	return 0, nil
}

func parsePrefix(s string) (int64, error) {
	switch {
	case !prefixForm.MatchString(s):
		return 0, mustBe(prefixForms, s)
	case len(s) > maxPathBytes:
		return 0, fmt.Errorf("must have at most %d bytes, got %d", maxPathBytes, len(s))
	}
	return 0, nil
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
