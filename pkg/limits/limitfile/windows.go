package limitfile

import (
	"fmt"
	"time"
	_ "time/tzdata" // every program knows the same zones, whatever the machine has

	"gopkg.in/yaml.v3"

	"github.com/sluice-qos/sluice/pkg/limits"
)

const timeZoneForms = "the name of a time zone, such as Europe/Berlin or UTC"

var (
	timeZones   = kind[*time.Location]{forms: timeZoneForms, text: true, parse: parseTimeZone}
	monthStarts = numbers(1, limits.MaxMonthStart, "a day of the month from 1 to 28", "the first day of a month is 1")
)

// readWindows reads when days and months begin.
func (f *file) readWindows(at place, n *yaml.Node) {
	zone, dayStart, monthStart := time.UTC, time.Duration(0), int64(1)
	f.readFields(n, at, `{time_zone: Europe/Berlin, day_starts: "06:00", month_starts: 15}`,
		field{"time_zone", into(f, &zone, timeZones)}, field{"day_starts", into(f, &dayStart, dayStarts)}, field{"month_starts", into(f, &monthStart, monthStarts)})
	// After an error a field is zero.
	if zone != nil && monthStart > 0 {
		f.calendar = limits.NewCalendar(zone, dayStart, int(monthStart))
	}
}

func parseTimeZone(s string) (*time.Location, error) {
	zone, err := time.LoadLocation(s)
	// Local is that of the machine, and each has its own.
	if err != nil || s == "" || s == "Local" {
		return nil, fmt.Errorf("must be %s, got %s, which the IANA time zone database does not have", timeZoneForms, quote(s))
	}
	return zone, nil
}
