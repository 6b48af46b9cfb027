package haproxy

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"text/template"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// The verbs that haproxy.cfg tells apart; every other method is OTHER.
var verbs = []string{"GET", "HEAD", "PUT", "POST", "DELETE", "PATCH", "OPTIONS"}

var (
	className = regexp.MustCompile(`^[A-Z][A-Z0-9_]{0,31}$`)
	method    = regexp.MustCompile("^[!#$%&'*+.^_`|~0-9A-Z-]+$")    // RFC 9110, section 9.1, in capitals
	token     = regexp.MustCompile("^[!#$%&'*+.^_`|~0-9A-Za-z-]+$") // RFC 9110, section 5.6.2
	printable = regexp.MustCompile(`^[ -~]*$`)

	hostName  = regexp.MustCompile(`^(\*\.)?[a-z0-9_-]+(\.[a-z0-9_-]+)*$`)
	proxyName = regexp.MustCompile(`^[A-Za-z0-9_.:-]+$`) // as HAProxy allows

	// Words that mean themselves in a configuration, wherever they stand.
	plainName  = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_-]*$`)
	plainValue = regexp.MustCompile(`^[A-Za-z0-9_./][A-Za-z0-9_./-]*$`)
)

// Classify returns the rules of HAProxy that set txn.sluice_op to the name of the
// first class that a request matches, or leave it unset.
//
// Methods are compared in capitals, paths decoded and without empty and "." segments, header values
// as they are, hosts in small letters without the port and a dot at the end, with any of several fields of the name. What does not decode stays encoded in a path, and so do
// control bytes, which could end a line of an expression. Keys of the query are compared
// decoded, as servers do: "?%75ploads" has the key "uploads", and what is no valid
// encoding means no key. PathRegex goes to HAProxy's PCRE2 as it is: limitfile takes only
// expressions that RE2 and PCRE2 read alike.
//
// Nothing else of a class stands in a rule as it is but what is made of letters, digits
// and a few signs without a meaning.
func Classify(classes []limits.Class) (string, error) {
	var reads struct{ Method, Host, Path bool }
	rules := ""
	for _, c := range classes {
		// Checked although limitfile does: this package takes classes from any caller.
		if !className.MatchString(c.Name) {
			return "", fmt.Errorf("class %q: want 1 to 32 of A-Z, 0-9 and _, the first a letter", c.Name)
		}
		// A rule for each match: HAProxy has no brackets.
		for _, m := range c.Any {
			if err := checkMatch(m); err != nil {
				return "", fmt.Errorf("class %s: %w", c.Name, err)
			}
			reads.Method = reads.Method || !ofVerbs(m.Methods)
			reads.Host = reads.Host || len(m.Hosts)+len(m.NoHosts) > 0
			reads.Path = reads.Path || m.PathPrefix+m.PathRegex != "" && !m.RawPath
			// HAProxy stops at the first condition that does not hold: what is cheap and rarely holds comes first.
			rule, err := render(haproxyTemplate, "class match", struct {
				Class string
				limits.Match
			}{c.Name, m}, 0)
			if err != nil {
				return "", err
			}
			rules += rule
		}
	}
	first, err := render(haproxyTemplate, "class reads", reads, 0)
	return strings.TrimPrefix(first+rules+"\n", "\n"), err
}

// checkMatch returns an error for what cannot be said in HAProxy's words: a class that matched something else would have the wrong limit.
func checkMatch(m limits.Match) error {
	if n := m.Conditions(); n > limits.MaxConditions {
		return fmt.Errorf("%d conditions: want %d at most", n, limits.MaxConditions)
	}
	texts := []string{m.PathPrefix, strings.Join(m.Methods, " "), strings.Join(m.NoQuery, " "), strings.Join(m.Hosts, " "), strings.Join(m.NoHosts, " "), strings.Join(m.Frontends, " ")}
	for _, text := range slices.Concat(m.Hosts, m.NoHosts) {
		if !hostName.MatchString(text) {
			return fmt.Errorf("host %q: want a name in small letters, or *. and one", text)
		}
	}
	for _, text := range m.Frontends {
		if !proxyName.MatchString(text) {
			return fmt.Errorf("frontend %q: want the name of a frontend", text)
		}
	}
	for _, text := range m.Methods {
		if !method.MatchString(text) {
			return fmt.Errorf("method %q: want a method in capitals", text)
		}
	}
	if !printable.MatchString(m.PathRegex) {
		return fmt.Errorf("path_regex %q: want printable ASCII characters", m.PathRegex)
	}
	if slices.Contains(m.Query, "") || slices.Contains(m.NoQuery, "") {
		return errors.New("query: a key cannot be empty")
	}
	for _, h := range m.Headers {
		if !token.MatchString(h.Name) {
			return fmt.Errorf("header %q: want a field's name", h.Name)
		}
		texts = append(texts, h.Name, h.Value)
	}
	for _, text := range slices.Concat(texts, m.Query) {
		// Said here by its beginning. PCRE2 would say only that an expression is too large.
		if len(text) > limits.MaxMatchText {
			return fmt.Errorf("%.20q… has %d bytes, want %d at most", text, len(text), limits.MaxMatchText)
		}
	}
	return nil
}

// classFuncs are the functions of classify.cfg.tmpl.
var classFuncs = template.FuncMap{
	"ofVerbs": ofVerbs, "isPlain": plainValue.MatchString, "literal": literal, "oneOf": oneOf, "oneHost": oneHost, "queryKeys": queryKeys, "list": func(text string) []string { return []string{text} }, "header": fetchHeader,
	"unquoted": strings.NewReplacer(`\\`, `\\`, `\'`, `\x27`, `'`, `\x27`).Replace, // for expressions between apostrophes
}

// ofVerbs reports whether all methods have verbs of their own. The class of others is OTHER, so the method itself is compared, as text:
// a condition on "method" makes HAProxy 3.4 warn.
func ofVerbs(methods []string) bool {
	return !slices.ContainsFunc(methods, func(m string) bool { return !slices.Contains(verbs, m) })
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

// oneHost is the comparison with any of some hosts.
func oneHost(hosts []string) string {
	below := make([]string, len(hosts))
	for i, host := range hosts {
		domain, any := strings.CutPrefix(host, "*")
		if !any && i == 0 && !slices.ContainsFunc(hosts, func(h string) bool { return h[0] == '*' }) {
			return oneOf(hosts)
		}
		below[i] = literal(domain)
		if any {
			below[i] = "." + "*" + below[i]
		}
	}
	return `-m reg '^(?:` + strings.Join(below, "|") + `)\z'`
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

// queryKeys is an expression for queries with any of some keys: byte by byte, for a client may encode each of them or not.
func queryKeys(keys []string) string {
	exprs := make([]string, len(keys))
	for i, key := range keys {
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
