package limits_test

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// counting is the secret of the bytes 0 to 31, and other one of 1 to 32.
const counting, other = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=", "AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA="

func secretsOf(t testing.TB, lines ...string) *limits.Secrets {
	t.Helper()
	s, err := limits.ParseSecrets([]byte(strings.Join(lines, "\n") + "\n"))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func secretLines(n int) string {
	var lines []string
	for i := range n {
		lines = append(lines, base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{byte(i)}, 32)))
	}
	return strings.Join(lines, "\n")
}

func TestParseSecrets(t *testing.T) {
	long := base64.StdEncoding.EncodeToString(make([]byte, 65))
	for _, tt := range []struct{ name, file, err string }{
		{"one", counting, ""},
		{"several, comments, blanks and other line ends", "# current\r\n" + counting + "\r\n\n  # previous\n\t" + other + " ", ""},
		{"nothing", "", "it holds no secret"},
		{"comments only", "# " + counting + "\n", "it holds no secret"},
		{"too short", base64.StdEncoding.EncodeToString(make([]byte, 31)), "line 1: a secret of 31 bytes: want 32 to 64, such as from: openssl rand -base64 32"},
		{"too long", "\n" + long, "line 2: a secret of 65 bytes: want 32 to 64, such as from: openssl rand -base64 32"},
		{"no base64", "correct horse battery staple", "line 1 is no base64: want one secret, such as from: openssl rand -base64 32"},
		{"without padding", strings.TrimRight(counting, "="), "line 1 is no base64: want one secret, such as from: openssl rand -base64 32"},
		{"of URLs", "-_" + counting[2:], "line 1 is no base64: want one secret, such as from: openssl rand -base64 32"},
		{"with bits that mean nothing", counting[:42] + "9=", "line 1 is no base64: want one secret, such as from: openssl rand -base64 32"},
		{"a carriage return inside", counting[:4] + "\r" + counting[4:], "line 1 is no base64: want one secret, such as from: openssl rand -base64 32"},
		{"twice", counting + "\n" + other + "\n" + counting, "line 3: a secret that is there before"},
		{"too many", secretLines(4), "line 4: more than 3 secrets: remove those that no HAProxy uses any more"},
		{"too large", strings.Repeat("#\n", 10_000), "it is larger than 16384 bytes"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, err := limits.ParseSecrets([]byte(tt.file))
			if got := fmt.Sprint(err); tt.err != "" && got != tt.err || tt.err == "" && err != nil {
				t.Fatalf("ParseSecrets = %v, want %s", err, tt.err)
			}
			if err == nil && s.Current() != counting {
				t.Errorf("Current = %q, want the first one", s.Current())
			}
		})
	}
}

// A secret is in no text by accident.
func TestSecretsPrintNothing(t *testing.T) {
	s := secretsOf(t, counting)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s"} {
		if got := fmt.Sprintf(verb, s); got != "1 secret(s)" {
			t.Errorf("%s = %q", verb, got)
		}
	}
}

func FuzzParseSecrets(f *testing.F) {
	f.Add([]byte(counting + "\n# previous\n" + other))
	f.Add([]byte("\r\n" + counting + "\r\nx"))
	f.Fuzz(func(t *testing.T, file []byte) {
		s, err := limits.ParseSecrets(file)
		if err != nil {
			for line := range strings.Lines(string(file)) {
				if line = strings.TrimSpace(line); len(line) >= 40 && strings.Contains(err.Error(), line) {
					t.Errorf("%q tells a line of the file", err)
				}
			}
			return
		}
		if !strings.Contains(string(file), s.Current()) {
			t.Errorf("%q has the current secret %q, which is no line of it", file, s.Current())
		}
		for _, key := range s.Keys("alice") {
			if !limits.IsHidden(key) || key != limits.FileKey(key) {
				t.Errorf("Keys = %q, which is no hidden key", key)
			}
		}
	})
}

// What these are was computed with openssl dgst -mac HMAC.
func TestSecretKeys(t *testing.T) {
	for _, tt := range []struct{ name, user, want string }{
		{"name", "alice", "~C88305B7.6EEFAD2BED97B6D93EE663D67A44B460"},
		{"IPv4 address", "192.0.2.7", "~C88305B7:2EB3513EE0E06C25D4428A1AC8C0213E"},
		{"/64 of an IPv6 address", "2001:db8::", "~C88305B7:65F61E0E9C70B59CEFB9853A6C6273A2"},
		{"long name", strings.Repeat("a", 300), "~C88305B7.F7D48D961751FD1C631897C4E24A24EF"},
		{"NUL", "a\x00b", "~C88305B7.09411D0A4C23BE2BAB6C6A23B29A6152"},
		{"bytes that are no UTF-8", "\xff\xfe", "~C88305B7.E5B5211E6F5BF203FA8328CFE672C61C"},
		{"tilde in front", "~alice", "~C88305B7.A16558BDD9DF43E1E1BE62D9B8C46637"},
		{"at sign in front", "@up/x", "~C88305B7.7FA3FBC97D3293EE639B129E097B4D13"},
		{"hidden key", "~C88305B7.6EEFAD2BED97B6D93EE663D67A44B460", "~C88305B7.6EEFAD2BED97B6D93EE663D67A44B460"},
	} {
		if got := secretsOf(t, counting).Keys(tt.user); !slices.Equal(got, []string{tt.want}) {
			t.Errorf("%s: Keys = %q, want %q", tt.name, got, tt.want)
		}
	}
	both := secretsOf(t, counting, other)
	if got, want := both.Keys("alice"), append(secretsOf(t, counting).Keys("alice"), secretsOf(t, other).Keys("alice")...); !slices.Equal(got, want) {
		t.Errorf("Keys = %q, want %q", got, want)
	}
}

// Everything that Anonymous takes for an address is one when it is hidden.
func TestHiddenAddresses(t *testing.T) {
	s := secretsOf(t, counting)
	name := rapid.OneOf(
		rapid.StringMatching(`[0-9]{1,3}(\.[0-9]{1,3}){2,4}`),
		rapid.StringMatching(`([0-9a-fA-F]{0,4}:){1,8}[0-9a-f]{0,4}`),
		rapid.StringMatching(`::[0-9a-f:]{0,9}[0-9]\.[0-9]\.[0-9]{1,3}\.[0-9]`),
		rapid.StringMatching(`[a-z.:0-9]{1,9}`),
	)
	rapid.Check(t, func(t *rapid.T) {
		name := name.Draw(t, "name")
		if key := s.Keys(name)[0]; limits.Anonymous(name) && !limits.Anonymous(key) {
			t.Fatalf("%q is an address, and its key %q is not", name, key)
		}
	})
	for _, name := range []string{"alice", "1.2.3", "1.2.3.4.5", "1..2.3", "1.2.3.", "1234.1.1.1", "cafe", "ca:fe", "a.b.c.d", "1.2.3.4 ", "a:b:c:x", ".1.2.3", ""} {
		if key := s.Keys(name)[0]; limits.Anonymous(key) {
			t.Errorf("the key %q of %q is that of an address", key, name)
		}
	}
}
