package terminal

import (
	"io"
	"strings"
)

// Screen draws lines over those drawn before.
type Screen struct {
	W    io.Writer
	Size func() (columns, rows int) // may change: what is drawn next is of the size of then

	drawn bool
}

// Draw writes from the upper left corner over what is there, all at once. The last row of
// the terminal stays empty for the cursor, so that nothing is scrolled. Each line may have a
// style, the parameters of SGR (ECMA-48) such as "1;31"; "" and those that are missing are plain.
func (s *Screen) Draw(lines []string, styles ...string) error {
	columns, rows := s.Size()
	var b strings.Builder
	if !s.drawn {
		b.WriteString(strings.Repeat("\n", max(rows-1, 0))) // keeps what was there to scroll back to
	}
	s.drawn = true
	b.WriteString("\x1b[H") // home
	for i, line := range lines[:min(len(lines), max(rows-1, 0))] {
		line = CutToWidth(line, columns)
		if i < len(styles) && styles[i] != "" {
			line = "\x1b[" + styles[i] + "m" + line + "\x1b[m"
		}
		// Cleared before it is written: behind a full line the cursor is on its last column still.
		b.WriteString("\x1b[K" + line + "\n")
	}
	b.WriteString("\x1b[J") // and what is below
	_, err := io.WriteString(s.W, b.String())
	return err
}

// Finish leaves the cursor on a line where the terminal's ^C is no more.
func (s *Screen) Finish() error {
	_, err := io.WriteString(s.W, "\r\x1b[K")
	return err
}
