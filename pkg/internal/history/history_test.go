package history

import (
	"testing"
	"time"
)

// A failing testing.TB says so without ending this test.
type failing struct {
	testing.TB
	failed bool
}

func (f *failing) Helper()               {}
func (f *failing) Fatalf(string, ...any) { f.failed = true; panic(f) }

// write is a short history of two steps, the last of which is given.
func write(t testing.TB, last string) *Book {
	b := New(t, "Two steps", "\n   a ──▶ b\n", "Somebody takes two steps.", "A step is a word or two.")
	b.Part("The first part.")
	b.Tell("a", "takes step %d", 1)
	b.At(1500 * time.Millisecond)
	b.Tell("b", "sees it")
	b.Tell("a", "takes %s", last)
	b.Tell("a", "says so, at such length that what it says and what it did before cannot stand in one line of the file")
	return b
}

func TestBook(t *testing.T) {
	write(t, "step 2").Check("two-steps")
	if *update {
		return // or the others would be written
	}
	for name, change := range map[string]func(*failing) *Book{
		"another line": func(f *failing) *Book { return write(f, "step 3") },
		"a line more": func(f *failing) *Book {
			b := write(f, "step 2")
			b.Tell("b", "sees more")
			return b
		},
		"a line less": func(f *failing) *Book {
			return New(f, "Two steps", "   a ──▶ b", "Somebody takes two steps.", "")
		},
		"no file": func(f *failing) *Book { return New(f, "Two steps", "", "", "") },
	} {
		f := &failing{TB: t}
		file := map[bool]string{false: "two-steps", true: "none"}[name == "no file"]
		func() {
			defer func() { _ = recover() }()
			change(f).Check(file)
		}()
		if !f.failed {
			t.Errorf("%s: the history passes for the one in the file", name)
		}
	}
}
