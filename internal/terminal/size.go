package terminal

import (
	"os"
	"strconv"
	"strings"
	"unicode"

	"golang.org/x/sys/unix"
)

// CutToWidth is text that takes at most so many columns of a terminal, with … where
// something is missing.
func CutToWidth(s string, columns int) string {
	if ColumnsOf(s) <= columns {
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

// ColumnsOf is how many columns of a terminal a text takes.
func ColumnsOf(s string) int {
	n := 0
	for _, r := range s {
		n += runeWidth(r)
	}
	return n
}

// wideRunes are the blocks whose characters take two columns (Unicode TR 11: wide and
// full-width), roughly: one too many only leaves a gap.
var wideRunes = &unicode.RangeTable{
	R16: []unicode.Range16{{Lo: 0x1100, Hi: 0x115f, Stride: 1}, {Lo: 0x2e80, Hi: 0xa4cf, Stride: 1}, {Lo: 0xa960, Hi: 0xa97f, Stride: 1},
		{Lo: 0xac00, Hi: 0xd7a3, Stride: 1}, {Lo: 0xf900, Hi: 0xfaff, Stride: 1}, {Lo: 0xfe30, Hi: 0xfe6f, Stride: 1},
		{Lo: 0xff00, Hi: 0xff60, Stride: 1}, {Lo: 0xffe0, Hi: 0xffe6, Stride: 1}},
	R32: []unicode.Range32{{Lo: 0x16fe0, Hi: 0x18dff, Stride: 1}, {Lo: 0x1aff0, Hi: 0x1b2ff, Stride: 1}, {Lo: 0x1f000, Hi: 0x1faff, Stride: 1}, {Lo: 0x20000, Hi: 0x3fffd, Stride: 1}},
}

func runeWidth(r rune) int {
	switch {
	case unicode.In(r, unicode.Mn, unicode.Me):
		return 0
	case unicode.Is(wideRunes, r):
		return 2
	default:
		return 1
	}
}

// IsTerminal is whether lines can be drawn over others there.
func IsTerminal(f *os.File) bool {
	_, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	return err == nil && os.Getenv("TERM") != "dumb"
}

// TerminalSize is how large a terminal is now. One that does not know, such as a serial
// line, has the size that COLUMNS and LINES say, or 80 columns of 24 rows.
func TerminalSize(f *os.File) (columns, rows int) {
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
