package haproxy

import (
	"fmt"
	"strings"
)

// oneOf is the comparison with any of some texts.
func oneOf(texts []string) string {
	escaped := make([]string, len(texts))
	// HAProxy compares words faster than expressions, and a line has place for some.
	plain := len(texts) <= len(verbs)
	for i, t := range texts {
		plain = plain && plainValue.MatchString(t)
		escaped[i] = literal(t)
	}
	if plain {
		return "-m str " + strings.Join(texts, " ")
	}
	return `-m reg '^(?:` + strings.Join(escaped, "|") + `)\z'`
}

// fetchHeader is the expression for a header's values. The name is quoted twice: for
// the line, in which an apostrophe ends what it began, and for the list of arguments,
// in which a backslash takes the meaning from an apostrophe.
func fetchHeader(name string) string {
	// As nearly all fields are. What else RFC 9110 allows in a name means something to HAProxy.
	if plainName.MatchString(name) {
		return "req.fhdr(" + name + ")"
	}
	return "'req.fhdr(" + strings.ReplaceAll(name, "'", `\'"'"'`) + ")'"
}

// queryKeys is an expression for queries with one of these keys.
func queryKeys(keys []string) string {
	exprs := make([]string, len(keys))
	for i, key := range keys {
		// Byte by byte: a client may encode each of them or not.
		for j := range len(key) {
			exprs[i] += encoded(key[j])
		}
	}
	return `(?:^|&)(?:` + strings.Join(exprs, "|") + `)(?:[=&]|\z)`
}

// encoded is an expression for the ways to write a byte of a key in a query.
func encoded(c byte) string {
	percent := "%" + hexDigit(c>>4) + hexDigit(c&15)
	switch c {
	// Unencoded they would end the key, or mean another byte.
	case '&', '=', '+', '%':
		return percent
	case ' ':
		return `(?:\x2b|` + percent + `)`
	}
	return "(?:" + literal(string([]byte{c})) + "|" + percent + ")"
}

func hexDigit(n byte) string {
	if n < 10 {
		return string('0' + rune(n))
	}
	return fmt.Sprintf("[%X%x]", n, n)
}

// literal is an expression for the text itself, for everywhere in an expression.
func literal(text string) string {
	var b strings.Builder
	for i := range len(text) {
		// By what is known to be harmless, not by what is known to mean something: PCRE2, HAProxy's words and
		// its quotes each have their own list.
		switch c := text[i]; {
		case 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '/' || c == '_':
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, `\x%02x`, c)
		}
	}
	return b.String()
}
