package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode"

	"golang.org/x/sys/unix"

	"github.com/sluice-qos/sluice/internal/api"
)

// The columns of a list, as people and as programs see their names. Numbers are on
// the right.
var columns = []struct {
	people, programs string
	number           bool
}{
	{"user", "#user", false},
	{"tier", "tier", false},
	{"state", "state", false},
	{"rate/s", "rate/s", true},
	{"in progress", "in_progress", true},
	{"down", "down_B/s", true},
	{"up", "up_B/s", true},
	{"nearest", "nearest", false},
	{"used", "used_%", true},
	{"seen", "seen_s", true},
}

// minName is how many columns a name keeps at least in a terminal that is too narrow.
const minName = 8

// table is the lines of a list: who says it, the names of the columns, and the users.
// Names become shorter where the lines would be longer than wide; 0 is no limit.
func table(p *picture, people bool, wide int) []string {
	rows := [][]string{nil}
	for _, c := range columns {
		name := c.programs
		if people {
			name = c.people
		}
		rows[0] = append(rows[0], name)
	}
	for _, u := range p.Ranked {
		rows = append(rows, cells(u, p.Time, people))
	}
	widths, total := make([]int, len(columns)), -2
	for i := range columns {
		for _, r := range rows {
			widths[i] = max(widths[i], width(r[i]))
		}
		total += widths[i] + 2
	}
	if wide > 0 && total > wide {
		widths[0] = max(widths[0]-(total-wide), minName)
	}
	lines := []string{headline(p)}
	for _, r := range rows {
		var b strings.Builder
		for i, c := range columns {
			cell := cut(r[i], widths[i])
			pad := strings.Repeat(" ", widths[i]-width(cell))
			if c.number {
				cell = pad + cell
			} else {
				cell += pad
			}
			if i > 0 {
				b.WriteString("  ")
			}
			b.WriteString(cell)
		}
		lines = append(lines, strings.TrimRight(b.String(), " "))
	}
	return lines
}

// headline says who answers, and how many users it knows of.
func headline(p *picture) string {
	line := fmt.Sprintf("%s  polygen %s, %s, limits version %s, users seen: %d",
		p.Time.UTC().Format(time.RFC3339), shown(p.Polygen), role(p.From), shown(p.Version), p.Seen)
	if p.Dropped > 0 {
		line += fmt.Sprintf(" (forgotten, because there were too many: %d)", p.Dropped)
	}
	return line + ", by " + shown(string(p.Sort))
}

func role(f api.From) string {
	if f.Degraded != "" {
		why, _, _ := strings.Cut(f.Degraded, ": ")
		return "cut off (" + shown(why) + ")"
	}
	if f.Leading {
		return "leading"
	}
	return "following"
}

// cells are what a list says of a user. None is empty or has a blank.
func cells(u ranked, now time.Time, people bool) []string {
	name := oneWord(u.User)
	if u.Endpoint != "" {
		name += "@" + oneWord(u.Endpoint)
	}
	seen := max(now.Sub(u.Seen), 0)
	number := func(programs, forPeople string) string {
		if people {
			return forPeople
		}
		return programs
	}
	limit, used := "-", "-"
	if n := u.Nearest; n != nil {
		percent := strconv.FormatFloat(n.Share*100, 'f', 0, 64)
		limit, used = oneWord(n.Limit), number(percent, percent+"%")
		if n.Mode != "enforce" {
			limit += "(" + oneWord(n.Mode) + ")"
		}
	}
	return []string{
		name, oneWord(u.Tier), oneWord(string(u.State)),
		strconv.FormatFloat(u.Rate, 'f', 1, 64), strconv.Itoa(u.InProgress),
		number(strconv.FormatInt(u.Down, 10), strings.ReplaceAll(perSecond(u.Down), " ", "")),
		number(strconv.FormatInt(u.Up, 10), strings.ReplaceAll(perSecond(u.Up), " ", "")),
		limit, used,
		number(strconv.FormatFloat(seen.Seconds(), 'f', 1, 64), ago(seen)),
	}
}

// oneWord is a name as one word that a terminal may have, and that neither is the sign
// for none nor begins a comment.
func oneWord(name string) string {
	word := shown(name)
	if word == "-" || word[0] == '#' {
		word = strconv.Quote(name)
	}
	return strings.ReplaceAll(word, " ", `\x20`) // no other blank is left by shown
}

// ago is a time span for people: 0.4s, 12s, 3m20s.
func ago(d time.Duration) string {
	if d < 10*time.Second {
		return strconv.FormatFloat(d.Seconds(), 'f', 1, 64) + "s"
	}
	return d.Round(time.Second).String()
}

// cut is text that takes at most so many columns of a terminal, with … where
// something is missing.
func cut(s string, columns int) string {
	if width(s) <= columns {
		return s
	}
	n := 0
	for i, r := range s {
		if n += runeWidth(r); n > columns-1 {
			return s[:i] + strings.Repeat("…", min(columns, 1))
		}
	}
	return s
}

// width is how many columns of a terminal a text takes.
func width(s string) int {
	n := 0
	for _, r := range s {
		n += runeWidth(r)
	}
	return n
}

// wide are the blocks whose characters take two columns (Unicode TR 11: wide and
// full-width), roughly: one too many only leaves a gap.
var wide = &unicode.RangeTable{
	R16: []unicode.Range16{{Lo: 0x1100, Hi: 0x115f, Stride: 1}, {Lo: 0x2e80, Hi: 0xa4cf, Stride: 1}, {Lo: 0xa960, Hi: 0xa97f, Stride: 1},
		{Lo: 0xac00, Hi: 0xd7a3, Stride: 1}, {Lo: 0xf900, Hi: 0xfaff, Stride: 1}, {Lo: 0xfe30, Hi: 0xfe6f, Stride: 1},
		{Lo: 0xff00, Hi: 0xff60, Stride: 1}, {Lo: 0xffe0, Hi: 0xffe6, Stride: 1}},
	R32: []unicode.Range32{{Lo: 0x16fe0, Hi: 0x18dff, Stride: 1}, {Lo: 0x1aff0, Hi: 0x1b2ff, Stride: 1}, {Lo: 0x1f000, Hi: 0x1faff, Stride: 1}, {Lo: 0x20000, Hi: 0x3fffd, Stride: 1}},
}

func runeWidth(r rune) int {
	switch {
	case unicode.In(r, unicode.Mn, unicode.Me):
		return 0
	case unicode.Is(wide, r):
		return 2
	default:
		return 1
	}
}

// isTerminal is whether lines can be drawn over others there.
func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	return err == nil && os.Getenv("TERM") != "dumb"
}

// sizeOf is how large a terminal is now. One that does not know, such as a serial
// line, has the size that COLUMNS and LINES say, or 80 columns of 24 rows.
func sizeOf(f *os.File) (columns, rows int) {
	if size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ); err == nil {
		columns, rows = int(size.Col), int(size.Row)
	}
	return orElse(columns, "COLUMNS", 80), orElse(rows, "LINES", 24)
}

func orElse(n int, env string, otherwise int) int {
	if n > 0 {
		return n
	}
	if n, err := strconv.Atoi(os.Getenv(env)); err == nil && n > 0 {
		return n
	}
	return otherwise
}
