package terminal

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

func TestCut(t *testing.T) {
	for _, tt := range []struct {
		in      string
		columns int
		want    string
	}{
		{"alice", 5, "alice"}, {"alice", 4, "ali…"}, {"alice", 1, "…"}, {"alice", 0, ""}, {"", 0, ""},
		{"日本", 4, "日本"}, {"日本", 3, "日…"}, {"日本", 2, "…"}, {"e\u0301e\u0301", 2, "e\u0301e\u0301"},
	} {
		if got := CutToWidth(tt.in, tt.columns); got != tt.want {
			t.Errorf("Cut(%q, %d) = %q, want %q", tt.in, tt.columns, got, tt.want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		s, columns := rapid.String().Draw(t, "s"), rapid.IntRange(0, 30).Draw(t, "columns")
		got := CutToWidth(s, columns)
		if ColumnsOf(got) > columns || ColumnsOf(s) <= columns && got != s || !strings.HasPrefix(s, strings.TrimSuffix(got, "…")) {
			t.Errorf("Cut(%q, %d) = %q of width %d", s, columns, got, ColumnsOf(got))
		}
	})
}

// Where nothing says how large a terminal is.
func TestSize(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	for _, tt := range []struct {
		name, columns, lines string
		wantColumns          int
		wantRows             int
	}{
		{"nobody says", "", "", 80, 24},
		{"the environment says", "132", "50", 132, 50},
		{"what is no size", "-1", "x", 80, 24},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv("COLUMNS", tt.columns)
			t.Setenv("LINES", tt.lines)
			if columns, rows := TerminalSize(w); columns != tt.wantColumns || rows != tt.wantRows {
				t.Errorf("Size() = %d, %d, want %d, %d", columns, rows, tt.wantColumns, tt.wantRows)
			}
		})
	}
	if IsTerminal(w) {
		t.Error("a pipe is taken for a terminal")
	}
}

// Whatever a user is called: a terminal gets one word that it may have, and JSON is
// what it was.
func FuzzWord(f *testing.F) {
	for _, name := range append(evil, "alice", "a b", "#a", "# a", "-", "", "\u2028", "\u00a0", "\u3000", `a"b`, "\x7f", "\U000e0001") {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		word := QuoteWord(name)
		if len(strings.Fields(word)) != 1 || strings.ContainsAny(word, " \n") || word == "-" || word[0] == '#' || printableOnly(word) != nil || !utf8.ValidString(word) {
			t.Errorf("Word(%q) = %q", name, word)
		}
		if clean := Printable(name); Printable(clean) != clean || !utf8.ValidString(clean) {
			t.Errorf("Printable(%q) = %q", name, clean)
		}
		var line bytes.Buffer
		if err := WriteJSON(&line, []string{name}); err != nil {
			t.Fatal(err)
		}
		var got []string
		if err := json.Unmarshal(line.Bytes(), &got); err != nil || printableOnly(line.String()) != nil || got[0] != strings.ToValidUTF8(name, "\ufffd") && utf8.ValidString(name) {
			t.Errorf("WriteJSON(%q) = %q, which is %q, %v", name, &line, got, err)
		}
	})
}

// evil are names that a terminal must not get: an escape sequence, a byte that is no
// UTF-8, a control character beyond ASCII, and one that turns the direction of text.
var evil = []string{"\x1b[31mred\x07", "\xff\xfe", "\u009b2J", "\u202egnp"}

// printableOnly is what is wrong with a line that a terminal gets: nothing, or what it
// might obey.
func printableOnly(line string) error {
	line = strings.TrimSuffix(line, "\n")
	if clean := Printable(line); clean != line {
		return fmt.Errorf("a terminal gets %q", line)
	}
	return nil
}
