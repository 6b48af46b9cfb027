// Package history writes down what happens in a test as prose, and compares it with a file
// in testdata: with what was written before, and was read by somebody. With -update it
// writes the file.
package history

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

var update = flag.Bool("update", false, "write the histories in testdata anew")

// width is that of the text, in characters.
const width = 104

// indent is where sentences begin, behind their time.
const indent = 10

// A Book is one history. Its times are relative to the beginning of a second.
type Book struct {
	t     testing.TB
	title string
	text  strings.Builder
	now   time.Duration

	// What one of them does at one instant is one paragraph, which is written when another
	// one begins.
	paragraph string
	who, last string // whose it is, and the time of the last one
}

// New begins a history: with a diagram if there is one, with what the history shows and
// why, and with the words that it uses.
func New(t testing.TB, title, diagram, about, words string) *Book {
	b := &Book{t: t, title: title}
	fmt.Fprintf(&b.text, "%s\n%s\n", title, strings.Repeat("=", len(title)))
	if diagram = strings.Trim(diagram, "\n"); diagram != "" {
		fmt.Fprintf(&b.text, "\n%s\n", diagram)
	}
	for _, paragraph := range []string{about, words} {
		if paragraph != "" {
			fmt.Fprintf(&b.text, "\n%s\n", wrap(paragraph, 0))
		}
	}
	return b
}

// wrap breaks a paragraph into lines, all but the first of which are indented.
func wrap(paragraph string, indent int) string {
	var text strings.Builder
	column := indent
	for i, word := range strings.Fields(paragraph) {
		switch length := utf8.RuneCountInString(word); {
		case i == 0:
			column += length
		case column+1+length > width:
			text.WriteString("\n" + strings.Repeat(" ", indent))
			column = indent + length
		default:
			text.WriteByte(' ')
			column += 1 + length
		}
		text.WriteString(word)
	}
	return text.String()
}

// At says when what follows happens.
func (b *Book) At(now time.Duration) { b.now = now }

// Now is when what is told now happens.
func (b *Book) Now() time.Duration { return b.now }

// Part begins a part of the history: a sentence or two of what is about to happen.
func (b *Book) Part(about string) {
	b.endParagraph()
	fmt.Fprintf(&b.text, "\n%s\n\n", wrap(about, 0))
	b.last = ""
}

// Tell writes a sentence: what somebody does or learns, without the point.
func (b *Book) Tell(who, format string, args ...any) {
	at := fmt.Sprintf("%.3f s", b.now.Seconds())
	sentence := fmt.Sprintf(format, args...) + "."
	if b.paragraph != "" && at == b.last && who == b.who {
		b.paragraph += " It " + sentence
		return
	}
	b.endParagraph()
	b.paragraph, b.who = strings.ToUpper(who[:1])+who[1:]+" "+sentence, who
	if at == b.last {
		at = "" // what happens at one instant has the time once
	} else {
		b.last = at
	}
	fmt.Fprintf(&b.text, "%*s  ", indent-2, at)
}

func (b *Book) endParagraph() {
	if b.paragraph != "" {
		fmt.Fprintln(&b.text, wrap(b.paragraph, indent))
		b.paragraph = ""
	}
}

// Outcome says what becomes of requests: so many are admitted, refused and wait.
func Outcome(admitted, refused, waiting int) string {
	var parts []string
	for _, of := range []struct {
		n           int
		verb, after string
	}{{admitted, "admits", ""}, {refused, "refuses", ""}, {waiting, "lets", " wait"}} {
		which := fmt.Sprint(of.n)
		switch {
		case of.n == 0:
			continue
		case of.n == 1 && admitted+refused+waiting == 1:
			which = "it"
		case of.n == 2 && admitted+refused+waiting == 2:
			which = "both"
		case of.n == admitted+refused+waiting:
			which = fmt.Sprint("all ", of.n)
		}
		parts = append(parts, of.verb+" "+which+of.after)
	}
	return "it " + List(parts)
}

// List joins parts as a sentence does.
func List(parts []string) string {
	if len(parts) < 2 {
		return strings.Join(parts, "")
	}
	last := len(parts) - 1
	return strings.Join(parts[:last], ", ") + " and " + parts[last]
}

// Plural is a number of things, each called what.
func Plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// Times is how often something happened.
func Times(n int) string {
	switch n {
	case 1:
		return "once"
	case 2:
		return "twice"
	}
	return fmt.Sprint(n, " times")
}

// Check compares the history with the file testdata/NAME.txt.
func (b *Book) Check(name string) {
	b.t.Helper()
	b.endParagraph()
	path := filepath.Join("testdata", name+".txt")
	got := b.text.String()
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			b.t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			b.t.Fatal(err)
		}
		return
	}
	text, err := os.ReadFile(path)
	if err != nil {
		b.t.Fatalf("%v: run the test with -update", err)
	}
	want := strings.Split(string(text), "\n")
	for i, line := range strings.Split(got, "\n") {
		if i >= len(want) || line != want[i] {
			old := "its end"
			if i < len(want) {
				old = want[i]
			}
			b.t.Fatalf("%s:%d: history %q differs\n got %s\nwant %s\nIf it may, run the test with -update and read the file.", path, i+1, b.title, line, old)
		}
	}
	if got != string(text) {
		b.t.Fatalf("%s: history %q ends sooner than the file", path, b.title)
	}
}
