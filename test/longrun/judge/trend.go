package judge

import (
	"maps"
	"math"
	"slices"
)

// Point is one value of a series.
type Point struct {
	Hours float64 // since the first sample
	Value float64
}

// cycles are the means of all whole cycles from a time on: an event in each cycle, such as a reload, is no trend.
func cycles(points []Point, from, hours float64) (means []Point) {
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

// Line is a straight line fitted by least squares. Slopes are parts of the mean in an hour: 0.01 is a hundredth more each hour.
type Line struct {
	Mean, Slope float64
	Margin      float64 // of Slope, either way; +Inf if there are too few samples
}

// standardErrors is how many standard errors a margin has. A normal value is further away once in 16 000 times, and a run has some forty
// series of few points.
const standardErrors = 4

// fit fits a line. Samples resemble the ones before, and many equal samples are no more evidence than few: the margin is that of as
// many samples as would be independent, by the correlation of neighbouring residuals (Santer and others, 2000,
// doi:10.1029/1999JD901105).
func fit(points []Point) Line {
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
	l := Line{Mean: meanY, Margin: math.Inf(1)}
	if n < 3 || xx == 0 {
		return l
	}
	slope := xy / xx
	var squares, lagged, before float64
	for _, p := range points {
		residual := p.Value - meanY - slope*(p.Hours-meanX)
		squares += residual * residual
		lagged += residual * before
		before = residual
	}
	if rounding := 1e-9 * meanY; squares <= n*rounding*rounding {
		l.Margin = 0
	} else if effective := n * independent(lagged/squares, n); effective > 2 {
		l.Margin = standardErrors * math.Sqrt(squares/(effective-2)/xx)
	}
	if meanY != 0 {
		l.Slope, l.Margin = slope/math.Abs(meanY), l.Margin/math.Abs(meanY)
	}
	return l
}

// independent is the part of n samples that are independent of each other. The fit takes some of the residuals' correlation away
// (Kendall, 1954), and the correlation itself is uncertain by a standard error.
func independent(correlation, n float64) float64 {
	correlation += (2+4*correlation)/n + math.Sqrt(max(0, 1-correlation*correlation)/n)
	correlation = min(max(0, correlation), 0.999)
	return (1 - correlation) / (1 + correlation)
}

// Trend is what a line says.
type Trend string

// A series is flat, grows or falls if the slope and its whole margin are within, above or below the tolerance.
const (
	Flat    Trend = "flat"
	Grows   Trend = "grows"
	Falls   Trend = "falls"
	Unclear Trend = "unclear" // too few samples, or too much noise
)

func (l Line) trend(tolerance float64) Trend {
	switch {
	case l.Slope-l.Margin > tolerance:
		return Grows
	case l.Slope+l.Margin < -tolerance:
		return Falls
	case math.Abs(l.Slope)+l.Margin <= tolerance:
		return Flat
	}
	return Unclear
}
