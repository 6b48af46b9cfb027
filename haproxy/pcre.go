package haproxy

import (
	"errors"
	"fmt"
	"regexp/syntax"
	"slices"
	"strings"
	"unicode"
)

// What PCRE2 takes, with room to spare: it has 64 KiB for an expression that it has
// translated, and 250 parentheses within one another (pcre2api, pcre2build).
const maxSize, maxDepth = 30000, 200

// outside is what stands for each byte beyond ASCII, as in package regexp. URLs have
// none.
const outside = unicode.ReplacementChar

// never matches nothing.
const never = `(?!)`

// pcre translates an expression of Go's package regexp (RE2) to one of PCRE2 that
// matches the same texts, byte by byte and without locale. It consists of letters,
// digits and ()[]{}|*+?\^-!:,=_/ alone, so that it can stand between apostrophes.
//
// PCRE2 tries one way after the other: an expression that repeats what repeats, as
// (a*)*, can take long for a path that is made for it, until HAProxy's PCRE2 gives up
// and says that it does not match.
func pcre(expr string) (string, error) {
	re, err := syntax.Parse(expr, syntax.Perl)
	if err != nil {
		return "", err
	}
	t := translation{}
	size := t.write(re, 0)
	if size > maxSize || t.deep {
		return "", errors.New("too large for HAProxy")
	}
	return t.String(), nil
}

// A translation is an expression that is being written.
type translation struct {
	strings.Builder
	deep bool // parentheses are too deep
}

// fixed are expressions that stand for themselves, and their sizes in PCRE2.
var fixed = map[syntax.Op]struct {
	text string
	size int
}{
	syntax.OpNoMatch:        {never, 8},
	syntax.OpEmptyMatch:     {`(?:)`, 8},
	syntax.OpBeginLine:      {`(?m:^)`, 8},
	syntax.OpEndLine:        {`(?m:$)`, 8},
	syntax.OpBeginText:      {`\A`, 1},
	syntax.OpEndText:        {`\z`, 1},
	syntax.OpWordBoundary:   {`\b`, 1},
	syntax.OpNoWordBoundary: {`\B`, 1},
}

// write appends re and returns an upper bound of its size in PCRE2.
func (t *translation) write(re *syntax.Regexp, depth int) int {
	if depth > maxDepth {
		t.deep = true
		return 0
	}
	size := 0
	switch re.Op {
	case syntax.OpLiteral:
		for _, r := range re.Rune {
			size += t.char(r, re.Flags&syntax.FoldCase != 0)
		}
	case syntax.OpCharClass:
		return t.class(re.Rune)
	case syntax.OpAnyCharNotNL:
		return t.class([]rune{0, '\n' - 1, '\n' + 1, unicode.MaxRune})
	case syntax.OpAnyChar:
		return t.class([]rune{0, unicode.MaxRune})
	case syntax.OpCapture:
		return t.write(re.Sub[0], depth) // nobody reads what it captured
	case syntax.OpStar:
		return t.repeat(re.Sub[0], "*", 1, depth)
	case syntax.OpPlus:
		return t.repeat(re.Sub[0], "+", 1, depth)
	case syntax.OpQuest:
		return t.repeat(re.Sub[0], "?", 1, depth)
	case syntax.OpRepeat:
		if re.Max < 0 {
			return t.repeat(re.Sub[0], fmt.Sprintf("{%d,}", re.Min), re.Min+1, depth)
		}
		return t.repeat(re.Sub[0], fmt.Sprintf("{%d,%d}", re.Min, re.Max), re.Max, depth)
	case syntax.OpConcat:
		for _, sub := range re.Sub {
			size += t.write(sub, depth)
		}
	case syntax.OpAlternate:
		size = t.put(`(?:`, 6)
		for i, sub := range re.Sub {
			if i > 0 {
				size += t.put(`|`, 3)
			}
			size += t.write(sub, depth+1)
		}
		t.WriteString(`)`)
	default:
		return t.put(fixed[re.Op].text, fixed[re.Op].size)
	}
	return size
}

func (t *translation) put(s string, size int) int {
	t.WriteString(s)
	return size
}

// repeat appends what is repeated and how often; PCRE2 makes up to n copies of it.
func (t *translation) repeat(re *syntax.Regexp, times string, n, depth int) int {
	switch re.Op {
	case syntax.OpLiteral:
		if len(re.Rune) != 1 {
			break
		}
		fallthrough
	case syntax.OpCharClass, syntax.OpAnyCharNotNL, syntax.OpAnyChar:
		return t.write(re, depth) + t.put(times, 8)
	}
	t.WriteString(`(?:`)
	size := t.write(re, depth+1)
	t.WriteString(`)` + times)
	return max(1, n) * (size + 12)
}

// char appends one character, in either case if fold is set.
func (t *translation) char(r rune, fold bool) int {
	if !fold || unicode.SimpleFold(r) == r {
		return t.class([]rune{r, r})
	}
	var either []rune
	for f := unicode.SimpleFold(r); ; f = unicode.SimpleFold(f) {
		either = append(either, f, f)
		if f == r {
			return t.class(either)
		}
	}
}

// class appends any character of the ranges, which are pairs of first and last.
func (t *translation) class(ranges []rune) int {
	var in [unicode.MaxASCII + 1]bool
	beyond, n := false, 0
	for i := 0; i < len(ranges); i += 2 {
		beyond = beyond || ranges[i] <= outside && outside <= ranges[i+1]
		for c := ranges[i]; c <= min(ranges[i+1], unicode.MaxASCII); c++ {
			in[c] = true
		}
	}
	for _, is := range in {
		if is {
			n++
		}
	}
	switch {
	case n == len(in) && beyond:
		return t.put(`[\x00-\xff]`, 40)
	case n == 0 && !beyond:
		return t.put(never, 8)
	case n == 1 && !beyond:
		return t.put(literal(string(rune(slices.Index(in[:], true)))), 2)
	}
	// What is beyond ASCII is in a class that says what is not in it.
	open := "["
	if beyond {
		open = "[^"
	}
	t.WriteString(open)
	for first := 0; first < len(in); first++ {
		if in[first] == beyond {
			continue
		}
		last := first
		for last+1 < len(in) && in[last+1] != beyond {
			last++
		}
		t.WriteString(literal(string(rune(first))))
		if last > first {
			t.WriteString("-" + literal(string(rune(last))))
		}
		first = last
	}
	return t.put("]", 40)
}

// literal is an expression for the text itself, for everywhere in an expression.
func literal(text string) string {
	var b strings.Builder
	for i := range len(text) {
		switch c := text[i]; {
		case 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '/' || c == '_':
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, `\x%02x`, c)
		}
	}
	return b.String()
}
