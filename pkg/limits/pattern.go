package limits

import (
	"cmp"
	"slices"
	"strings"
	"unicode/utf8"
)

// IsPattern reports whether a name in the file stands for all names that match it:
// each * in it for any run of characters, also none.
func IsPattern(name string) bool { return strings.Contains(name, All) }

// matcher finds the pattern of a name: the one with most literal characters, or
// the first of several. The zero matcher has no patterns. Each length of prefix* and *suffix costs
// one look-up in a map, some 15 ns. Other patterns are tried one after the other, some 20 ns each.
type matcher struct {
	patterns           []string
	prefixes, suffixes affixes
	odd                []odd // sorted by literals, most first, and index
}

type affixes struct {
	index   map[string]int
	lengths []int // of the texts in bytes, the longest first
}

// odd is any other pattern: its texts are between the stars.
type odd struct {
	first, last string
	inner       []string
	literals    int
	index       int
}

func newMatcher(patterns []string) matcher {
	m := matcher{patterns: patterns, prefixes: affixes{index: map[string]int{}}, suffixes: affixes{index: map[string]int{}}}
	for i, p := range patterns {
		parts := strings.Split(p, All)
		first, last := parts[0], parts[len(parts)-1]
		switch {
		case len(parts) == 2 && last == "":
			m.prefixes.index[first] = i
		case len(parts) == 2 && first == "":
			m.suffixes.index[last] = i
		default:
			m.odd = append(m.odd, odd{first, last, parts[1 : len(parts)-1], utf8.RuneCountInString(p) - (len(parts) - 1), i})
		}
	}
	for _, a := range []*affixes{&m.prefixes, &m.suffixes} {
		for text := range a.index {
			a.lengths = append(a.lengths, len(text))
		}
		slices.Sort(a.lengths)
		a.lengths = slices.Compact(a.lengths)
		slices.Reverse(a.lengths)
	}
	slices.SortFunc(m.odd, func(a, b odd) int {
		return cmp.Or(cmp.Compare(b.literals, a.literals), cmp.Compare(a.index, b.index))
	})
	return m
}

// patternOf returns the pattern of a key, or "". A hash matches none.
func (m *matcher) patternOf(key string) string {
	if key != "" && key[0] != '~' {
		if i := m.bestMatch(key); i >= 0 {
			return m.patterns[i]
		}
	}
	return ""
}

// bestMatch returns the index of the pattern of a name, or -1. It does not allocate.
func (m *matcher) bestMatch(name string) int {
	best, literals := -1, -1
	better := func(text string, index int) {
		// In characters, as people count. The first of two equal patterns counts.
		if n := utf8.RuneCountInString(text); n > literals || n == literals && index < best {
			best, literals = index, n
		}
	}
	for _, n := range m.prefixes.lengths {
		if i, ok := m.prefixes.index[name[:min(n, len(name))]]; ok && n <= len(name) {
			better(name[:n], i)
			break
		}
	}
	for _, n := range m.suffixes.lengths {
		if i, ok := m.suffixes.index[name[max(len(name)-n, 0):]]; ok && n <= len(name) {
			better(name[len(name)-n:], i)
			break
		}
	}
	for i := range m.odd {
		o := &m.odd[i]
		if o.literals < literals || o.literals == literals && o.index > best {
			break
		}
		if o.matches(name) {
			return o.index
		}
	}
	return best
}

func (o *odd) matches(name string) bool {
	// The ends must not overlap: a*a does not match a.
	if len(name) < len(o.first)+len(o.last) || !strings.HasPrefix(name, o.first) || !strings.HasSuffix(name, o.last) {
		return false
	}
	name = name[len(o.first) : len(name)-len(o.last)]
	for _, text := range o.inner {
		// The first place will do: what a later one leaves is no longer.
		at := strings.Index(name, text)
		if at < 0 {
			return false
		}
		name = name[at+len(text):]
	}
	return true
}
