// Package trend says whether something grows: it fits a straight line to samples by least squares, and says how sure the slope is.
//
// Samples resemble those before them, and many that say the same are no more evidence than few. So the interval is that of as many samples as would be independent, by the correlation of each
// residual with the next one (Santer and others, 2000, doi:10.1029/1999JD901105). It is pure.
package trend

import (
	"maps"
	"math"
	"slices"
)

// Point is one sample.
type Point struct {
	Hours float64 // since the begin of the run
	Value float64
}

// Cycles are the means of all whole cycles of so many hours, from a time on: what happens once in each of them, such as a reload, is no
// trend.
func Cycles(points []Point, from, hours float64) (means []Point) {
	sums, counts := map[int]float64{}, map[int]float64{}
	last := 0
	for _, p := range points {
		if p.Hours >= from {
			i := int((p.Hours - from) / hours)
			sums[i], counts[i] = sums[i]+p.Value, counts[i]+1
			last = max(last, i)
		}
	}
	for _, i := range slices.Sorted(maps.Keys(sums)) {
		if i < last { // the last one is not over yet
			means = append(means, Point{from + (float64(i)+0.5)*hours, sums[i] / counts[i]})
		}
	}
	return means
}

// Line is what was fitted. Its slopes are parts of the mean in an hour: 0.01 is a hundredth more each hour.
type Line struct {
	Mean      float64 // of the values
	At0       float64 // where the line begins
	PerHour   float64 // its slope, in the values' unit
	Slope     float64 // PerHour ÷ Mean
	Low, High float64 // of Slope, with the confidence that was asked for
	Effective float64 // how many independent samples there were
}

// Verdict is what a line says of whether values are flat.
type Verdict string

const (
	Flat    Verdict = "flat"    // the whole interval is within the tolerance
	Grows   Verdict = "grows"   // the whole interval is above it
	Falls   Verdict = "falls"   // the whole interval is below it
	Unclear Verdict = "unclear" // there were too few samples, or they vary too much
)

// Judge says whether a line is flat within a tolerance, such as 0.01 for one per cent an hour.
func (l Line) Judge(tolerance float64) Verdict {
	switch {
	case l.Low > tolerance:
		return Grows
	case l.High < -tolerance:
		return Falls
	case l.Low >= -tolerance && l.High <= tolerance:
		return Flat
	}
	return Unclear
}

// Confidence is that of all intervals of a report together.
const Confidence = 0.95

// Fit fits a line, whose interval has the slope with a confidence that makes all of so many intervals right at a time, by
// Bonferroni: of forty intervals that are each right with 95 % one or two are wrong. With fewer than three samples, or all of one
// time, the line is flat and its interval has no end.
func Fit(points []Point, intervals int) Line {
	n := float64(len(points))
	var meanX, meanY float64
	for _, p := range points {
		meanX, meanY = meanX+p.Hours/n, meanY+p.Value/n
	}
	var xx, xy float64
	for _, p := range points {
		xx += (p.Hours - meanX) * (p.Hours - meanX)
		xy += (p.Hours - meanX) * (p.Value - meanY)
	}
	l := Line{Mean: meanY, At0: meanY, Low: math.Inf(-1), High: math.Inf(1), Effective: n}
	if n < 3 || xx == 0 {
		return l
	}
	l.PerHour = xy / xx
	l.At0 = meanY - l.PerHour*meanX
	points = slices.Clone(points)
	slices.SortStableFunc(points, func(a, b Point) int { return int(math.Copysign(1, a.Hours-b.Hours)) })
	residuals := make([]float64, len(points))
	var squares, lagged float64
	for i, p := range points {
		residuals[i] = p.Value - l.At0 - l.PerHour*p.Hours
		squares += residuals[i] * residuals[i]
		if i > 0 {
			lagged += residuals[i] * residuals[i-1]
		}
	}
	if rounded := 1e-9 * meanY; squares < n*rounded*rounded { // on a line, but for how numbers are rounded
		squares = 0
	}
	if squares > 0 {
		// What the line takes away makes residuals resemble each other less than the noise does (Kendall, 1954), and how much they
		// do is uncertain: so a standard error more is believed, where they do at all.
		correlation := lagged / squares
		correlation += (2+4*correlation)/n + math.Sqrt(max(0, 1-correlation*correlation)/n)
		correlation = min(max(0, correlation), 0.999)
		l.Effective = n * (1 - correlation) / (1 + correlation)
	}
	margin := math.Inf(1)
	if l.Effective > 2 {
		margin = quantile(1-(1-Confidence)/2/float64(max(1, intervals)), l.Effective-2) * math.Sqrt(squares/(l.Effective-2)/xx)
	}
	if meanY != 0 {
		scale := math.Abs(meanY)
		l.Slope, l.Low, l.High = l.PerHour/scale, (l.PerHour-margin)/scale, (l.PerHour+margin)/scale
	} else if squares == 0 && l.PerHour == 0 { // always nothing
		l.Low, l.High = 0, 0
	}
	return l
}
