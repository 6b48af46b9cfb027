package limits

import (
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// naive is matcher as its comment says it: all patterns, one after the other.
func naive(patterns []string, name string) int {
	best, literals := -1, -1
	for i, p := range patterns {
		parts := strings.Split(p, "*")
		for j := range parts {
			parts[j] = regexp.QuoteMeta(parts[j])
		}
		n := utf8.RuneCountInString(strings.ReplaceAll(p, "*", ""))
		if n > literals && regexp.MustCompile(`(?s)^`+strings.Join(parts, ".*")+`$`).MatchString(name) {
			best, literals = i, n
		}
	}
	return best
}

func TestMatcherIsLikeTheNaiveOne(t *testing.T) {
	pattern := rapid.OneOf(
		rapid.StringMatching(`[abé]{0,4}\*`),
		rapid.StringMatching(`\*[abé]{0,4}`),
		rapid.StringMatching(`[abé]{0,2}\*[abé]{1,2}(\*[abé]{0,2})?`),
	)
	rapid.Check(t, func(t *rapid.T) {
		patterns := rapid.SliceOfNDistinct(pattern, 0, 12, rapid.ID[string]).Draw(t, "patterns")
		m := newMatcher(patterns)
		for _, name := range rapid.SliceOfN(rapid.StringMatching(`[abé*]{0,7}`), 1, 8).Draw(t, "names") {
			if got, want := m.bestMatch(name), naive(patterns, name); got != want {
				t.Fatalf("match(%q) of %q = %d, want %d", name, patterns, got, want)
			}
		}
	})
}

func TestMatcherTies(t *testing.T) {
	for _, tt := range []struct {
		patterns string
		want     int
	}{
		{"ab* *cd", 0}, {"*cd ab*", 0}, {"a*d *cd", 0}, {"*cd a*d", 0}, {"a*cd *bcd", 0}, {"*bcd a*cd", 0}, {"* ab*", 1}, {"x* *", 1}, {"ab*cd ab*d a*cd", 0},
	} {
		m := newMatcher(strings.Fields(tt.patterns))
		if got := m.bestMatch("abcd"); got != tt.want {
			t.Errorf("match(abcd) of %s = %d, want %d", tt.patterns, got, tt.want)
		}
	}
}

func TestMatcherDoesNotAllocate(t *testing.T) {
	m := newMatcher([]string{"team-*", "*-bot", "a*b*c", "*x*"})
	for _, name := range []string{"team-a", "my-bot", "abbc", "axa", "nobody"} {
		if n := testing.AllocsPerRun(10, func() { m.bestMatch(name) }); n != 0 {
			t.Errorf("match(%q) allocates %v times, want 0", name, n)
		}
	}
}
