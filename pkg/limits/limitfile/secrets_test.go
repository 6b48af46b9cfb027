package limitfile

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

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

func hide(t testing.TB, s *limits.Set, lines ...string) *limits.Set {
	t.Helper()
	hidden, err := Hide(s, secretsOf(t, lines...))
	if err != nil {
		t.Fatal(err)
	}
	return hidden
}

func secretLines(n int) string {
	var lines []string
	for i := range n {
		lines = append(lines, base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{byte(i)}, 32)))
	}
	return strings.Join(lines, "\n")
}

// Users have the same limits by each of their keys as by their names, and what is
// published tells no name.
func TestHide(t *testing.T) {
	refused := 0
	for _, path := range append(glob(t, "testdata/good-*.yaml"), glob(t, "../../../config/*.yaml")...) {
		set, err := Load(path)
		if err != nil {
			t.Fatal(err)
		}
		t.Run(filepath.Base(path), func(t *testing.T) {
			secrets := secretsOf(t, counting, other)
			hidden, err := Hide(set, secrets)
			if len(set.Patterns()) > 0 || slices.ContainsFunc(set.Exempt().Users, limits.IsPattern) {
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
			if hidden.UserCount() != 2*set.UserCount() {
				t.Errorf("Len = %d, want two keys for each of %d users", hidden.UserCount(), set.UserCount())
			}
			sameButUsers(t, set, published)
			for at := set; ; at = at.At(at.Expires()) {
				now := at.Time()
				for name := range names(at) {
					for _, endpoint := range append([]string{""}, at.Endpoints()...) {
						want := at.User(limits.EndpointKey(endpoint, limits.Key(name)))
						for _, key := range secrets.Keys(name) {
							if got := published.At(now).User(limits.EndpointKey(endpoint, key)); !equalLimits(got, want) {
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
func isWordOf(s *limits.Set, word string) bool {
	return slices.Contains(s.TierNames(), word) || slices.Contains(userFields.names(), word) || slices.ContainsFunc(s.Exempt().Paths, func(p string) bool { return strings.Contains(p, word) }) ||
		slices.ContainsFunc(limits.BuiltinClasses(), func(class string) bool { return strings.Contains(word, class) })
}

// names are the users whom a file names, those who are exempt too.
func names(s *limits.Set) map[string]bool {
	all := map[string]bool{}
	for name := range s.UserNames() {
		all[name] = true
	}
	for _, name := range s.Exempt().Users {
		all[name] = true
	}
	return all
}

func equalLimits(a, b *limits.Limits) bool {
	return reflect.DeepEqual(a, b)
}

// sameButUsers checks that two files say the same of everything but users.
func sameButUsers(t *testing.T, want, got *limits.Set) {
	t.Helper()
	only := func(s *limits.Set) string {
		exempt := s.Exempt()
		exempt.Users = nil
		var b strings.Builder
		fmt.Fprintf(&b, "default tier %s\n", s.DefaultTier())
		printRules(&b, s, exempt, limitsTogether(s))
		return b.String()
	}
	if diff := cmp.Diff(only(want), only(got)); diff != "" {
		t.Errorf("hidden (-file +hidden):\n%s", diff)
	}
}

// sameOrigin checks that a hidden set tells by name and by key where the file says what
// it says of a user, but for comments.
func sameOrigin(t *testing.T, set, hidden *limits.Set, endpoint, name string) {
	t.Helper()
	want := OriginAt(set, endpoint, name)
	want.Comment = ""
	for _, who := range append(hidden.Keys(name), name) {
		if diff := cmp.Diff(want, OriginAt(hidden, endpoint, who)); diff != "" {
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
users_from: [melchior.d.yaml, melchior.txt]
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
	write("melchior.txt", "# melchior\nmelchior-3 comment # melchior\n")
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
	for name, want := range map[string]int{"melchior": 3, "melchior-3": 3, "comment": 3, "balthasar": 1, "caspar": 7, "melchior two": 1, "nobody": 1, "melchior-probe": 0} {
		if got := hidden.User(hidden.Key(name)).Concurrent; got != want {
			t.Errorf("%s may have %d in progress, want %d", name, got, want)
		}
	}
	if o := OriginAt(hidden, "", "caspar"); o.User != 17 || o.Comment != "" {
		t.Errorf("caspar is on line %d with the comment %q, want line 17 and none", o.User, o.Comment)
	}
}

func TestHideRefusesPatterns(t *testing.T) {
	set, err := Parse("limits.yaml", []byte("version: 1\ndefault_tier: free\ntiers: {free: {}}\nexempt:\n  users: [probe, \"mon-*\"]\nusers:\n  alice: free\n  \"team-secret-*\": free\n"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = Hide(set, secretsOf(t, counting))
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
	if _, err := Hide(set, secretsOf(t, counting)); err == nil || strings.Contains(err.Error(), "alice") {
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
	o := limits.Override{User: keys[0], Also: keys[1:], Limits: []byte(`{"requests": {"GET": 5}}`), Reason: "test", Until: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)}
	with, refused := WithOverrides(hidden, []limits.Override{o})
	if len(refused) > 0 {
		t.Fatal(refused)
	}
	published, err := Parse("published", with.Source())
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range keys {
		l := published.User(key)
		if r, _ := l.Rate("GET", limits.Second); r.Max != 5 || l.Concurrent != 2 {
			t.Errorf("%s has %d GETs and %d in progress, want 5 and 2", key, r.Max, l.Concurrent)
		}
	}
	for _, who := range append(keys, "alice") {
		if o := OriginAt(with, "", who); len(o.Overrides) != 1 || o.User != 5 {
			t.Errorf("%s is on line %d with %d overrides, want line 5 and one", who, o.User, len(o.Overrides))
		}
	}
	if with.SecretOf(keys[1]) != limits.PreviousSecret {
		t.Error("the set with an override has other secrets")
	}
	o.Also = []string{"bob"}
	if err := CheckOverride(o); err == nil {
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
		plain, hidden limits.SecretOf
	}{
		{keys[0], limits.UnknownSecret, limits.CurrentSecret},
		{keys[1], limits.UnknownSecret, limits.PreviousSecret},
		{limits.EndpointKey("up", keys[1]), limits.UnknownSecret, limits.PreviousSecret},
		{third, limits.UnknownSecret, limits.UnknownSecret},
		{"alice", "", limits.NoSecret},
		{limits.Key("~alice"), "", limits.NoSecret},
		{"~", "", ""},
		{limits.ExemptKey, "", ""},
	} {
		if got := set.SecretOf(tt.key); got != tt.plain {
			t.Errorf("without secrets, SecretOf(%q) = %q, want %q", tt.key, got, tt.plain)
		}
		if got := hidden.SecretOf(tt.key); got != tt.hidden {
			t.Errorf("SecretOf(%q) = %q, want %q", tt.key, got, tt.hidden)
		}
	}
}
