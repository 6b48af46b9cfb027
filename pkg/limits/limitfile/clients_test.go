package limitfile

import (
	"fmt"
	"testing"
)

func TestFailedAuth(t *testing.T) {
	const forms = "must be a number of answers and a window, such as 30/min (/s, /min or /hour), or unlimited, got "
	for _, tt := range []struct{ value, want string }{
		{"30/min", "30/min"},
		{"1/s", "1/s"},
		{"1000000000/hour", "1000000000/hour"},
		{"unlimited", ""},
		{"30", "f:3:28: failed_auth.per_address has no window, got 30; write 30/min"},
		{"often", "f:3:28: failed_auth.per_address " + forms + `"often"`},
		{"-1", "f:3:28: failed_auth.per_address " + forms + `"-1"`},
		{"0/min", "f:3:28: failed_auth.per_address must be 1 or more, got 0; write unlimited to lift the limit"},
		{"-3/s", "f:3:28: failed_auth.per_address must be 1 or more, got -3; write unlimited to lift the limit"},
		{"03/s", "f:3:28: failed_auth.per_address " + forms + `"03"`},
		{"/min", "f:3:28: failed_auth.per_address " + forms + `""`},
		{"1000000001/s", "f:3:28: failed_auth.per_address must be at most 1000000000, got 1000000001"},
		{"5/day", `f:3:28: failed_auth.per_address has the unknown window "day" (valid: s, min, hour)`},
		{"5/min/s", `f:3:28: failed_auth.per_address has the unknown window "min/s" (valid: s, min, hour)`},
		{"5/", `f:3:28: failed_auth.per_address has the unknown window "" (valid: s, min, hour)`},
		{"[30/min]", "f:3:28: failed_auth.per_address " + forms + "a list"},
	} {
		set, err := Parse("f", fmt.Appendf(nil, "version: 1\ndefault_tier: a\nfailed_auth: {per_address: %s}\ntiers: {a: {}}\n", tt.value))
		got := fmt.Sprint(err)
		if err == nil {
			got = set.AddressLimits().FailedAuthString()
		}
		if got != tt.want {
			t.Errorf("failed_auth: {per_address: %s} = %s, want %s", tt.value, got, tt.want)
		}
	}
}
