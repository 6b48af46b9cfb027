package limitfile

import (
	"strconv"
	"strings"
	"testing"

	"github.com/sluice-qos/sluice/pkg/limits"
)

func TestParseSize(t *testing.T) {
	for _, tt := range []struct {
		in   string
		want int64
	}{
		{"1", 1},
		{"5000", 5000},
		{"1kB", 1000},
		{"2MB", 2_000_000},
		{"3GB", 3_000_000_000},
		{"1KiB", 1024},
		{"10MiB", 10_485_760},
		{"1GiB", 1_073_741_824},
		{"1TiB", 1_099_511_627_776},
		{"1024GiB", 1_099_511_627_776},
		{"1099511627776", 1_099_511_627_776},
	} {
		if got, err := sizeScale.parse(tt.in); got != tt.want || err != nil {
			t.Errorf("parseSize(%q) = %d, %v, want %d", tt.in, got, err, tt.want)
		}
	}
}

func TestParseSizeErrors(t *testing.T) {
	const forms = "must be a whole number of bytes, one with kB, MB, GB, KiB, MiB, GiB or TiB, or unlimited, got "
	const units = "(valid: kB, MB, GB, KiB, MiB, GiB, TiB)"
	checkRefused(t, sizeScale.parse, []refused{
		{"empty", "", forms + `""`},
		{"text", "fast", forms + `"fast"`},
		{"unit alone", "MiB", forms + `"MiB"`},
		{"sign alone", "-", forms + `"-"`},
		{"fraction", "1.5MiB", forms + `"1.5MiB"`},
		{"thousands", "1_000", forms + `"1_000"`},
		{"plus", "+1", forms + `"+1"`},
		{"zero", "0", "must be 1 or more, got 0; write unlimited to lift the limit"},
		{"zero with a unit", "0MiB", "must be 1 or more, got 0MiB; write unlimited to lift the limit"},
		{"negative", "-5MiB", "must be 1 or more, got -5MiB; write unlimited to lift the limit"},
		{"wrong case", "10mib", `has the unknown unit "mib"; did you mean MiB? ` + units},
		{"kilo in lower case", "10kb", `has the unknown unit "kb"; did you mean kB? ` + units},
		{"short unit", "10M", `has the unknown unit "M"; did you mean MB? ` + units},
		{"bits", "10Mbit", `has the unknown unit "Mbit" ` + units},
		{"per second", "10MiB/s", `has the unknown unit "MiB/s" ` + units},
		{"blank", "10 MiB", `must have no blank before the unit, got "10 MiB"; write 10MiB`},
		{"blank and a wrong unit", "10 Mbit", `has the unknown unit " Mbit" ` + units},
		{"leading zero", "010", "must not begin with 0, got 010"},
		{"above the largest", "2TiB", "must be at most 1TiB per second, got 2TiB"},
		{"one above the largest", "1099511627777", "must be at most 1TiB per second, got 1099511627777"},
		{"above 64 bits", "99999999999999999999", "must be at most 1TiB per second, got 99999999999999999999"},
		{"above 64 bits by its unit", "9999999999999TiB", "must be at most 1TiB per second, got 9999999999999TiB"},
	})
}

func FuzzSize(f *testing.F) {
	for _, s := range []string{"", "1", "0", "-1", "10MiB", "1.5GB", "9223372036854775807TiB", "10 MB", "1e6", "٣MB", "1TiB", "\x00"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n, err := sizeScale.parse(s)
		if err != nil {
			if n != 0 || err.Error() == "" || strings.ContainsAny(err.Error(), "\n\x00") {
				t.Errorf("parseSize(%q) = %d, %q, want 0 and one line", s, n, err)
			}
			return
		}
		if n < 1 || n > limits.MaxBandwidth {
			t.Errorf("parseSize(%q) = %d, want 1 to %d", s, n, int64(limits.MaxBandwidth))
		}
		if s[0] < '1' || s[0] > '9' {
			t.Errorf("parseSize(%q) = %d, want an error", s, n)
		}
	})
}

func TestParsePriority(t *testing.T) {
	const forms = "must be a whole number from -2047 to 2047, of which the lowest is served first, got "
	for n := -limits.MaxPriority; n <= limits.MaxPriority; n++ {
		if got, err := parsePriority(strconv.Itoa(n)); got != int64(n) || err != nil {
			t.Fatalf("parsePriority(%d) = %d, %v, want %d", n, got, err, n)
		}
	}
	checkRefused(t, parsePriority, []refused{
		{"empty", "", forms + `""`},
		{"text", "high", forms + `"high"`},
		{"unlimited", "unlimited", forms + `"unlimited"`},
		{"sign alone", "-", forms + `"-"`},
		{"two signs", "--1", forms + `"--1"`},
		{"plus", "+1", forms + `"+1"`},
		{"fraction", "1.5", forms + `"1.5"`},
		{"hexadecimal", "0x10", forms + `"0x10"`},
		{"leading zero", "010", forms + `"010"`},
		{"negative zero", "-0", forms + `"-0"`},
		{"one above the highest", "2048", forms + "2048"},
		{"one below the lowest", "-2048", forms + "-2048"},
		{"above 64 bits", "99999999999999999999", forms + "99999999999999999999"},
	})
}

func FuzzPriority(f *testing.F) {
	for _, s := range []string{"", "0", "-0", "-10", "2047", "-2048", "+1", "1.5", "٣", "99999999999999999999", "\x00"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n, err := parsePriority(s)
		if err != nil {
			if n != 0 || len(err.Error()) > 1000 || strings.ContainsAny(err.Error(), "\n\x00") {
				t.Errorf("parsePriority(%q) = %d, %q, want 0 and one line", s, n, err)
			}
			return
		}
		if n < -limits.MaxPriority || n > limits.MaxPriority || strconv.FormatInt(n, 10) != s {
			t.Errorf("parsePriority(%q) = %d, want an error", s, n)
		}
	})
}
