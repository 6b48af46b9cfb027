package trend

import (
	"fmt"
	"html"
	"io"
	"math"
	"strings"
)

// Series is something that was sampled, and what was fitted to its later part.
type Series struct {
	Name    string // "memory of agent-0"
	Unit    string // "MiB"
	Points  []Point
	Fitted  float64 // hours from which on samples were fitted
	Line    Line
	Verdict Verdict
}

// Measure of a plot, in pixels.
const (
	plotWidth, plotHeight = 420, 150
	left, right           = 58, 12
	top, bottom           = 34, 24
	columns               = 3
)

var colours = map[Verdict]string{Flat: "#1a7f37", Falls: "#0969da", Grows: "#cf222e", Unclear: "#9a6700"}

// WriteSVG draws all series side by side, with the lines that were fitted. The part before is grey.
func WriteSVG(w io.Writer, all []Series) error {
	rows := (len(all) + columns - 1) / columns
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="11">`+"\n", columns*plotWidth, rows*plotHeight)
	fmt.Fprintf(&b, `<rect width="100%%" height="100%%" fill="white"/>`+"\n")
	for i, s := range all {
		fmt.Fprintf(&b, `<g transform="translate(%d %d)">`+"\n", i%columns*plotWidth, i/columns*plotHeight)
		s.draw(&b)
		b.WriteString("</g>\n")
	}
	b.WriteString("</svg>\n")
	_, err := io.WriteString(w, b.String())
	return err
}

func (s *Series) draw(b *strings.Builder) {
	fmt.Fprintf(b, `<text x="%d" y="14" font-weight="bold">%s</text>`, left, html.EscapeString(s.Name))
	fmt.Fprintf(b, `<text x="%d" y="27" fill="%s">%s</text>`+"\n", left, colours[s.Verdict], html.EscapeString(s.Text()))
	if len(s.Points) == 0 {
		return
	}
	low, high, hours := math.Inf(1), math.Inf(-1), s.Fitted
	for _, p := range s.Points {
		low, high, hours = min(low, p.Value), max(high, p.Value), max(hours, p.Hours)
	}
	// A fifth of the mean at least, so that noise does not look like a trend.
	if least := 0.2 * math.Abs(s.Line.Mean); high-low < least {
		middle := (low + high) / 2
		low, high = max(0, middle-least/2), middle+least/2
	}
	if high == low {
		high = low + 1
	}
	x := func(h float64) float64 { return left + h/max(hours, 1e-9)*(plotWidth-left-right) }
	y := func(v float64) float64 { return plotHeight - bottom - (v-low)/(high-low)*(plotHeight-top-bottom) }
	for _, v := range []float64{low, (low + high) / 2, high} {
		fmt.Fprintf(b, `<line x1="%d" x2="%d" y1="%.1f" y2="%.1f" stroke="#ddd"/>`, left, plotWidth-right, y(v), y(v))
		fmt.Fprintf(b, `<text x="%d" y="%.1f" text-anchor="end">%s</text>`+"\n", left-5, y(v)+4, short(v))
	}
	fmt.Fprintf(b, `<text x="%d" y="%d">0</text><text x="%d" y="%d" text-anchor="end">%.0f min</text>`+"\n", left, plotHeight-8, plotWidth-right, plotHeight-8, hours*60)
	s.path(b, "#999", x, y, func(h float64) bool { return h < s.Fitted })
	s.path(b, "#333", x, y, func(h float64) bool { return h >= s.Fitted })
	clamp := func(v float64) float64 { return min(max(v, low), high) }
	fmt.Fprintf(b, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s" stroke-width="2"/>`+"\n",
		x(s.Fitted), y(clamp(s.Line.At0+s.Line.PerHour*s.Fitted)), x(hours), y(clamp(s.Line.At0+s.Line.PerHour*hours)), colours[s.Verdict])
}

func (s *Series) path(b *strings.Builder, colour string, x, y func(float64) float64, of func(float64) bool) {
	var d strings.Builder
	for _, p := range s.Points {
		if of(p.Hours) {
			command := "L"
			if d.Len() == 0 {
				command = "M"
			}
			fmt.Fprintf(&d, "%s%.1f %.1f", command, x(p.Hours), y(p.Value))
		}
	}
	if d.Len() > 0 {
		fmt.Fprintf(b, `<path d="%s" fill="none" stroke="%s"/>`+"\n", d.String(), colour)
	}
}

// Text says what was fitted: "flat: 31.2 MiB, +0.1 % an hour (−0.2 to +0.4)".
func (s *Series) Text() string {
	return fmt.Sprintf("%s: %s %s, %s %% an hour (%s to %s)", s.Verdict, short(s.Line.Mean), s.Unit, percent(s.Line.Slope), percent(s.Line.Low), percent(s.Line.High))
}

func percent(part float64) string {
	if math.Abs(part) > 1000 { // nobody can tell such numbers from each other
		part = math.Copysign(math.Inf(1), part)
	}
	return strings.ReplaceAll(strings.Replace(fmt.Sprintf("%+.2f", 100*part), "-", "−", 1), "Inf", "∞")
}

// short has three digits or so.
func short(v float64) string {
	switch size := math.Abs(v); {
	case size >= 1e6:
		return fmt.Sprintf("%.3gM", v/1e6)
	case size >= 1e4:
		return fmt.Sprintf("%.3gk", v/1e3)
	case size >= 100 || v == math.Trunc(v):
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.3g", v)
}
