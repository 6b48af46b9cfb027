package judge

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/sluice-qos/sluice/test/longrun/history"
)

// tolerance is the allowed growth in an hour, as a part of the value.
const tolerance = 0.01

// enough is how long a run must go on after it settled to judge what takes long to settle.
const enough = 30 * time.Minute

// Clients is the part of samples that count requests, and NeverExpire the quantity that must be 0 at the end.
const (
	Clients     = "clients"
	NeverExpire = "keys that never expire"
)

// quantity is something that is sampled and must not grow.
type quantity struct {
	name, unit string
	scale      float64
	atOnce     bool // it settles at once; memory and latency take long, or depend on the machine's other work
}

var quantities = []quantity{
	{"memory", "MiB", 1 << 20, false},
	// At which Go collects: in proportion to what was alive after the last collection.
	{"heap", "MiB", 1 << 20, false},
	{"processes", "", 1, true},
	{"file descriptors", "", 1, true},
	{"goroutines", "", 1, true},
	{"keys", "", 1, true},
	{"median latency", "ms", 1e-3, false},
	{"latency of 99 %", "ms", 1e-3, false},
}

// Series is a quantity of a part over time, and the line fitted to its cycles after it settled.
type Series struct {
	Name, Unit string
	Line       Line
	Trend      Trend
}

// judgeGrowth fits a line to each quantity of each part, and adds up what clients counted.
func (r *Report) judgeGrowth(h *history.History) {
	if h.Run.Settle == 0 || len(h.Samples) == 0 {
		return
	}
	samples := slices.SortedStableFunc(slices.Values(h.Samples), func(a, b history.Sample) int { return a.At.Compare(b.At) })
	begin := samples[0].At
	r.Lasted = samples[len(samples)-1].At.Sub(begin)
	points := map[string]map[string][]Point{} // by part and quantity
	r.Counts = map[string]float64{}
	expire := 0.0
	for _, s := range samples {
		if points[s.Part] == nil {
			points[s.Part] = map[string][]Point{}
		}
		for name, v := range s.Values {
			points[s.Part][name] = append(points[s.Part][name], Point{s.At.Sub(begin).Hours(), v})
			if s.Part == Clients && !strings.Contains(name, "latency") {
				r.Counts[name] += v
			}
			if name == NeverExpire {
				expire = v
			}
		}
	}
	// A minute has one reload of everything; a short run has too few minutes.
	cycle := min(max((r.Lasted-h.Run.Settle)/20, 10*time.Second), time.Minute)
	for _, part := range slices.Sorted(maps.Keys(points)) {
		for _, q := range quantities {
			if all := points[part][q.name]; len(all) > 0 {
				line := fit(cycles(all, h.Run.Settle.Hours(), cycle.Hours()))
				line.Mean /= q.scale
				s := Series{q.name + " of " + part, q.unit, line, line.trend(tolerance)}
				if s.Trend == Grows && !q.atOnce && r.short() {
					s.Trend = Unclear
				}
				r.Growth = append(r.Growth, s)
			}
		}
	}
	r.Requests += int(r.Counts["requests"])
	if n := r.Counts["failed"]; n > 0 {
		r.Problems = append(r.Problems, fmt.Sprintf("%.0f requests failed", n))
	}
	if expire > 0 {
		r.Problems = append(r.Problems, fmt.Sprintf("%.0f %s", expire, NeverExpire))
	}
}

// short reports whether a run is too short to judge what takes long to settle.
func (r *Report) short() bool { return r.Run.Settle > 0 && r.Lasted-r.Run.Settle < enough }

func (r *Report) count(t Trend) (n int) {
	for _, s := range r.Growth {
		if s.Trend == t {
			n++
		}
	}
	return n
}

// writeGrowth writes all series, those that grow first, and what clients counted.
func (r *Report) writeGrowth(w io.Writer) {
	order := []Trend{Grows, Unclear, Falls, Flat}
	for _, s := range slices.SortedStableFunc(slices.Values(r.Growth), func(a, b Series) int {
		return cmp.Compare(slices.Index(order, a.Trend), slices.Index(order, b.Trend))
	}) {
		fmt.Fprintf(w, "%-32s %s: %.4g %s, %+.2f %% an hour (± %.2f)\n", s.Name, s.Trend, s.Line.Mean, s.Unit, 100*s.Line.Slope, 100*s.Line.Margin)
	}
	for _, name := range slices.Sorted(maps.Keys(r.Counts)) {
		fmt.Fprintf(w, "%s: %.0f\n", name, r.Counts[name])
	}
}

// judgeMemory tells of each process with a bound the most memory that it had.
func (t *trial) judgeMemory() {
	worst := map[string]Observation{}
	for _, s := range t.history.Samples {
		kind, _, _ := strings.Cut(s.Part, "-")
		bound := t.history.Run.Memory[kind]
		if o := worst[s.Part]; bound > 0 && s.Values["memory"]/(1<<20) > o.Count {
			worst[s.Part] = Observation{
				Property: Memory, Instance: -1, What: s.Part, Begin: s.At, End: s.At,
				Count: s.Values["memory"] / (1 << 20), Limit: bound, Default: math.Inf(1),
			}
		}
	}
	for _, part := range slices.Sorted(maps.Keys(worst)) {
		t.tell(worst[part])
	}
}
