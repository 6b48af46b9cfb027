package limitfile

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sluice-qos/sluice/pkg/limits"
)

func TestTooManyPatterns(t *testing.T) {
	file := func(form string, n int) string {
		var b strings.Builder
		b.WriteString("version: 1\ndefault_tier: free\ntiers: {free: {}}\nusers:\n")
		for i := range n {
			fmt.Fprintf(&b, "  \""+form+"\": free\n", i)
		}
		return b.String()
	}
	for _, tt := range []struct{ name, source, want string }{
		{"as many as may be", file("team-%d-*", limits.MaxPatterns), "<nil>"},
		{"one more", file("team-%d-*", limits.MaxPatterns+1), "f:1:1: the file has 10001 patterns of users; at most 10000 are possible"},
		{"exempt ones count", strings.Replace(file("team-%d-*", limits.MaxPatterns), "users:\n", "exempt: {users: [\"x*\"]}\nusers:\n", 1),
			"f:1:1: the file has 10001 patterns of users; at most 10000 are possible"},
	} {
		_, err := Parse("f", []byte(tt.source))
		if got := fmt.Sprint(err); got != tt.want {
			t.Errorf("%s: Parse = %s, want %s", tt.name, got, tt.want)
		}
	}
}
