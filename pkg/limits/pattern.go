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
// the first of several. The zero matcher has no patterns. A prefix* or *suffix
// costs the logarithm of how many there are; others are tried one after the other, some
// 20 ns each.
type matcher struct {
	prefixes, suffixes []affix // sorted by text, and by its reverse
	odd                []odd   // sorted by literals, most first, and index
}

// affix is the pattern text* or *text.
type affix struct {
	text     string
	literals int // characters
	index    int
	shorter  int // the longest affix that this one begins (or ends) with; -1 if none
}

// odd is any other pattern: its texts are between the stars.
type odd struct {
	first, last string
	inner       []string
	literals    int
	index       int
}

func newMatcher(patterns []string) matcher {
	var m matcher
	for i, p := range patterns {
		parts := strings.Split(p, All)
		// In characters, as people count which pattern says more.
		literals := utf8.RuneCountInString(p) - (len(parts) - 1)
		first, last := parts[0], parts[len(parts)-1]
		// Nearly all patterns are of the first two kinds, and are found by binary search.
		switch {
		case len(parts) == 2 && last == "":
			m.prefixes = append(m.prefixes, affix{first, literals, i, -1})
		case len(parts) == 2 && first == "":
			m.suffixes = append(m.suffixes, affix{last, literals, i, -1})
		default:
			m.odd = append(m.odd, odd{first, last, parts[1 : len(parts)-1], literals, i})
		}
	}
	// Suffixes are prefixes of the reversed texts, and are sorted as such.
	linkAffixes(m.prefixes, strings.Compare, strings.HasPrefix)
	linkAffixes(m.suffixes, compareReverse, strings.HasSuffix)
	// The best first, so that the first that matches is the one.
	slices.SortFunc(m.odd, func(a, b odd) int {
		return cmp.Or(cmp.Compare(b.literals, a.literals), cmp.Compare(a.index, b.index))
	})
	return m
}

// linkAffixes sorts affixes and links each with the longest of the others that it has as
// an affix itself. Those before it that it has are a stack while one goes through
// them in order.
func linkAffixes(all []affix, compare func(a, b string) int, has func(s, affix string) bool) {
	slices.SortFunc(all, func(a, b affix) int { return compare(a.text, b.text) })
	for i := 1; i < len(all); i++ {
		// What the one before begins with, this one may begin with as well; nothing in between can be longer.
		at := i - 1
		for at >= 0 && !has(all[i].text, all[at].text) {
			at = all[at].shorter
		}
		all[i].shorter = at
	}
}

// bestMatch returns the index of the pattern of a name, or -1. It does not allocate.
func (m *matcher) bestMatch(name string) int {
	best, literals := -1, -1
	better := func(l, index int) {
		// Of two that say as much the first of the file, so that its author can decide.
		if l > literals || l == literals && index < best {
			best, literals = index, l
		}
	}
	if a := longest(m.prefixes, name, strings.Compare, strings.HasPrefix); a != nil {
		better(a.literals, a.index)
	}
	if a := longest(m.suffixes, name, compareReverse, strings.HasSuffix); a != nil {
		better(a.literals, a.index)
	}
	for i := range m.odd {
		// They are sorted by literals: what follows is worse than the affix that was found.
		if o := &m.odd[i]; o.literals < literals {
			break
		} else if o.matches(name) {
			better(o.literals, o.index)
			break
		}
	}
	return best
}

// longest returns the longest affix of a name, or nil. It is the greatest that is
// not after the name, or one that this one has.
func longest(all []affix, name string, compare func(a, b string) int, has func(s, affix string) bool) *affix {
	low, high := 0, len(all)
	for low < high {
		if mid := (low + high) / 2; compare(all[mid].text, name) <= 0 {
			low = mid + 1
		} else {
			high = mid
		}
	}
	// The greatest that is not after the name need not be a prefix of it, but every prefix of the name that is
	// in the list is linked from it.
	for at := low - 1; at >= 0; at = all[at].shorter {
		if has(name, all[at].text) {
			return &all[at]
		}
	}
	return nil
}

// compareReverse compares two texts from their ends.
func compareReverse(a, b string) int {
	for i := 1; i <= len(a) && i <= len(b); i++ {
		if x, y := a[len(a)-i], b[len(b)-i]; x != y {
			return cmp.Compare(x, y)
		}
	}
	return cmp.Compare(len(a), len(b))
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
