package demo

import (
	"fmt"
	"os"
	"time"
)

// tell says what has changed, and the next command to try.
func (s *show) tell(next string) {
	limited := s.record.limited()
	if limited.IsZero() {
		fmt.Fprintln(s.Stdout, "Ended before there were limits.")
		return
	}
	// The end of each half: by then the server's queue is what it stays.
	span := s.Duration / 4
	halves := []struct {
		name string
		from time.Time
	}{{"without", s.record.began.Add(s.Duration/2 - span)}, {"with", latest(limited, s.record.ended.Add(-span))}}
	fmt.Fprintf(s.Stdout, "The last %.1f s of each half, without limits and with them:\n", span.Seconds())
	const row = "  %-16s %8s %8s %8s  %s\n"
	fmt.Fprintf(s.Stdout, row, "", "answered", "refused", "failed", "99 % of those answered took")
	for _, quiet := range []bool{true, false} {
		for _, half := range halves {
			f := s.record.figures(quiet, half.from, span, 1)[0]
			within := "-"
			if f.counts[answered] > 0 {
				within = "up to " + seconds(f.p99)
			}
			fmt.Fprintf(s.Stdout, row, names[quiet]+", "+half.name, f.percent(answered), f.percent(refused), f.percent(failed), within)
		}
	}
	fmt.Fprintf(s.Stdout, "Next, with limits of your own:\n  %s\n", next)
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func nextCommand(sluice string) string {
	for _, file := range []string{"config/limits.yaml", "/etc/sluice/limits.yaml"} {
		if _, err := os.Stat(file); err == nil {
			return sluice + " up --limits " + file
		}
	}
	return sluice + " up --help"
}
