package trend

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// From the table of Student's distribution in any book, two-sided with 95 %.
func TestQuantile(t *testing.T) {
	for freedom, want := range map[float64]float64{1: 12.706, 2: 4.303, 3: 3.182, 5: 2.571, 10: 2.228, 30: 2.042, 120: 1.980, 1e6: 1.960} {
		if got := quantile(0.975, freedom); math.Abs(got-want) > 0.0006 {
			t.Errorf("quantile(0.975, %v) = %.4f, want %.3f", freedom, got, want)
		}
	}
	if got := quantile(0.95, 10); math.Abs(got-1.812) > 0.0006 {
		t.Errorf("quantile(0.95, 10) = %.4f, want 1.812", got)
	}
}

// Anscombe's first data set: the line is 3 + 0.5 x, and the slope's standard error 0.118 (Anscombe, 1973). Its residuals
// alternate, so each sample counts.
func TestFitAnscombe(t *testing.T) {
	y := []float64{4.26, 5.68, 7.24, 4.82, 6.95, 8.81, 8.04, 8.33, 10.84, 7.58, 9.96}
	var points []Point
	for i, v := range y {
		points = append(points, Point{float64(i + 4), v})
	}
	l := Fit(points, 1)
	if math.Abs(l.At0-3.0) > 0.001 || math.Abs(l.PerHour-0.5) > 0.001 || l.Effective != 11 {
		t.Errorf("Fit = %+v, want 3 + 0.5 x of 11 samples", l)
	}
	if got, want := (l.High-l.Low)/2*l.Mean, 2.262*0.1179; math.Abs(got-want) > 0.001 {
		t.Errorf("the margin is %.4f, want %.4f", got, want)
	}
}

func TestFitOfLittle(t *testing.T) {
	for name, points := range map[string][]Point{"none": nil, "two": {{0, 1}, {1, 2}}, "one time": {{1, 1}, {1, 2}, {1, 3}}} {
		if v := Fit(points, 1).Judge(0.01); v != Unclear {
			t.Errorf("%s: %s, want unclear", name, v)
		}
	}
	for name, value := range map[string]float64{"always nothing": 0, "always the same": 7} {
		if l := Fit([]Point{{0, value}, {1, value}, {2, value}, {3, value}}, 1); l.Judge(0.01) != Flat {
			t.Errorf("%s: %+v, want flat", name, l)
		}
	}
}

// How numbers are rounded is no noise.
func TestFitOfWhatNeverChanges(t *testing.T) {
	var points []Point
	for i := range 720 {
		points = append(points, Point{float64(i) / 720, 31})
	}
	if l := Fit(points, 1); l.Judge(0.01) != Flat || l.Effective != 720 {
		t.Errorf("%+v, want flat", l)
	}
}

// series draws samples of an hour, each 5 s, about 100: a slope, and noise of which each resembles the one before.
func series(r *rand.Rand, slope, noise, resembles float64) []Point {
	var points []Point
	e := 0.0
	for i := range 720 {
		h := float64(i) / 720
		e = resembles*e + math.Sqrt(1-resembles*resembles)*r.NormFloat64()*noise
		points = append(points, Point{h, 100 + 100*slope*h + e})
	}
	return points
}

// What is flat is not said to grow, and what grows is not said to be flat, though samples resemble those before.
func TestIntervalsAreHonest(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, resembles := range []float64{0, 0.5, 0.9} {
		covered := 0
		const runs = 400
		for range runs {
			l := Fit(series(r, 0.03, 1, resembles), 1)
			// The slope is a part of the mean, which is 101.5.
			if truth := 0.03 / 1.015; l.Low <= truth && truth <= l.High {
				covered++
			}
		}
		if part := float64(covered) / runs; part < 0.92 || part > 0.99 {
			t.Errorf("with noise that resembles the one before by %v the interval has the slope in %.3f of the runs, want 0.95 or so", resembles, part)
		}
	}
}

// Of forty series that are flat, one is said to grow in one of twenty runs at most.
func TestManyIntervalsAreHonestTogether(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	wrong := 0
	const runs, together = 200, 40
	for range runs {
		any := false
		for range together {
			any = any || Fit(series(r, 0, 1, 0.5)[:100], together).Judge(0) == Grows
		}
		if any {
			wrong++
		}
	}
	if wrong > runs/20 {
		t.Errorf("something grows in %d of %d runs, though nothing does", wrong, runs)
	}
}

// What repeats in each cycle is no noise, and the last cycle counts only when it is over.
func TestCycles(t *testing.T) {
	var points []Point
	for i := range 720 {
		minute := float64(i%12) / 12
		points = append(points, Point{float64(i) / 720, 100 + 40*minute})
	}
	means := Cycles(points, 0, 1.0/60)
	if len(means) != 59 {
		t.Fatalf("%d cycles of an hour, want 59", len(means))
	}
	if l := Fit(means, 40); l.Judge(0.01) != Flat {
		t.Errorf("%+v, want flat", l)
	}
	if l := Fit(points[:96], 40); l.Judge(0.01) == Grows {
		t.Errorf("%+v of eight minutes", l)
	}
	if later := Cycles(points, 0.5, 1.0/60); len(later) != 29 || later[0].Hours < 0.5 {
		t.Errorf("%d cycles of half an hour, from %v on, want 29 from 0.5 on", len(later), later[0].Hours)
	}
	if means := Cycles(nil, 0, 1); means != nil {
		t.Errorf("cycles of nothing are %v", means)
	}
}

func TestVerdicts(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for _, tt := range []struct {
		slope, noise float64
		want         Verdict
	}{
		{0, 0.5, Flat}, {0.05, 0.5, Grows}, {-0.05, 0.5, Falls}, {0, 30, Unclear},
	} {
		if l := Fit(series(r, tt.slope, tt.noise, 0.3), 1); l.Judge(0.01) != tt.want {
			t.Errorf("a slope of %v with noise of %v: %s (%.4f to %.4f), want %s", tt.slope, tt.noise, l.Judge(0.01), l.Low, l.High, tt.want)
		}
	}
}

// The order of samples does not matter, and the unit neither.
func TestFitOrderAndUnit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		points := rapid.SliceOfNDistinct(rapid.Custom(func(t *rapid.T) Point {
			return Point{float64(rapid.IntRange(0, 1000).Draw(t, "time")) / 100, float64(rapid.IntRange(1, 1000).Draw(t, "value"))}
		}), 3, 12, func(p Point) float64 { return p.Hours }).Draw(t, "points")
		a := Fit(points, 1)
		scaled := make([]Point, len(points))
		for i, j := range rand.New(rand.NewPCG(5, 6)).Perm(len(points)) {
			scaled[j] = Point{points[i].Hours, points[i].Value * 1000}
		}
		b := Fit(scaled, 1)
		for what, pair := range map[string][2]float64{"slope": {a.Slope, b.Slope}, "low": {a.Low, b.Low}, "high": {a.High, b.High}} {
			if d := math.Abs(pair[0] - pair[1]); d > 1e-6*(1+math.Abs(pair[0])) {
				t.Fatalf("%s: %v, and %v in another order and unit", what, pair[0], pair[1])
			}
		}
	})
}

// The picture is XML, has all series, and says of each what was fitted.
func TestWriteSVG(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	var all []Series
	for i, slope := range []float64{0, 0.2, -0.2, 0} {
		s := Series{Name: fmt.Sprintf("memory of agent-%d & more", i), Unit: "MiB", Points: series(r, slope, 2, 0.5), Fitted: 1.0 / 6}
		if i == 3 {
			s.Points = nil
		}
		s.Line = Fit(s.Points, 1)
		s.Verdict = s.Line.Judge(0.01)
		all = append(all, s)
	}
	var b strings.Builder
	if err := WriteSVG(&b, all); err != nil {
		t.Fatal(err)
	}
	if path := os.Getenv("TREND_SVG"); path != "" { // for eyes
		if err := os.WriteFile(path, []byte(b.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var text strings.Builder
	for d := xml.NewDecoder(strings.NewReader(b.String())); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if chars, ok := token.(xml.CharData); ok {
			text.Write(chars)
		}
	}
	for _, want := range []string{"memory of agent-1 & more", "grows: 110 MiB, +1", "falls: ", "unclear: "} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the picture does not say %q", want)
		}
	}
	if strings.Contains(b.String(), "NaN") {
		t.Error("the picture has numbers that are none")
	}
}
