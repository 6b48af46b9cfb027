package main

import (
	"context"
	"strings"
	"testing"
	"time"
)

func TestTheExampleRunsToItsEnd(t *testing.T) {
	var out strings.Builder
	if err := run(t.Context(), &out, options{jobs: 5, each: 50 * time.Millisecond}); err != nil {
		t.Fatalf("run() = %v\n%s", err, &out)
	}
	if got, want := out.String(), "■■■■■                        ■■■■■\n\n\ndone\nAt a time, at most 1 of fred's"; !strings.Contains(got, want) {
		t.Errorf("it wrote\n%s\nwant in it\n%s", got, want)
	}
	if want := "(each job spent 1), and neither user waited for the other.\n"; !strings.HasSuffix(out.String(), want) {
		t.Errorf("it wrote\n%s\nwant an end of\n%s", &out, want)
	}
	for line := range strings.Lines(out.String()) {
		f := strings.Fields(line)
		if len(f) == 3 && (strings.Contains(f[1], "▶▶") || strings.Contains(f[2], "▶▶▶▶")) {
			t.Errorf("more than one of fred's or three of paula's run: %s", line)
		}
	}
}

func TestTheExampleEndsWhenItIsTold(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	w := &watch{word: "▶", found: cancel}
	if err := run(ctx, w, options{jobs: 3, each: time.Hour}); err != nil {
		t.Fatalf("run() = %v\n%s", err, w)
	}
	if !strings.HasSuffix(w.String(), "\nstopped\n") {
		t.Errorf("it wrote\n%s\nwant an end of stopped", w)
	}
}

// watch says when a word is written.
type watch struct {
	strings.Builder
	word  string
	found func()
}

func (w *watch) Write(b []byte) (int, error) {
	if strings.Contains(string(b), w.word) {
		w.found()
	}
	return w.Builder.Write(b)
}
