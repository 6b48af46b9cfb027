// Package soak runs a cluster of real processes for long under steady load, with users who come and go and reloads each minute, and
// says whether anything grows: memory, file descriptors, goroutines, Redis' keys or the time that an answer takes.
package soak

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/sluice-qos/sluice/test/soak/trend"
)

// tolerance is by which part a value may grow in an hour.
const tolerance = 0.01

// cycle is how long samples are taken for that become one point: a minute, in which everything is reloaded once, or less if there would
// be too few points.
func cycle(fitted time.Duration) time.Duration {
	return min(max(fitted/20, 2*every), time.Minute)
}

// enough is how long a run must be after it has settled, to say that nothing grows, or that something does that takes long to settle.
const enough = 30 * time.Minute

// Report is what became of a run.
type Report struct {
	Lasted   time.Duration
	Settle   time.Duration // that does not count
	Series   []trend.Series
	Counts   map[string]float64 // sums over the run
	Problems []string           // that need no statistics
}

// counted are the values that a report adds up, of the clients, and beside them those whose names begin with inVain.
var counted = []string{"requests", "refused", "failed"}

// inVain begins the names of the counts of requests that were refused to users below their limits.
const inVain = "refused in vain"

// Judge fits a line to each quantity of each part, from a while after the first sample on.
func Judge(samples []Sample, settle time.Duration, problems []string) *Report {
	r := &Report{Settle: settle, Counts: map[string]float64{}, Problems: problems}
	if len(samples) == 0 {
		return r
	}
	samples = slices.Clone(samples)
	slices.SortStableFunc(samples, func(a, b Sample) int { return a.At.Compare(b.At) })
	begin := samples[0].At
	r.Lasted = samples[len(samples)-1].At.Sub(begin)
	parts := map[string][]Sample{}
	for _, s := range samples {
		parts[s.Part] = append(parts[s.Part], s)
		for name, value := range s.Values {
			if slices.Contains(counted, name) || strings.HasPrefix(name, inVain) {
				r.Counts[name] += value
			}
		}
	}
	var of []quantity // the series
	for _, part := range slices.Sorted(maps.Keys(parts)) {
		for _, q := range quantities {
			s := trend.Series{Name: q.name + " of " + part, Unit: q.unit, Fitted: settle.Hours()}
			for _, sample := range parts[part] {
				if v, yes := sample.Values[q.name]; yes {
					s.Points = append(s.Points, trend.Point{Hours: sample.At.Sub(begin).Hours(), Value: v / q.scale})
				}
			}
			if len(s.Points) > 0 {
				r.Series, of = append(r.Series, s), append(of, q)
			}
		}
	}
	if n := lastOf(parts["redis"], neverExpire); n > 0 {
		r.Problems = append(r.Problems, fmt.Sprintf("%.0f %s in the end", n, neverExpire))
	}
	for i := range r.Series {
		s := &r.Series[i]
		s.Line = trend.Fit(trend.Cycles(s.Points, settle.Hours(), cycle(r.Lasted-settle).Hours()), len(r.Series))
		if s.Verdict = s.Line.Judge(tolerance); s.Verdict == trend.Grows && !of[i].atOnce && r.short() {
			s.Verdict = trend.Unclear
		}
	}
	return r
}

// lastOf is the last value of a quantity; 0 if there is none.
func lastOf(samples []Sample, quantity string) (last float64) {
	for _, s := range samples {
		if v, yes := s.Values[quantity]; yes {
			last = v
		}
	}
	return last
}

func (r *Report) of(v trend.Verdict) (n int) {
	for _, s := range r.Series {
		if s.Verdict == v {
			n++
		}
	}
	return n
}

func (r *Report) short() bool { return r.Lasted-r.Settle < enough }

// Word is PASS, FAIL, or UNCLEAR if the run was too short to say that nothing grows.
func (r *Report) Word() string {
	switch {
	case r.of(trend.Grows) > 0 || r.Counts["failed"] > 0 || len(r.Problems) > 0:
		return "FAIL"
	case len(r.Series) == 0 || r.short():
		return "UNCLEAR"
	}
	return "PASS"
}

// Verdict is a line.
func (r *Report) Verdict() string {
	line := fmt.Sprintf("%s: %s, of which the first %s do not count: %.0f requests, %.0f refused, %.0f of them in vain, %.0f failed; %d series flat within %.0f %% an hour, %d fall, %d grow, %d unclear",
		r.Word(), r.Lasted.Round(time.Second), r.Settle.Round(time.Second), r.Counts["requests"], r.Counts["refused"]+r.Counts[inVain], r.Counts[inVain], r.Counts["failed"],
		r.of(trend.Flat), 100*tolerance, r.of(trend.Falls), r.of(trend.Grows), r.of(trend.Unclear))
	if len(r.Problems) > 0 {
		line += fmt.Sprintf("; %d problems", len(r.Problems))
	}
	if r.Word() == "UNCLEAR" {
		line += fmt.Sprintf("; too short to say that nothing grows, for which it takes %v more than %v", enough, r.Settle.Round(time.Second))
	}
	return line
}

// WriteText writes the report, the worst first, and the verdict as its last line.
func (r *Report) WriteText(w io.Writer) error {
	for _, s := range r.worstFirst() {
		fmt.Fprintf(w, "%-32s %s\n", s.Name, s.Text())
	}
	for _, name := range slices.Sorted(maps.Keys(r.Counts)) {
		if strings.HasPrefix(name, inVain+":") {
			fmt.Fprintf(w, "%s: %.0f\n", name, r.Counts[name])
		}
	}
	for _, p := range r.Problems {
		fmt.Fprintln(w, "PROBLEM:", p)
	}
	_, err := fmt.Fprintln(w, "soak:", r.Verdict())
	return err
}

// PlotsFile is the name of the plots beside the report.
const PlotsFile = "plots.svg"

// WriteMarkdown writes the report for docs/reliability.md.
func (r *Report) WriteMarkdown(w io.Writer) error {
	fmt.Fprintf(w, "%s\n\n| series | verdict, mean, slope (95 %% confidence of all together) |\n|---|---|\n", r.Verdict())
	for _, s := range r.worstFirst() {
		fmt.Fprintf(w, "| %s | %s |\n", s.Name, strings.TrimSpace(s.Text()))
	}
	_, err := fmt.Fprintf(w, "\n![each series, and what was fitted](%s)\n", PlotsFile)
	return err
}

func (r *Report) worstFirst() []trend.Series {
	order := []trend.Verdict{trend.Grows, trend.Unclear, trend.Falls, trend.Flat}
	return slices.SortedStableFunc(slices.Values(r.Series), func(a, b trend.Series) int {
		return cmp.Compare(slices.Index(order, a.Verdict), slices.Index(order, b.Verdict))
	})
}
