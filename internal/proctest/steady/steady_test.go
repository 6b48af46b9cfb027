package main

import (
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// someMachine is a machine that stood still all the time, or never.
type someMachine struct {
	stoodStill bool
	waits      int
}

func (m *someMachine) worstStall(from, to time.Time) stall {
	if !m.stoodStill {
		return stall{}
	}
	return stall{began: from, length: to.Sub(from) + time.Second}
}

func (m *someMachine) waitForCalm() { m.waits++ }

// The module's tests fail for as often as a file says, each in its way.
const testedModule = `package tested

import (
	"os"
	"strings"
	"testing"
)

func left(t *testing.T, name string) bool {
	text, _ := os.ReadFile("fail")
	rest, ok := strings.CutPrefix(string(text), name)
	if ok {
		if err := os.WriteFile("fail", []byte(rest), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return ok
}

func TestError(t *testing.T) {
	t.Run("part", func(t *testing.T) {
		if left(t, "error ") {
			t.Error("this part is bad")
		}
	})
}

func TestPanic(t *testing.T) {
	if left(t, "panic ") {
		panic("at once")
	}
}

func TestRace(t *testing.T) {
	if left(t, "race ") {
		t.Error("WARNING: DATA RACE")
	}
}

func TestWell(t *testing.T) { t.Log("never printed") }
`

func TestOnlyWhatProvesNothingRunsAgain(t *testing.T) {
	tests := []struct {
		name, fail   string
		stoodStill   bool
		wantError    string // empty: none
		wantAttempts int
	}{
		{"nothing fails", "", true, "", 1},
		{"a failure on a machine that keeps up counts", "error ", false, "failed: TestError", 1},
		{"a failure on a machine that stood still is repeated", "error ", true, "", 2},
		{"twice", "error error ", true, "", 3},
		{"three times is too often", "error error error ", true, "failed: TestError", 3},
		{"a panic hides the tests that did not run", "panic ", true, "failed: example.com/tested", 1},
		{"a race is a defect on any machine", "race ", true, "failed: TestRace", 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			for name, text := range map[string]string{"go.mod": "module example.com/tested\n", "tested_test.go": testedModule, "fail": tt.fail} {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			t.Chdir(dir)
			var out strings.Builder
			m := &someMachine{stoodStill: tt.stoodStill}
			attempts := 0
			err := runSteadily(&out, m, func(flags, packages []string) (*report, error) {
				attempts++
				return goTest(&out, flags, packages)
			}, []string{"-count=1", "-timeout", "1m"}, []string{"."})
			if got := errorText(err); got != tt.wantError {
				t.Errorf("error %q, want %q; printed\n%s", got, tt.wantError, &out)
			}
			if attempts != tt.wantAttempts || m.waits != attempts-1 {
				t.Errorf("%d attempts, %d waits for a calm machine, want %d, one before each but the first", attempts, m.waits, tt.wantAttempts)
			}
			if strings.HasPrefix(tt.fail, "error") && !strings.Contains(out.String(), "this part is bad") {
				t.Errorf("printed without what the test says:\n%s", &out)
			}
			if strings.Contains(out.String(), "never printed") {
				t.Errorf("printed with what a good test says:\n%s", &out)
			}
		})
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestBuildThatFailsIsBroken(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"go.mod": "module example.com/tested\n", "tested_test.go": "package tested\nnonsense\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(dir)
	var out strings.Builder
	r, err := goTest(&out, nil, []string{"."})
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"example.com/tested"}; !slices.Equal(r.broken, want) || len(r.failures) > 0 {
		t.Errorf("broken %q, failures %v, want %q and none", r.broken, r.failures, want)
	}
	if !strings.Contains(out.String(), "tested_test.go:2:1:") {
		t.Errorf("printed without the compiler's message:\n%s", &out)
	}
}

func TestMoreFailuresThanAMachineMakesAreNotRepeated(t *testing.T) {
	attempts := 0
	err := runSteadily(io.Discard, &someMachine{stoodStill: true}, func(_, _ []string) (*report, error) {
		attempts++
		return &report{failures: make([]failure, maxRepeatTests+1)}, nil
	}, nil, []string{"."})
	if err == nil || attempts != 1 {
		t.Errorf("error %v after %d attempts, want one after the first", err, attempts)
	}
}

func TestWorstStall(t *testing.T) {
	at := func(seconds int) time.Time { return time.Unix(int64(seconds), 0) }
	w := &watcher{}
	w.add(stall{began: at(10), length: 2 * time.Second})
	w.add(stall{began: at(20), length: 5 * time.Second})
	for _, tt := range []struct {
		name     string
		from, to int
		want     time.Duration
	}{
		{"before all", 0, 10, 0},
		{"between", 12, 20, 0},
		{"within one", 21, 22, 5 * time.Second},
		{"the end of one", 11, 15, 2 * time.Second},
		{"the longer of two", 5, 40, 5 * time.Second},
		{"after all", 25, 40, 0},
	} {
		if got := w.worstStall(at(tt.from), at(tt.to)).length; got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
	for i := range 2 * maxStalls {
		w.add(stall{began: at(100 + i), length: time.Second})
	}
	if len(w.stalls) != maxStalls {
		t.Errorf("%d stalls remembered, want %d", len(w.stalls), maxStalls)
	}
}

func TestProcessorTimes(t *testing.T) {
	for text, want := range map[string]processorTimes{
		"cpu  10 20 30 40 50 60 70 80 1000 2000\ncpu0 1 2 3": {total: 360, stolen: 80},
		"cpu  10 20 30 40":               {},
		"cpu  10 20 30 x 50 60 70 80 90": {},
		"":                               {},
	} {
		if got := parseProcessorTimes(text); got != want {
			t.Errorf("parseProcessorTimes(%q) = %v, want %v", text, got, want)
		}
	}
}
