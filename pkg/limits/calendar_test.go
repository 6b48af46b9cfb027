package limits_test

import (
	"testing"
	"time"
	_ "time/tzdata"

	"pgregory.net/rapid"

	"github.com/sluice-qos/sluice/pkg/limits"
)

func TestCalendarBounds(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	const layout = "2006-01-02 15:04"
	for _, tt := range []struct {
		name           string
		calendar       *limits.Calendar
		window         limits.Window
		at, begin, end string // by the calendar's clock
	}{
		{"an hour", nil, limits.Hour, "2026-03-01 12:34", "2026-03-01 12:00", "2026-03-01 13:00"},
		{"a minute before the epoch", nil, limits.Minute, "1969-12-31 23:59", "1969-12-31 23:59", "1970-01-01 00:00"},
		{"a day", nil, limits.Day, "2026-03-01 12:34", "2026-03-01 00:00", "2026-03-02 00:00"},
		{"a month", nil, limits.Month, "2026-02-28 12:34", "2026-02-01 00:00", "2026-03-01 00:00"},
		{"a day of 23 hours", limits.NewCalendar(berlin, 0, 1), limits.Day, "2026-03-29 23:59", "2026-03-29 00:00", "2026-03-30 00:00"},
		{"a day of 25 hours", limits.NewCalendar(berlin, 0, 1), limits.Day, "2026-10-25 00:00", "2026-10-25 00:00", "2026-10-26 00:00"},
		{"a day that began yesterday", limits.NewCalendar(berlin, 6*time.Hour, 15), limits.Day, "2026-12-01 05:59", "2026-11-30 06:00", "2026-12-01 06:00"},
		{"a month that begins later", limits.NewCalendar(berlin, 6*time.Hour, 15), limits.Month, "2026-01-15 05:59", "2025-12-15 06:00", "2026-01-15 06:00"},
		{"a month that has begun", limits.NewCalendar(berlin, 6*time.Hour, 15), limits.Month, "2026-01-15 06:00", "2026-01-15 06:00", "2026-02-15 06:00"},
		{"a day that begins in an hour that is left out", limits.NewCalendar(berlin, 150*time.Minute, 1), limits.Day, "2026-03-29 12:00", "2026-03-29 03:30", "2026-03-30 02:30"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			at, err := time.ParseInLocation(layout, tt.at, tt.calendar.Zone())
			if err != nil {
				t.Fatal(err)
			}
			begin, end := tt.calendar.Bounds(tt.window, at.Unix())
			if got := time.Unix(begin, 0).In(tt.calendar.Zone()).Format(layout); got != tt.begin {
				t.Errorf("begin = %s, want %s", got, tt.begin)
			}
			if got := time.Unix(end, 0).In(tt.calendar.Zone()).Format(layout); got != tt.end {
				t.Errorf("end = %s, want %s", got, tt.end)
			}
		})
	}
}

// TestCalendarWindowsMeet holds every window to the one after it, in the zones with the oddest clocks.
func TestCalendarWindowsMeet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		zone, err := time.LoadLocation(rapid.SampledFrom([]string{"UTC", "Europe/Berlin", "America/St_Johns", "Australia/Lord_Howe", "Pacific/Apia", "Africa/Casablanca", "Asia/Kathmandu"}).Draw(t, "zone"))
		if err != nil {
			t.Fatal(err)
		}
		c := limits.NewCalendar(zone, time.Duration(rapid.IntRange(0, 24*60-1).Draw(t, "minutes"))*time.Minute, rapid.IntRange(1, limits.MaxMonthStart).Draw(t, "day"))
		w := rapid.SampledFrom(limits.Windows[:]).Draw(t, "window")
		second := rapid.Int64Range(0, 4102444800).Draw(t, "second")
		begin, end := c.Bounds(w, second)
		if second < begin || second >= end || end-begin > w.Seconds() {
			t.Fatalf("Bounds(%v, %d) = %d, %d: longer than %d, or not around it", w, second, begin, end, w.Seconds())
		}
		if again, same := c.Bounds(w, begin); again != begin || same != end {
			t.Fatalf("the second at which it begins is in another window: %d, %d, want %d, %d", again, same, begin, end)
		}
		if next, _ := c.Bounds(w, end); next != end || c.Previous(w, end) != begin {
			t.Fatalf("the window after %d to %d begins at %d, after one from %d on", begin, end, next, c.Previous(w, end))
		}
		before := c.Previous(w, second)
		if from, to := c.Bounds(w, before); from != before || to != begin {
			t.Fatalf("the window before %d is from %d to %d, and begins at %d", begin, from, to, before)
		}
	})
}

func TestCalendarsAreShared(t *testing.T) {
	if a, b := limits.NewCalendar(time.UTC, time.Hour, 2), limits.NewCalendar(time.UTC, time.Hour, 2); a != b {
		t.Error("equal calendars are two")
	}
	if limits.NewCalendar(time.UTC, 0, 1) != nil {
		t.Error("the calendar of UTC is not nil")
	}
	c := limits.NewCalendar(time.UTC, time.Hour, 2)
	if n := testing.AllocsPerRun(10, func() { c.Bounds(limits.Month, 1_800_000_000) }); n != 0 {
		t.Errorf("Bounds allocates %v times", n)
	}
}
