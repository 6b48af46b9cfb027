package limits

import (
	"sync"
	"sync/atomic"
	"time"
)

// MaxMonthStart is the last day of the month with which months may begin: every month has it.
const MaxMonthStart = 28

// A Calendar says when days and months begin. The nil Calendar has days from midnight and months
// from the first day on, in UTC. It is safe for concurrent use.
type Calendar struct {
	zone        *time.Location
	dayStarts   time.Duration
	monthStarts int

	day, month atomic.Pointer[span] // the latest that was looked for
}

// span is a window and the begin of the one before it, in seconds since the epoch.
type span struct{ before, begin, end int64 }

type calendarKey struct {
	zone        string
	dayStarts   time.Duration
	monthStarts int
}

var calendars sync.Map // *Calendar by calendarKey

// NewCalendar returns the Calendar in which days begin at a time of day by the clock of a zone,
// after midnight and in whole minutes, and months at that time of a day of the month, 1 to
// MaxMonthStart. Equal calendars are the same.
func NewCalendar(zone *time.Location, dayStarts time.Duration, monthStarts int) *Calendar {
	if zone == time.UTC && dayStarts == 0 && monthStarts == 1 {
		return nil
	}
	c, _ := calendars.LoadOrStore(calendarKey{zone.String(), dayStarts, monthStarts}, &Calendar{zone: zone, dayStarts: dayStarts, monthStarts: monthStarts})
	return c.(*Calendar)
}

// Zone is the time zone: UTC for the nil Calendar.
func (c *Calendar) Zone() *time.Location {
	if c == nil {
		return time.UTC
	}
	return c.zone
}

// DayStarts is when days begin, after midnight.
func (c *Calendar) DayStarts() time.Duration {
	if c == nil {
		return 0
	}
	return c.dayStarts
}

// MonthStarts is the day of the month with which months begin.
func (c *Calendar) MonthStarts() int {
	if c == nil {
		return 1
	}
	return c.monthStarts
}

// Bounds is when the window begins and ends that a second is in, all in seconds since the epoch.
// A day of 23 or 25 hours is one window.
func (c *Calendar) Bounds(w Window, second int64) (begin, end int64) {
	s := c.around(w, second)
	if second < s.begin {
		return s.before, s.begin
	}
	return s.begin, s.end
}

// Previous is when the window before the one begins that a second is in.
func (c *Calendar) Previous(w Window, second int64) int64 {
	s := c.around(w, second)
	if second < s.begin {
		begin, _ := c.Bounds(w, s.before-1)
		return begin
	}
	return s.before
}

// around returns a window that a second is in, or that follows the one it is in.
func (c *Calendar) around(w Window, second int64) span {
	if w < Day {
		length := w.Seconds()
		begin := second - ((second%length)+length)%length
		return span{begin - length, begin, begin + length}
	}
	if c == nil {
		c = &utc
	}
	last := &c.day
	if w == Month {
		last = &c.month
	}
	known := last.Load()
	if known != nil && known.before <= second && second < known.end {
		return *known
	}
	var s span
	s.begin, s.end = c.find(w, second)
	s.before, _ = c.find(w, s.begin-1)
	// A look at the past must not cost the present its place.
	if known == nil || s.begin > known.begin {
		last.Store(&s)
	}
	return s
}

var utc = Calendar{zone: time.UTC, monthStarts: 1}

// find looks for the window among the beginnings around a second.
func (c *Calendar) find(w Window, second int64) (begin, end int64) {
	year, month, day := time.Unix(second, 0).In(c.zone).Date()
	// Where clocks are set forward, the time at which a day begins may not exist: Go takes one next to it.
	at := func(n int) int64 {
		y, m, d := year, month, day+n
		if w == Month {
			y, m, d = year, month+time.Month(n), c.monthStarts
		}
		return time.Date(y, m, d, int(c.dayStarts/time.Hour), int(c.dayStarts%time.Hour/time.Minute), 0, 0, c.zone).Unix()
	}
	n := 1
	for at(n) > second {
		n--
	}
	for at(n+1) <= second {
		n++
	}
	return at(n), at(n + 1)
}
