package haproxy

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// The verbs that haproxy.cfg tells apart; every other method is OTHER.
var verbs = []string{"GET", "HEAD", "PUT", "POST", "DELETE", "PATCH", "OPTIONS"}

var (
	className = regexp.MustCompile(`^[A-Z][A-Z0-9_]{0,31}$`)
	token     = regexp.MustCompile("^[!#$%&'*+.^_`|~0-9A-Za-z-]+$") // RFC 9110, section 5.6.2

	// Words that mean themselves in a configuration, wherever they stand.
	plainName  = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_-]*$`)
	plainValue = regexp.MustCompile(`^[A-Za-z0-9_./][A-Za-z0-9_./-]*$`)
)

// A line of HAProxy's configuration has 64 words at most: lineWords is what is left
// for the conditions of a match.
const lineWords = 64 - 14

// maxText is how many bytes of text stand in one expression, in which a byte can become
// about 20: PCRE2 has 64 KiB for an expression that it has translated (pcre2api).
const maxText = 3000

// Classify returns the rules of HAProxy that set txn.sluice_op to the name of the
// first class that a request matches, or leave it unset.
//
// Methods are compared in capitals, paths decoded and without empty and "." segments, header values
// as they are, with any of several fields of the name. Keys of the query are compared
// decoded, as servers do: "?%75ploads" has the key "uploads", and what is no valid
// encoding means no key. PathRegex goes to HAProxy's PCRE2 as it is: limitfile takes only
// expressions that RE2 and PCRE2 read alike.
//
// Nothing else of a class stands in a rule as it is but what is made of letters, digits
// and a few signs without a meaning.
func Classify(classes []limits.Class) (string, error) {
	var b strings.Builder
	if slices.ContainsFunc(classes, readsMethod) {
		b.WriteString("    http-request set-var(txn.sluice_method) method,upper\n")
	}
	if slices.ContainsFunc(classes, readsPath) {
		b.WriteString(plainPath)
	}
	for _, c := range classes {
		// Checked although limitfile does: the name is pasted into the configuration here, and this package
		// takes classes from any caller.
		if !className.MatchString(c.Name) {
			return "", fmt.Errorf("class %q: want 1 to 32 of A-Z, 0-9 and _, the first a letter", c.Name)
		}
		for _, m := range c.Any {
			// What cannot be said in HAProxy's words is an error of the file, now: a class that matched
			// something else would have the wrong limit.
			conditions, err := conditions(m)
			if err != nil {
				return "", fmt.Errorf("class %s: %w", c.Name, err)
			}
			// A rule for each match, for HAProxy has no brackets: any of them sets the class, if none before
			// has.
			writeRules(&b, c.Name, conditions)
		}
	}
	return b.String(), nil
}

// writeRules writes a rule for all conditions, or several where a line would have too
// many words: each but the last counts up txn.sluice_part if its conditions hold.
func writeRules(b *strings.Builder, class string, conditions []string) {
	var parts []string
	words := 0
	for _, c := range conditions {
		// HAProxy refuses a line of more words, with an error about a file that the operator did not write.
		n := len(strings.Fields(c)) // no blanks but those between words
		if len(parts) == 0 || words+n > lineWords {
			parts, words = append(parts, ""), 0
		}
		parts[len(parts)-1] += " " + c
		words += n
	}
	// A class without conditions is that of every request that no class before it has.
	if len(parts) == 0 {
		parts = []string{""}
	}
	last := len(parts) - 1
	if last > 0 {
		b.WriteString("    http-request set-var(txn.sluice_part) int(0)\n")
	}
	for i, p := range parts {
		before := ""
		if last > 0 {
			before = fmt.Sprintf(" { var(txn.sluice_part) -m int %d }", i)
		}
		if i < last {
			fmt.Fprintf(b, "    http-request set-var(txn.sluice_part) int(%d) if%s%s\n", i+1, before, p)
			continue
		}
		fmt.Fprintf(b, "    http-request set-var(txn.sluice_op) str(%s) if !{ var(txn.sluice_op) -m found }%s%s\n", class, before, p)
	}
}

// conditions are what a match asks for, the cheap ones first.
func conditions(m limits.Match) ([]string, error) {
	// Before anything is translated, so that no expression is built that nobody can use.
	if err := checkSizes(m); err != nil {
		return nil, err
	}
	var all []string
	// HAProxy stops at the first condition that does not hold: what is cheap and rarely holds comes first.
	for _, of := range []func(limits.Match) ([]string, error){methodConditions, pathConditions, queryConditions, headerConditions} {
		some, err := of(m)
		if err != nil {
			return nil, err
		}
		all = append(all, some...)
	}
	return all, nil
}

// plainPath sets txn.sluice_path to the path as most origins read it: decoded, without empty and "." segments. What does not
// decode, and control bytes, which could end a line of an expression, stay encoded.
const plainPath = `    http-request set-var(txn.sluice_path) path
    http-request set-var(txn.sluice_path) 'path,regsub("%(?:(?=[01]|7[Ff])|(?![0-9A-Fa-f][0-9A-Fa-f]))","%25",g),url_dec,regsub("/(?:[.]?/)+","/",g),regsub("/[.]$","/")' if { path -m reg '%|/[.]?(?:/|$)' }
`

// readsPath reports whether a class looks at the path as plainPath has it.
func readsPath(c limits.Class) bool {
	return slices.ContainsFunc(c.Any, func(m limits.Match) bool { return m.PathPrefix+m.PathRegex != "" && !m.RawPath })
}

// methodText is the request's method as text. A condition on "method" itself makes HAProxy 3.4 warn that it is compared as text.
const methodText = "var(txn.sluice_method)"

// readsMethod reports whether a class names a method that has no verb of its own.
func readsMethod(c limits.Class) bool {
	return slices.ContainsFunc(c.Any, func(m limits.Match) bool {
		return slices.ContainsFunc(m.Methods, func(method string) bool { return !slices.Contains(verbs, method) })
	})
}

func methodConditions(m limits.Match) ([]string, error) {
	if len(m.Methods) == 0 {
		return nil, nil
	}
	fetch := "var(txn.sluice_class)"
	for _, method := range m.Methods {
		if !token.MatchString(method) || method != strings.ToUpper(method) {
			return nil, fmt.Errorf("method %q: want a method in capitals", method)
		}
		if !slices.Contains(verbs, method) { // its class is OTHER, as that of others
			fetch = methodText
		}
	}
	return []string{fmt.Sprintf("{ %s %s }", fetch, oneOf(m.Methods))}, nil
}

// withoutApostrophes is for expressions that stand between apostrophes.
var withoutApostrophes = strings.NewReplacer(`\\`, `\\`, `\'`, `\x27`, `'`, `\x27`)

func pathConditions(m limits.Match) (all []string, _ error) {
	path := "var(txn.sluice_path)"
	if m.RawPath {
		path = "path"
	}
	switch {
	case m.PathPrefix == "":
	case plainValue.MatchString(m.PathPrefix):
		all = append(all, fmt.Sprintf("{ %s -m beg %s }", path, m.PathPrefix))
	default:
		all = append(all, fmt.Sprintf("{ %s -m reg '^%s' }", path, literal(m.PathPrefix)))
	}
	if m.PathRegex != "" {
		if strings.ContainsFunc(m.PathRegex, func(r rune) bool { return r < ' ' || r > '~' }) {
			return nil, fmt.Errorf("path_regex %q: want printable ASCII characters", m.PathRegex)
		}
		// The parentheses keep it from being read as a flag, such as -i, or as the end of the condition.
		all = append(all, fmt.Sprintf("{ %s -m reg '(?:%s)' }", path, withoutApostrophes.Replace(m.PathRegex)))
	}
	return all, nil
}

func queryConditions(m limits.Match) (all []string, _ error) {
	if slices.Contains(m.Query, "") || slices.Contains(m.NoQuery, "") {
		return nil, errors.New("query: a key cannot be empty")
	}
	for _, key := range m.Query {
		all = append(all, fmt.Sprintf("{ query -m reg '%s' }", queryKeys([]string{key})))
	}
	// Together, because each expression reads the whole query. Of Query each key has to be there, which one
	// expression cannot say.
	for rest := m.NoQuery; len(rest) > 0; { // as many as an expression has place for
		n, size := 1, len(rest[0])
		for n < len(rest) && size+len(rest[n]) <= maxText {
			size += len(rest[n])
			n++
		}
		all = append(all, fmt.Sprintf("!{ query -m reg '%s' }", queryKeys(rest[:n])))
		rest = rest[n:]
	}
	return all, nil
}

func headerConditions(m limits.Match) (all []string, _ error) {
	for _, h := range m.Headers {
		if !token.MatchString(h.Name) {
			return nil, fmt.Errorf("header %q: want a field's name", h.Name)
		}
		// A field that is there with an empty value is there.
		comparison := "-m found"
		if h.Value != "" {
			comparison = oneOf([]string{h.Value})
		}
		all = append(all, fmt.Sprintf("{ %s %s }", fetchHeader(h.Name), comparison))
	}
	return all, nil
}

// checkSizes returns an error for what is too long for an expression of HAProxy's.
func checkSizes(m limits.Match) error {
	texts := slices.Concat([]string{m.PathPrefix, strings.Join(m.Methods, " ")}, m.Query, m.NoQuery)
	for _, h := range m.Headers {
		texts = append(texts, h.Name, h.Value)
	}
	for _, t := range texts {
		// Said here by its beginning. PCRE2 would say only that an expression is too large.
		if len(t) > maxText {
			return fmt.Errorf("%.20q… has %d bytes, want %d at most", t, len(t), maxText)
		}
	}
	return nil
}

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
