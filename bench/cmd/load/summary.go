package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/sluice-qos/sluice/bench/load"
)

// A summary is what the command prints. Durations are in microseconds.
type summary struct {
	Start    time.Time      `json:"start"`
	Planned  int            `json:"planned"`
	Due      int            `json:"due"` // less than planned if interrupted
	Admitted int            `json:"admitted"`
	Refused  int            `json:"refused"`
	Statuses map[int]int    `json:"statuses"`
	Reasons  map[string]int `json:"reasons"`
	Failures map[string]int `json:"failures"`
	Late     int            `json:"late"` // sent more than lateAfter after they were due
	Times    []times        `json:"times"`
	Targets  []target       `json:"targets"`
	CPU      float64        `json:"cpu_us_per_request"` // of the sender
	Ratios   *ratios        `json:"ratios,omitempty"`
}

type times struct {
	Of    string `json:"of"`
	Count int    `json:"count"`
	P50   int64  `json:"p50_us"`
	P90   int64  `json:"p90_us"`
	P99   int64  `json:"p99_us"`
	P999  int64  `json:"p999_us"`
	Max   int64  `json:"max_us"`
}

type target struct {
	Address  string `json:"address"`
	Due      int    `json:"due"`
	Admitted int    `json:"admitted"`
	Refused  int    `json:"refused"`
	P99      int64  `json:"p99_us"`
}

type ratios struct {
	Limit         int      `json:"limit"`
	Max           float64  `json:"max"`
	Mean          float64  `json:"mean"`
	Excess        int      `json:"excess"`
	FalseRefusals int      `json:"false_refusals"`
	Seconds       []second `json:"seconds"`
}

type second struct {
	Time     string  `json:"time"`
	Whole    bool    `json:"whole"`
	Offered  int     `json:"offered"`
	Admitted int     `json:"admitted"`
	Answered int     `json:"answered"`
	Refused  int     `json:"refused"`
	Ratio    float64 `json:"ratio"`
}

const lateAfter = 10 * time.Millisecond

func summarize(r *load.Report, limit int, slack time.Duration) summary {
	admitted, refused := r.Admitted(), r.Refused()
	s := summary{
		Start:    r.Start,
		Planned:  r.Planned,
		Due:      len(r.Results),
		Admitted: len(admitted.Results),
		Refused:  len(refused.Results),
		Statuses: r.Statuses(),
		Reasons:  r.ReasonCounts(),
		Failures: map[string]int{},
		Late:     r.Late(lateAfter),
		CPU:      float64(r.CPU.Microseconds()) / float64(max(len(r.Results), 1)),
		Times: []times{
			timesOf("all answers", r.Latency()),
			timesOf("admitted", admitted.Latency()),
			timesOf("refused", refused.Latency()),
			timesOf("all answers, from when sent", r.Service()),
			timesOf("sent after due", r.Lag()),
		},
	}
	for f, n := range r.Failures() {
		s.Failures[f.String()] = n
	}
	for i, address := range r.Targets {
		t := r.Target(i)
		s.Targets = append(s.Targets, target{
			Address:  address,
			Due:      len(t.Results),
			Admitted: len(t.Admitted().Results),
			Refused:  len(t.Refused().Results),
			P99:      t.Latency().Quantile(0.99).Microseconds(),
		})
	}
	if limit > 0 {
		t := r.Ratios(limit, slack)
		s.Ratios = &ratios{Limit: limit, Max: t.Max, Mean: t.Mean, Excess: t.Excess, FalseRefusals: t.FalseRefusals}
		for _, row := range t.Rows {
			s.Ratios.Seconds = append(s.Ratios.Seconds, second{
				Time:     time.Unix(row.Second, 0).UTC().Format(time.TimeOnly),
				Whole:    row.Whole,
				Offered:  row.Offered,
				Admitted: row.Admitted,
				Answered: row.Answered,
				Refused:  row.Refused,
				Ratio:    row.Ratio,
			})
		}
	}
	return s
}

func timesOf(name string, d load.Distribution) times {
	us := func(q float64) int64 { return d.Quantile(q).Microseconds() }
	return times{Of: name, Count: len(d), P50: us(0.5), P90: us(0.9), P99: us(0.99), P999: us(0.999), Max: us(1)}
}

func (s summary) writeJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(s)
}

func (s summary) writeTable(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%d of %d requests were due: %d admitted, %d refused, %d late by more than %v; the sender used %.1f µs of CPU each\n",
		s.Due, s.Planned, s.Admitted, s.Refused, s.Late, lateAfter, s.CPU)
	fmt.Fprintf(&b, "status    %s\n", list(s.Statuses))
	fmt.Fprintf(&b, "reasons   %s\n", list(s.Reasons))
	fmt.Fprintf(&b, "failures  %s\n", list(s.Failures))

	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(t, "\nµs\tcount\tp50\tp90\tp99\tp99.9\tmax\t\n")
	for _, x := range s.Times {
		if x.Count > 0 {
			fmt.Fprintf(t, "%s\t%d\t%d\t%d\t%d\t%d\t%d\t\n", x.Of, x.Count, x.P50, x.P90, x.P99, x.P999, x.Max)
		}
	}
	fmt.Fprint(t, "\ntarget\tdue\tadmitted\trefused\tp99 µs\t\n")
	for _, x := range s.Targets {
		fmt.Fprintf(t, "%s\t%d\t%d\t%d\t%d\t\n", x.Address, x.Due, x.Admitted, x.Refused, x.P99)
	}
	if s.Ratios != nil {
		fmt.Fprint(t, "\nsecond\toffered\tadmitted\tby answer\trefused\tadmitted ÷ limit\t\n")
		for _, x := range s.Ratios.Seconds {
			partial := ""
			if !x.Whole {
				partial = " (partial)"
			}
			fmt.Fprintf(t, "%s\t%d\t%d\t%d\t%d\t%.3f%s\t\n", x.Time, x.Offered, x.Admitted, x.Answered, x.Refused, x.Ratio, partial)
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if r := s.Ratios; r != nil {
		fmt.Fprintf(&b, "\nlimit %d a second: admitted ÷ limit is at most %.3f, %.3f on average over whole seconds; %d over the limit; %d refused in error\n",
			r.Limit, r.Max, r.Mean, r.Excess, r.FalseRefusals)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// list writes counts in the order of their names.
func list[K int | string](counts map[K]int) string {
	if len(counts) == 0 {
		return "none"
	}
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%v: %d", k, counts[k]))
	}
	return strings.Join(parts, ", ")
}
