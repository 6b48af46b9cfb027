package limitfile

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluice-qos/sluice/pkg/limits"
)

func TestParseWait(t *testing.T) {
	for _, tt := range []struct {
		in   string
		want time.Duration
	}{
		{"refuse", 0},
		{"wait 0.001s", time.Millisecond},
		{"wait 0.5s", 500 * time.Millisecond},
		{"wait 1.500s", 1500 * time.Millisecond},
	} {
		if got, err := parseWait(tt.in); time.Duration(got) != tt.want || err != nil {
			t.Errorf("parseWait(%q) = %v, %v, want %v", tt.in, got, err, tt.want)
		}
	}
}

// TestParseWaitReadsEveryDuration: what Go prints of a duration in the range is
// what the file may say.
func TestParseWaitReadsEveryDuration(t *testing.T) {
	for want := time.Millisecond; want <= limits.MaxWait; want += time.Millisecond {
		if got, err := parseWait("wait " + want.String()); time.Duration(got) != want || err != nil {
			t.Fatalf("parseWait(wait %v) = %v, %v, want %v", want, got, err, want)
		}
		ms := fmt.Sprintf("wait %dms", want.Milliseconds())
		if got, err := parseWait(ms); time.Duration(got) != want || err != nil {
			t.Fatalf("parseWait(%s) = %v, %v, want %v", ms, got, err, want)
		}
	}
}

func TestParseWaitErrors(t *testing.T) {
	const forms = "must be refuse, or wait and a duration from 1ms to 30s, such as wait 2s, got "
	checkRefused(t, parseWait, []refused{
		{"empty", "", forms + `""`},
		{"another word", "queue", forms + `"queue"`},
		{"upper case", "Refuse", forms + `"Refuse"`},
		{"refuse and a duration", "refuse 2s", forms + `"refuse 2s"`},
		{"wait alone", "wait", forms + `"wait"`},
		{"wait and a blank", "wait ", forms + `"wait "`},
		{"duration alone", "2s", forms + `"2s"; write wait 2s`},
		{"two blanks", "wait  2s", forms + `"wait  2s"`},
		{"negative", "wait -2s", forms + `"wait -2s"`},
		{"nothing before the point", "wait .5s", forms + `"wait .5s"`},
		{"no unit", "wait 2", forms + `"wait 2"`},
		{"minutes", "wait 1m", forms + `"wait 1m"`},
		{"two units", "wait 1s500ms", forms + `"wait 1s500ms"`},
		{"blank before the unit", "wait 2 s", forms + `"wait 2 s"`},
		{"leading zero", "wait 02s", forms + `"wait 02s"`},
		{"part of a millisecond", "wait 1.5ms", forms + `"wait 1.5ms"`},
		{"part of a millisecond in seconds", "wait 0.0005s", forms + `"wait 0.0005s"`},
		{"zero", "wait 0s", "must wait 1ms or more, got 0s; write refuse not to wait"},
		{"zero with a point", "wait 0.000s", "must wait 1ms or more, got 0.000s; write refuse not to wait"},
		{"above the longest", "wait 30.001s", "must wait at most 30s, got 30.001s"},
		{"above the longest in milliseconds", "wait 30001ms", "must wait at most 30s, got 30001ms"},
		{"above 64 bits", "wait 99999999999999999999s", "must wait at most 30s, got 99999999999999999999s"},
	})
}

func FuzzWait(f *testing.F) {
	for _, s := range []string{"", "refuse", "wait", "wait 2s", "wait 1.5s", "wait 30.001s", "wait 0ms", "2s", "wait 1m", "wait ٣s", "wait 2 s", "wait 9223372036855s", "wait \x00"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n, err := parseWait(s)
		d := time.Duration(n)
		switch {
		case err != nil:
			if d != 0 || err.Error() == "" || len(err.Error()) > 1000 || strings.ContainsAny(err.Error(), "\n\x00") {
				t.Errorf("parseWait(%q) = %v, %q, want 0 and one line", s, d, err)
			}
		case d == 0:
			if s != "refuse" {
				t.Errorf("parseWait(%q) = 0, want that of refuse alone", s)
			}
		case d < time.Millisecond || d > limits.MaxWait || d%time.Millisecond != 0 || !strings.HasPrefix(s, "wait "):
			t.Errorf("parseWait(%q) = %v, want whole milliseconds from 1ms to %v", s, d, limits.MaxWait)
		}
	})
}
