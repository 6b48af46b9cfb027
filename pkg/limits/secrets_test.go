package limits

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// counting is the secret of the bytes 0 to 31, and other one of 1 to 32.
const counting, other = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=", "AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA="

func secretsOf(t testing.TB, lines ...string) *Secrets {
	t.Helper()
	s, err := ParseSecrets([]byte(strings.Join(lines, "\n") + "\n"))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func hide(t testing.TB, s *Set, lines ...string) *Set {
	t.Helper()
	hidden, err := s.Hide(secretsOf(t, lines...))
	if err != nil {
		t.Fatal(err)
	}
	return hidden
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
			s, err := ParseSecrets([]byte(tt.file))
			if got := fmt.Sprint(err); tt.err != "" && got != tt.err || tt.err == "" && err != nil {
				t.Fatalf("ParseSecrets = %v, want %s", err, tt.err)
			}
			if err == nil && s.Current() != counting {
				t.Errorf("Current = %q, want the first one", s.Current())
			}
		})
	}
}

func secretLines(n int) string {
	var lines []string
	for i := range n {
		lines = append(lines, base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{byte(i)}, 32)))
	}
	return strings.Join(lines, "\n")
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
		s, err := ParseSecrets(file)
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
			if !IsHidden(key) || key != fileKey(key) {
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
		if key := s.Keys(name)[0]; Anonymous(name) && !Anonymous(key) {
			t.Fatalf("%q is an address, and its key %q is not", name, key)
		}
	})
	for _, name := range []string{"alice", "1.2.3", "1.2.3.4.5", "1..2.3", "1.2.3.", "1234.1.1.1", "cafe", "ca:fe", "a.b.c.d", "1.2.3.4 ", "a:b:c:x", ".1.2.3", ""} {
		if key := s.Keys(name)[0]; Anonymous(key) {
			t.Errorf("the key %q of %q is that of an address", key, name)
		}
	}
}

// Users have the same limits by each of their keys as by their names, and what is
// published tells no name.
func TestHide(t *testing.T) {
	refused := 0
	for _, path := range append(glob(t, "testdata/good-*.yaml"), glob(t, "../../config/*.yaml")...) {
		set, err := Load(path)
		if err != nil {
			t.Fatal(err)
		}
		t.Run(filepath.Base(path), func(t *testing.T) {
			secrets := secretsOf(t, counting, other)
			hidden, err := set.Hide(secrets)
			if len(set.Patterns()) > 0 || slices.ContainsFunc(set.Exempt().Users, isPattern) {
				refused++
				var errs Errors
				if !errors.As(err, &errs) {
					t.Fatalf("Hide = %v, want Errors about patterns", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			published, err := Parse("published", hidden.Source()) // as an agent does
			if err != nil {
				t.Fatal(err)
			}
			if published.Version() != hidden.Version() {
				t.Errorf("versions: hidden %s, published %s", hidden.Version(), published.Version())
			}
			if hidden.Len() != 2*set.Len() {
				t.Errorf("Len = %d, want two keys for each of %d users", hidden.Len(), set.Len())
			}
			sameButUsers(t, set, published)
			for at := set; ; at = at.At(at.Expires()) {
				now := time.Unix(0, at.now)
				for name := range names(at) {
					for _, endpoint := range append([]string{""}, at.Endpoints()...) {
						want := at.User(EndpointKey(endpoint, Key(name)))
						for _, key := range secrets.Keys(name) {
							if got := published.At(now).User(EndpointKey(endpoint, key)); !equalLimits(got, want) {
								t.Errorf("%q at %q has %+v by its key, want %+v", name, endpoint, got, want)
							}
						}
						sameOrigin(t, at, hidden.At(now), endpoint, name)
					}
					if len(name) > 3 && !isWordOf(set, name) && bytes.Contains(published.Source(), []byte(name)) {
						t.Errorf("what is published tells the name %q:\n%s", name, published.Source())
					}
				}
				if at.Expires().IsZero() {
					break
				}
			}
		})
	}
	if refused == 0 {
		t.Error("no file has patterns, want some to be refused")
	}
}

// isWordOf reports whether a file has a word for other reasons than a user of that name.
func isWordOf(s *Set, word string) bool {
	return slices.Contains(s.Tiers(), word) || slices.Contains(userFields, word) || slices.ContainsFunc(s.Exempt().Paths, func(p string) bool { return strings.Contains(p, word) }) ||
		slices.ContainsFunc(BuiltinClasses(), func(class string) bool { return strings.Contains(word, class) })
}

// names are the users whom a file names, those who are exempt too.
func names(s *Set) map[string]bool {
	all := map[string]bool{}
	for name := range s.Users() {
		all[name] = true
	}
	for _, name := range s.Exempt().Users {
		all[name] = true
	}
	return all
}

func equalLimits(a, b *Limits) bool {
	return cmp.Equal(a, b, cmp.AllowUnexported(Limits{}, Rate{}, Jobs{}))
}

// sameButUsers checks that two files say the same of everything but users.
func sameButUsers(t *testing.T, want, got *Set) {
	t.Helper()
	only := func(s *Set) string {
		c := *s.content
		c.users, c.unlisted, c.version, c.untils, c.exempt.Users = nil, nil, "", nil, nil
		return print(&Set{&c, math.MinInt64})
	}
	if diff := cmp.Diff(only(want), only(got)); diff != "" {
		t.Errorf("hidden (-file +hidden):\n%s", diff)
	}
}

// sameOrigin checks that a hidden set tells by name and by key where the file says what
// it says of a user, but for comments.
func sameOrigin(t *testing.T, set, hidden *Set, endpoint, name string) {
	t.Helper()
	want := set.OriginAt(endpoint, name)
	want.Comment = ""
	for _, who := range append(hidden.Keys(name), name) {
		if diff := cmp.Diff(want, hidden.OriginAt(endpoint, who)); diff != "" {
			t.Errorf("origin of %q at %q by %q (-file +hidden):\n%s", name, endpoint, who, diff)
		}
	}
}

// Names are in comments, in the files of users_from and in their names.
func TestHideTellsNoName(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("limits.yaml", `# of melchior
version: 1 # melchior
default_tier: free
# melchior
tiers:
  free: {concurrent: 1, comment: for melchior} # melchior
  # melchior
  comment: {concurrent: 3}
exempt:
  # melchior
  users: [melchior-probe] # melchior
users_from: melchior.d.yaml
users: # melchior
  # melchior
  comment: comment # melchior's
  balthasar: free # melchior
  caspar:
    # melchior
    comment: a friend of melchior
    concurrent: 7 # melchior
# melchior
`)
	write("melchior.d.yaml", "users:\n  melchior: comment\n  'melchior two': {comment: melchior}\n")
	set, err := Load(filepath.Join(dir, "limits.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	hidden := hide(t, set, counting)
	for _, name := range []string{"melchior", "balthasar", "caspar"} {
		if bytes.Contains(hidden.Source(), []byte(name)) {
			t.Errorf("what is published tells the name %s:\n%s", name, hidden.Source())
		}
	}
	for name, want := range map[string]int{"melchior": 3, "comment": 3, "balthasar": 1, "caspar": 7, "melchior two": 1, "nobody": 1, "melchior-probe": 0} {
		if got := hidden.User(hidden.Key(name)).Concurrent; got != want {
			t.Errorf("%s may have %d in progress, want %d", name, got, want)
		}
	}
	if o := hidden.Origin("caspar"); o.User != 17 || o.Comment != "" {
		t.Errorf("caspar is on line %d with the comment %q, want line 17 and none", o.User, o.Comment)
	}
	if _, p := plainLines(hidden.Source()); p.count != 3 {
		t.Errorf("%d users are in lines that are read quickly, want 3:\n%s", p.count, hidden.Source())
	}
}

func TestHideRefusesPatterns(t *testing.T) {
	set, err := Parse("limits.yaml", []byte("version: 1\ndefault_tier: free\ntiers: {free: {}}\nexempt:\n  users: [probe, \"mon-*\"]\nusers:\n  alice: free\n  \"team-secret-*\": free\n"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = set.Hide(secretsOf(t, counting))
	const why = "a pattern cannot match users whose names are hidden (--key-secret-file): a key tells nothing of the name; name each of these users, or give them the tier of all who are not named (default_tier)"
	want := "limits.yaml:5:18: exempt.users: " + why + "\nlimits.yaml:8:3: users: " + why
	if err == nil || err.Error() != want {
		t.Errorf("Hide = %v\nwant %s", err, want)
	}
}

func TestHideRefusesAUserTwice(t *testing.T) {
	key := secretsOf(t, counting).Keys("alice")[0]
	set, err := Parse("limits.yaml", []byte("version: 1\ndefault_tier: free\ntiers: {free: {}, pro: {concurrent: 2}}\nusers:\n  alice: free\n  "+key+": pro\n"))
	if err != nil {
		t.Fatal(err)
	}
	if got := set.User(key).Tier; got != "pro" {
		t.Errorf("a user named by key has tier %s, want pro", got)
	}
	if _, err := set.Hide(secretsOf(t, counting)); err == nil || strings.Contains(err.Error(), "alice") {
		t.Errorf("Hide = %v, want an error without the name", err)
	}
}

// Overrides are in force for all keys of a user, and their origin is found by each.
func TestHiddenOverride(t *testing.T) {
	set, err := Parse("limits.yaml", []byte("version: 1\ndefault_tier: free\ntiers: {free: {concurrent: 1}, pro: {concurrent: 2}}\nusers:\n  alice: pro\n"))
	if err != nil {
		t.Fatal(err)
	}
	hidden := hide(t, set, counting, other)
	keys := hidden.Keys("alice")
	o := Override{User: keys[0], Also: keys[1:], Limits: []byte(`{"requests": {"GET": 5}}`), Reason: "test", Until: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)}
	with, refused := hidden.With([]Override{o})
	if len(refused) > 0 {
		t.Fatal(refused)
	}
	published, err := Parse("published", with.Source())
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range keys {
		l := published.User(key)
		if r, _ := l.Rate("GET", Second); r.Max != 5 || l.Concurrent != 2 {
			t.Errorf("%s has %d GETs and %d in progress, want 5 and 2", key, r.Max, l.Concurrent)
		}
	}
	for _, who := range append(keys, "alice") {
		if o := with.Origin(who); len(o.Hand) != 1 || o.User != 5 {
			t.Errorf("%s is on line %d with %d overrides, want line 5 and one", who, o.User, len(o.Hand))
		}
	}
	if with.SecretOf(keys[1]) != PreviousSecret {
		t.Error("the set with an override has other secrets")
	}
	o.Also = []string{"bob"}
	if err := o.Check(); err == nil {
		t.Error("an override has a name beside its key, want an error")
	}
}

func TestSecretOf(t *testing.T) {
	set, err := Parse("limits.yaml", []byte("version: 1\ndefault_tier: free\ntiers: {free: {}}\n"))
	if err != nil {
		t.Fatal(err)
	}
	hidden := hide(t, set, counting, other)
	keys := hidden.Keys("alice")
	third := secretsOf(t, strings.Split(secretLines(1), "\n")...).Keys("alice")[0]
	for _, tt := range []struct {
		key           string
		plain, hidden SecretOf
	}{
		{keys[0], UnknownSecret, CurrentSecret},
		{keys[1], UnknownSecret, PreviousSecret},
		{EndpointKey("up", keys[1]), UnknownSecret, PreviousSecret},
		{third, UnknownSecret, UnknownSecret},
		{"alice", "", NoSecret},
		{Key("~alice"), "", NoSecret},
		{"~", "", ""},
		{ExemptKey, "", ""},
	} {
		if got := set.SecretOf(tt.key); got != tt.plain {
			t.Errorf("without secrets, SecretOf(%q) = %q, want %q", tt.key, got, tt.plain)
		}
		if got := hidden.SecretOf(tt.key); got != tt.hidden {
			t.Errorf("SecretOf(%q) = %q, want %q", tt.key, got, tt.hidden)
		}
	}
}
