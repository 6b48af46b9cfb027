package limits_test

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/sluice-qos/sluice/pkg/limits"
)

func TestKey(t *testing.T) {
	hashed := func(user string) string { return fmt.Sprintf("~%X", sha256.Sum256([]byte(user))) }
	for _, tt := range []struct{ name, user, want string }{
		{"plain name", "alice", "alice"},
		{"one byte", "a", "a"},
		{"blanks, separators and UTF-8", "a b|c;d=\"é\"", "a b|c;d=\"é\""},
		{"bytes that are not UTF-8", "a\x80\xff", "a\x80\xff"},
		{"tilde inside", "a~b", "a~b"},
		{"100 bytes", strings.Repeat("a", 100), strings.Repeat("a", 100)},
		{"101 bytes", strings.Repeat("a", 101), hashed(strings.Repeat("a", 101))},
		{"51 characters of 2 bytes", strings.Repeat("é", 51), hashed(strings.Repeat("é", 51))},
		{"empty", "", "~E3B0C44298FC1C149AFBF4C8996FB92427AE41E4649B934CA495991B7852B855"},
		{"tilde in front", "~bob", hashed("~bob")},
		{"at sign in front", "@bob", "@bob"},
		{"at sign inside", "a@b", "a@b"},
		{"a key sent as a name", hashed("~bob"), hashed(hashed("~bob"))},
		{"NUL", "a\x00b", hashed("a\x00b")},
		{"newline at the end", "a\n", hashed("a\n")},
		{"last control byte", "a\x1f", hashed("a\x1f")},
		{"DEL", "a\x7f", hashed("a\x7f")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := limits.Key(tt.user); got != tt.want {
				t.Errorf("Key(%q) = %q, want %q", tt.user, got, tt.want)
			}
		})
	}
}

func TestKeyProperties(t *testing.T) {
	// Names near every rule's edge, and any bytes at all.
	name := rapid.OneOf(
		rapid.StringMatching(`[~@a]{0,3}[ab\x00\x1f \x7f]{0,3}`),
		rapid.StringMatching(`~?[0-9A-F]{64}`),
		rapid.StringOfN(rapid.RuneFrom([]rune("aé")), 95, 110, -1),
		rapid.Map(rapid.SliceOfN(rapid.Byte(), 0, 200), func(b []byte) string { return string(b) }),
	)
	rapid.Check(t, func(t *rapid.T) {
		a, b := name.Draw(t, "a"), name.Draw(t, "b")
		if a != b && limits.Key(a) == limits.Key(b) {
			t.Fatalf("Key(%q) = Key(%q) = %q, want different keys", a, b, limits.Key(a))
		}
		key := limits.Key(a)
		if len(key) == 0 || len(key) > 100 || strings.ContainsFunc(key, func(r rune) bool { return r < 0x20 || r == 0x7f }) {
			t.Fatalf("Key(%q) = %q, want 1 to 100 bytes without control bytes", a, key)
		}
		if !strings.HasPrefix(key, "~") && key != a {
			t.Fatalf("Key(%q) = %q, want the name itself", a, key)
		}
		if strings.HasPrefix(key, "~") && len(key) != 65 {
			t.Fatalf("Key(%q) = %q, want 65 bytes", a, key)
		}
	})
}
