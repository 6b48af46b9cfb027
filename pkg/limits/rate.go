package limits

import (
	"iter"
	"slices"
	"strings"
)

// Window is the span of time over which a limit counts. Seconds, minutes and hours begin with
// each full one of the cluster's clock (UTC), days and months when a Calendar says.
type Window uint8

// The windows. The zero Window is Second.
const (
	Second Window = iota
	Minute
	Hour
	Day
	Month
)

// Windows lists the windows, the shortest first.
var Windows = [...]Window{Second, Minute, Hour, Day, Month}

// Seconds is the window's length, or the longest that it may have: a day is 25 hours where clocks are set back.
func (w Window) Seconds() int64 { return [...]int64{1, 60, 3600, 25 * 3600, 31*86400 + 3600}[w] }

// String is the window's name, as in the limit file: second, minute, hour, day or month.
func (w Window) String() string { return [...]string{"second", "minute", "hour", "day", "month"}[w] }

// Unit is the window as a rate such as 30/min names it: s, min, hour, day or month.
func (w Window) Unit() string { return [...]string{"s", "min", "hour", "day", "month"}[w] }

// Mode is what is done about a limit that is reached.
type Mode uint8

// The modes, the strongest first. The zero Mode is Enforce.
const (
	Enforce Mode = iota // requests over the limit are refused
	DryRun              // what would be refused is counted; no answer changes
	Off                 // the limit does not exist
)

// String is the mode's name, as in the limit file: enforce, dry-run or off.
func (m Mode) String() string { return [...]string{"enforce", "dry-run", "off"}[m] }

// Rate is one request limit: at most Max requests of Class in each Window, summed
// over the cluster.
type Rate struct {
	Class  string // a verb such as "GET", an operation class such as "LIST", or All
	Window Window
	Max    int // 0 refuses every request

	// Burst is how many requests beyond Max a second may have, taken from what the
	// user left unused in the seconds before. 0 means none; windows other than
	// Second have none.
	Burst int

	Mode Mode // Enforce or DryRun

	Calendar *Calendar // when days and months begin; nil for UTC
}

// Bounds is when the window begins and ends that a second is in, all in seconds since the epoch.
func (r Rate) Bounds(second int64) (begin, end int64) { return r.Calendar.Bounds(r.Window, second) }

// Name is the limit's name for people and in the RateLimit fields: its class, and
// for the longer windows "/minute", "/hour", "/day" or "/month" behind it.
func (r Rate) Name() string { return RateName(r.Class, r.Window) }

// RateName is the name of the limit of a class in a window.
func RateName(class string, w Window) string {
	if w == Second {
		return class
	}
	return class + "/" + w.String()
}

// ParseRateName takes a limit's name apart again. Without a window's name behind a
// slash, all of it is the class.
func ParseRateName(name string) (class string, w Window) { return parseName(name, Windows[1:]) }

func parseName(name string, windows []Window) (of string, w Window) {
	if of, window, ok := strings.Cut(name, "/"); ok {
		for _, w := range windows {
			if window == w.String() {
				return of, w
			}
		}
	}
	return name, Second
}

// MaxRates is the largest number of limits that one request counts against: of
// its verb, its operation class and All, each in every Window.
const MaxRates = 3 * len(Windows)

// AppendRates appends to dst the limits that a request counts against: its verb's,
// its operation class's ("" if it has none), then those of All, the shorter windows
// first. With room for MaxRates in dst it does not allocate.
func (l *Limits) AppendRates(dst []Rate, verb, class string) []Rate {
	for _, of := range [...]string{verb, class, All} {
		if of == "" {
			continue
		}
		for _, r := range l.lists().Rates {
			if r.Class == of {
				dst = append(dst, r)
			}
		}
	}
	return dst
}

// Rate returns the limit of a class in a window, and whether there is one.
func (l *Limits) Rate(class string, w Window) (Rate, bool) {
	for _, r := range l.lists().Rates {
		if r.Class == class && r.Window == w {
			return r, true
		}
	}
	return Rate{}, false
}

// Rates is every request limit, sorted by class ("*" comes first) and window.
func (l *Limits) Rates() iter.Seq[Rate] { return slices.Values(l.lists().Rates) }
