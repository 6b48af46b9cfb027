package jobs

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"
)

// Whatever the names are, the id of a job leads back to them, and to no other runner's.
func FuzzJobID(f *testing.F) {
	for _, seed := range [][3]string{{"asynq", "report_default", "1"}, {"a/b", "c/d%2F", "/"}, {"", "", ""}, {"\x00", "%", "é"}} {
		f.Add(seed[0], seed[1], seed[2])
	}
	f.Fuzz(func(t *testing.T, name, queue, id string) {
		runner := func(name string) *Runner { return &Runner{runnerParts: &runnerParts{cfg: RunnerConfig{Name: name}}} }
		text := runner(name).JobID(queue, id)
		if q, i, ok := runner(name).splitJobID(text); q != queue || i != id || !ok {
			t.Errorf("splitJobID(%q) = %q, %q, %v, want %q, %q", text, q, i, ok, queue, id)
		}
		if _, _, ok := runner(name + "x").splitJobID(text); ok {
			t.Errorf("%q is of the runner %q, want of %q alone", text, name+"x", name)
		}
		runner(name).splitJobID(id) // of another program, which may write anything
	})
}

func TestWakeEach(t *testing.T) {
	runner := newTestRunner(t, RunnerConfig{Slots: NewMemory(nil), Queue: noQueue{}})
	failed := errors.New("no answer")
	var asked []string
	wake := func(queue, id string) (WakeResult, error) {
		asked = append(asked, queue+" "+id)
		if id == "fails" {
			return 0, failed
		}
		return WakeDone, nil
	}
	results, err := runner.WakeEach(t.Context(), []string{runner.JobID("q", "1"), "other/q/2", "3", runner.JobID("q", "4")}, wake)
	want := map[string]WakeResult{"test/q/1": WakeDone, "other/q/2": WakeForeign, "3": WakeForeign, "test/q/4": WakeDone}
	if err != nil || !maps.Equal(results, want) || !slices.Equal(asked, []string{"q 1", "q 4"}) {
		t.Errorf("WakeEach() = %v, %v, asked for %q; want %v", results, err, asked, want)
	}
	if _, err := runner.WakeEach(t.Context(), []string{runner.JobID("q", "fails")}, wake); !errors.Is(err, failed) {
		t.Errorf("WakeEach() = %v, want %v", err, failed)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := runner.WakeEach(ended, []string{runner.JobID("q", "1")}, wake); !errors.Is(err, context.Canceled) || len(asked) != 3 {
		t.Errorf("WakeEach() = %v with a context that has ended, and asked %q; want %v and nothing more", err, asked, context.Canceled)
	}
}

func TestEachPage(t *testing.T) {
	failed := errors.New("no answer")
	for _, c := range []struct {
		name  string
		rows  []int
		err   error // of the last page
		pages int
	}{
		{"one that is not full", []int{2}, nil, 1},
		{"an empty one after full ones", []int{3, 3, 0}, nil, 3},
		{"an error", []int{3, 3, 3}, failed, 2},
	} {
		pages := 0
		err := EachPage(t.Context(), 3, func(page int) (int, error) {
			if pages++; page != pages {
				t.Errorf("%s: page %d, want %d", c.name, page, pages)
			}
			if page == 2 {
				return c.rows[page-1], c.err
			}
			return c.rows[page-1], nil
		})
		if !errors.Is(err, c.err) || pages != c.pages {
			t.Errorf("%s: EachPage() = %v after %d pages, want %v after %d", c.name, err, pages, c.err, c.pages)
		}
	}
}
