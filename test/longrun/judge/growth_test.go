package judge

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/test/longrun/history"
)

// Anscombe's first data set: the line is 3 + 0.5 x, and the slope's standard error 0.118 (Anscombe, 1973). The margin is wider,
// because the correlation of residuals is uncertain.
func TestFitAnscombe(t *testing.T) {
	y := []float64{4.26, 5.68, 7.24, 4.82, 6.95, 8.81, 8.04, 8.33, 10.84, 7.58, 9.96}
	var points []Point
	for i, v := range y {
		points = append(points, Point{float64(i + 4), v})
	}
	l := fit(points)
	if math.Abs(l.Slope*l.Mean-0.5) > 0.001 || l.Margin*l.Mean < standardErrors*0.1179 || l.Margin*l.Mean > 2*standardErrors*0.1179 {
		t.Errorf("fit = %+v, want a slope of 0.5 ± %.2f to twice that", l, standardErrors*0.1179)
	}
}

func TestFitOfLittle(t *testing.T) {
	for name, points := range map[string][]Point{"none": nil, "two": {{0, 1}, {1, 2}}, "one time": {{1, 1}, {1, 2}, {1, 3}}} {
		if v := fit(points).trend(0.01); v != Unclear {
			t.Errorf("%s: %s, want unclear", name, v)
		}
	}
	for name, value := range map[string]float64{"always nothing": 0, "always the same": 31} {
		if l := fit([]Point{{0, value}, {1, value}, {2, value}, {3, value}}); l.trend(0.01) != Flat {
			t.Errorf("%s: %+v, want flat", name, l)
		}
	}
}

// Of forty flat series, whose samples resemble the ones before, none grows; and a slope far beyond the noise is found.
func TestTrend(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	series := func(slope, noise, resembles float64) (points []Point) {
		e := 0.0
		for i := range 60 {
			h := float64(i) / 60
			e = resembles*e + math.Sqrt(1-resembles*resembles)*r.NormFloat64()*noise
			points = append(points, Point{h, 100 + 100*slope*h + e})
		}
		return points
	}
	for _, resembles := range []float64{0, 0.5, 0.9} {
		for range 40 {
			if l := fit(series(0, 1, resembles)); l.trend(tolerance) == Grows {
				t.Errorf("noise that resembles the sample before by %v: %+v grows", resembles, l)
			}
		}
		// Sixty samples with a correlation of 0.9 are too few.
		if l := fit(series(0.1, 0.1, resembles)); resembles < 0.9 && l.trend(tolerance) != Grows {
			t.Errorf("a tenth an hour, with little noise that resembles the sample before by %v: %+v, want growth", resembles, l)
		}
	}
}

// Values that repeat in each cycle are no trend, and the last cycle counts only when it is over.
func TestCycles(t *testing.T) {
	points := []Point{{0, 100}, {1, 1}, {1.5, 3}, {2, 5}, {2.5, 7}, {3, 1000}}
	means := cycles(points, 1, 1)
	if len(means) != 2 || means[0] != (Point{1.5, 2}) || means[1] != (Point{2.5, 6}) {
		t.Errorf("cycles = %v", means)
	}
}

// sampled is a run with samples of an agent. Memory grows by the part perHour in an hour, and goroutines by leaks hundreds, after ten
// minutes in which memory grows anyway.
func sampled(minutes int, perHour, leaks, failed float64) *history.History {
	h := &history.History{Run: history.Run{Seed: 7, Store: "single", Begin: begin, Settle: 10 * time.Minute}}
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 12 * minutes {
		at := time.Duration(i) * 5 * time.Second
		memory := 40e6 * (1 + perHour*at.Hours() + 0.003*r.NormFloat64())
		if at < 10*time.Minute {
			memory *= at.Hours() * 6
		}
		h.Samples = append(h.Samples,
			history.Sample{At: begin.Add(at), Part: "agent-0", Values: map[string]float64{"memory": memory, "goroutines": 31 + 100*leaks*at.Hours()}},
			history.Sample{At: begin.Add(at), Part: Clients, Values: map[string]float64{"requests": 10_000, "failed": failed}})
	}
	return h
}

func TestGrowth(t *testing.T) {
	for _, tt := range []struct {
		name   string
		h      *history.History
		change func(*history.History)
		want   string
	}{
		{"flat", sampled(60, 0, 0, 0), nil, "PASS of 7200000 requests; of 2 series 0 grow, 2 are flat within 1 % an hour, 0 unclear"},
		{"grows", sampled(60, 0.04, 0, 0), nil, "FAIL of 7200000 requests; of 2 series 1 grow, 1 are flat within 1 % an hour, 0 unclear"},
		{"falls", sampled(60, -0.04, 0, 0), nil, "PASS of 7200000 requests; of 2 series 0 grow, 1 are flat within 1 % an hour, 0 unclear"},
		{"fails", sampled(60, 0, 0, 1), nil, "FAIL of 7200000 requests; 1 problems; of 2 series 0 grow, 2 are flat within 1 % an hour, 0 unclear"},
		{"a key that never expires", sampled(60, 0, 0, 0), func(h *history.History) {
			h.Samples = append(h.Samples, history.Sample{At: begin.Add(time.Hour - time.Second), Part: "redis", Values: map[string]float64{NeverExpire: 1}})
		}, "FAIL of 7200000 requests; 1 problems; of 2 series 0 grow, 2 are flat within 1 % an hour, 0 unclear"},
		{"short, and memory has not settled", sampled(20, 1, 0, 0), nil, "UNCLEAR of 2400000 requests; of 2 series 0 grow, 1 are flat within 1 % an hour, 1 unclear; too short to judge memory and latency, which takes 30m0s more than 10m0s"},
		{"short and leaking", sampled(20, 0, 1, 0), nil, "FAIL of 2400000 requests; of 2 series 1 grow, 0 are flat within 1 % an hour, 1 unclear; too short to judge memory and latency, which takes 30m0s more than 10m0s"},
	} {
		if tt.change != nil {
			tt.change(tt.h)
		}
		r, err := Judge(tt.h)
		if err != nil {
			t.Fatal(err)
		}
		got := strings.NewReplacer(": seed 7, single: ", " of ", ", 0 admitted, 0 beyond their bounds; the machine stalled for 0 % of the time", "").Replace(r.Verdict())
		if got != tt.want {
			t.Errorf("%s: %s\nwant %s", tt.name, got, tt.want)
		}
	}
}
