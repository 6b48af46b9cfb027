package demo

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/sluice-qos/sluice/internal/daemon"
	"github.com/sluice-qos/sluice/internal/terminal"
)

const (
	drawEvery = 250 * time.Millisecond
	// Smaller terminals get text.
	minColumns, minRows = 72, 24
	// What is in front of a chart: a label, and the line that it stands on.
	margin = 11
	// A chart is no higher, in rows.
	maxHeight = 8
)

// styles are SGR's: cyan and yellow, which can be read on black and on white, and bold.
var styles = map[bool]string{true: "36", false: "33"}

const bold = "1"

// draw draws until ctx ends, or where nothing can be drawn writes lines.
func (s *show) draw(ctx context.Context) error {
	f, ok := s.Stdout.(*os.File)
	if !ok || !terminal.IsTerminal(f) {
		return s.writeLines(ctx)
	}
	if columns, rows := terminal.TerminalSize(f); columns < minColumns || rows < minRows {
		return s.writeLines(ctx)
	}
	screen := &terminal.Screen{W: f, Size: func() (int, int) { return terminal.TerminalSize(f) }}
	for {
		lines, styles := s.picture(time.Now(), screen.Size)
		if os.Getenv("NO_COLOR") != "" { // no-color.org
			styles = nil
		}
		if err := screen.Draw(lines, styles...); err != nil {
			return err
		}
		if !daemon.Sleep(ctx, drawEvery) {
			return screen.Finish()
		}
	}
}

// picture is everything at a time, and the style of each line.
func (s *show) picture(now time.Time, size func() (columns, rows int)) (lines, lineStyles []string) {
	columns, rows := size()
	// All but six lines, and one for each user, are charts: two for each user.
	height := min(max((rows-1-6-2)/4, 1), maxHeight)
	width := max(columns-margin, 1)
	add := func(style string, all ...string) {
		for _, l := range all {
			lines, lineStyles = append(lines, l), append(lineStyles, style)
		}
	}
	add(bold, fmt.Sprintf("Two users of a server that can do %d requests/s, behind %d HAProxies", int(workers/work.Seconds()), instances))
	add("", s.phase(now), "")
	// The halves together are longer than the time asked for by what limits take to be in force.
	each := (s.Duration + time.Second) / time.Duration(width)
	slowest := queue * work / workers // what the server makes everybody wait when its queue is full
	parts := map[bool][]figures{}
	for _, quiet := range []bool{false, true} {
		parts[quiet] = s.record.figures(quiet, s.record.began, each, width)
		for _, p := range parts[quiet] {
			slowest = max(slowest, p.p99)
		}
	}
	// What is not over yet would look like fewer.
	over := min(int(now.Sub(s.record.began)/each), width)
	for _, quiet := range []bool{false, true} {
		var rates, times []float64
		for _, p := range parts[quiet][:over] {
			rates, times = append(rates, p.rate(answered)/offered(quiet)), append(times, p.p99.Seconds()/slowest.Seconds())
		}
		add(bold+";"+styles[quiet], fmt.Sprintf("%s asks %.0f/s, now %s", names[quiet], offered(quiet), s.lately(quiet, now)))
		add(styles[quiet], chart(rates, height, fmt.Sprintf("%.0f/s", offered(quiet)), "answered")...)
		add(styles[quiet], chart(times, height, seconds(slowest), "p99")...)
	}
	add("", s.axis(each, width), "", fmt.Sprintf("Who uses what: http://%s/   Ctrl-C ends this.", s.Admin))
	return lines, lineStyles
}

func offered(quiet bool) float64 {
	if quiet {
		return quietRate
	}
	return noisyRate
}

func (s *show) phase(now time.Time) string {
	passed := fmt.Sprintf("%3.0f s: ", now.Sub(s.record.began).Seconds())
	s.record.mu.Lock()
	written, refused := s.record.written, s.record.refused
	s.record.mu.Unlock()
	switch {
	case written.IsZero():
		return passed + "there are no limits, and the one who asks most gets most"
	case refused.IsZero():
		return passed + "the limit file has changed"
	default:
		return passed + "each user has " + theLimits
	}
}

func (s *show) lately(quiet bool, now time.Time) string {
	return s.record.figures(quiet, now.Add(-time.Second), time.Second, 1)[0].String()
}

func (f figures) String() string {
	var parts []string
	for k, name := range []string{"answered", "refused", "failed"} {
		if k == int(answered) || f.counts[k] > 0 {
			parts = append(parts, fmt.Sprintf("%.0f/s %s", f.rate(kind(k)), name))
		}
	}
	text := strings.Join(parts, ", ")
	if f.counts[answered] > 0 {
		text += ", p99 " + seconds(f.p99)
	}
	return text
}

// seconds is a time of a request for people.
func seconds(d time.Duration) string {
	if d < time.Second {
		return fmt.Sprintf("%d ms", d.Milliseconds())
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}

// blocks are eighths of a row.
var blocks = []rune(" ▁▂▃▄▅▆▇█")

// chart is values from 0 to 1 as columns of so many rows. At the top stands what 1 is, and at
// the bottom of what.
func chart(values []float64, height int, top, of string) []string {
	rows := make([]string, height)
	for row := range rows {
		label := ""
		switch row {
		case 0:
			label = top
		case height - 1:
			label = of
		}
		var b strings.Builder
		fmt.Fprintf(&b, "%*s │", margin-2, label)
		for _, v := range values {
			eighths := int(v*float64(height*8)+0.5) - 8*(height-1-row)
			if row == height-1 && v > 0 { // something is not nothing
				eighths = max(eighths, 1)
			}
			b.WriteRune(blocks[min(max(eighths, 0), 8)])
		}
		rows[row] = b.String()
	}
	return rows
}

func (s *show) axis(each time.Duration, width int) string {
	const before, from = "without limits", "└ with limits"
	limited := s.record.limited()
	if limited.IsZero() {
		return strings.Repeat(" ", margin) + before
	}
	column := min(int(limited.Sub(s.record.began)/each), width)
	return fmt.Sprintf("%*s%-*s%s", margin, "", column, terminal.CutToWidth(before, column), from)
}

// writeLines writes a line now and then, for what is no terminal, or a small one.
func (s *show) writeLines(ctx context.Context) error {
	every := max(s.Duration/12, time.Second)
	for daemon.Sleep(ctx, every) {
		now := time.Now()
		_, err := fmt.Fprintf(s.Stdout, "%s\n  noisy: %s\n  quiet: %s\n", strings.TrimSpace(s.phase(now)), s.lately(false, now), s.lately(true, now))
		if err != nil {
			return err
		}
	}
	return nil
}
