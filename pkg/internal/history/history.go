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
)

var update = flag.Bool("update", false, "write the histories in testdata anew")

// A Book is one history. Its times are relative to the beginning of a second.
type Book struct {
	t     testing.TB
	title string
	text  strings.Builder
	now   time.Duration
	last  string // the time of the last line
}

// New begins a history with what it is about and, if there is one, with a diagram.
func New(t testing.TB, title, about, diagram string) *Book {
	b := &Book{t: t, title: title}
	fmt.Fprintf(&b.text, "%s\n%s\n\n%s\n", title, strings.Repeat("=", len(title)), strings.TrimSpace(about))
	if diagram = strings.Trim(diagram, "\n"); diagram != "" {
		fmt.Fprintf(&b.text, "\n%s\n", diagram)
	}
	return b
}

// At says when what follows happens.
func (b *Book) At(now time.Duration) { b.now = now }

// Now is when what is told now happens.
func (b *Book) Now() time.Duration { return b.now }

// Part begins a part of the history: a sentence or two of what is about to happen.
func (b *Book) Part(about string) {
	fmt.Fprintf(&b.text, "\n%s\n\n", strings.TrimSpace(about))
	b.last = ""
}

// Tell writes what somebody does or learns. Lines of one instant have the time once.
func (b *Book) Tell(who, format string, args ...any) {
	at := fmt.Sprintf("%.3f", b.now.Seconds())
	if at == b.last {
		at = ""
	}
	fmt.Fprintf(&b.text, "%8s  %-10s %s\n", at, who, fmt.Sprintf(format, args...))
	if at != "" {
		b.last = at
	}
}

// Outcome says what became of requests: so many admitted, refused and waiting.
func Outcome(admitted, refused, waiting int) string {
	var parts []string
	for _, of := range []struct {
		n    int
		what string
	}{{admitted, "admitted"}, {refused, "refused"}, {waiting, "waiting"}} {
		if of.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", of.n, of.what))
		}
	}
	return strings.Join(parts, ", ")
}

// Plural is a number of things, each called what.
func Plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// Check compares the history with the file testdata/NAME.txt.
func (b *Book) Check(name string) {
	b.t.Helper()
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
