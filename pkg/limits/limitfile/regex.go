package limitfile

import (
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
	"strings"
)

const (
	maxRegexBytes   = 500
	maxRegexRepeats = 4 // without an upper bound: *, + and {n,}
)

func parseRegex(s string) (int64, error) {
	if s == "" {
		return 0, mustBe(pathRegexForms, s)
	}
	return 0, checkRegex(s)
}

// checkRegex accepts the regular expressions of RE2 that PCRE, which HAProxy uses,
// reads the same way, and matches quickly with any path: it tries all
// ways to match, so that (a|ab)* or (a+)+ can take it seconds. The error goes on
// where the name of the field leaves off.
func checkRegex(s string) error {
	if len(s) > maxRegexBytes {
		return fmt.Errorf("must have at most %d bytes, got %d", maxRegexBytes, len(s))
	}
	if err := sameInPCRE(s); err != nil {
		return err
	}
	parsed, err := syntax.Parse(s, syntax.Perl)
	if problem := (*syntax.Error)(nil); errors.As(err, &problem) {
		return fmt.Errorf("is no regular expression: %s: %s", problem.Code, quote(problem.Expr))
	}
	endless := 0
	if err := checkRepeats(parsed, &endless); err != nil {
		return err
	}
	// Each of them multiplies the ways to match by the length of the path.
	if endless > maxRegexRepeats {
		return fmt.Errorf("repeats without an upper bound %d times (*, + or {n,}); at most %d are possible, because HAProxy tries all ways to match", endless, maxRegexRepeats)
	}
	// It has bounds of its own, such as those for counted repetitions within each other.
	if _, err := regexp.Compile(s); err != nil {
		return fmt.Errorf("is no regular expression: %w", err)
	}
	return nil
}

// checkRepeats refuses the repetition of anything but one character, and counts the
// repetitions without an upper bound.
func checkRepeats(r *syntax.Regexp, endless *int) error {
	switch r.Op {
	case syntax.OpStar, syntax.OpPlus, syntax.OpRepeat:
		of := r.Sub[0]
		one := of.Op == syntax.OpCharClass || of.Op == syntax.OpAnyChar || of.Op == syntax.OpAnyCharNotNL || of.Op == syntax.OpLiteral && len(of.Rune) == 1
		if !one {
			return fmt.Errorf("repeats %s; only single characters and classes of them may be repeated, because HAProxy tries all ways to match", quote(of.String()))
		}
		if r.Op != syntax.OpRepeat || r.Max < 0 {
			*endless++
		}
	}
	for _, sub := range r.Sub {
		if err := checkRepeats(sub, endless); err != nil {
			return err
		}
	}
	return nil
}

// sameInPCRE refuses what PCRE reads in another way than RE2, or may in some
// version: whatever is not plainly the same.
func sameInPCRE(s string) error {
	inClass := false
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		// Beyond ASCII it depends on PCRE's options whether it sees characters or bytes.
		case c < 0x20 || c > 0x7e:
			return fmt.Errorf("must be in printable ASCII characters, got %s", quote(s))
		case c == '\\':
			i++
			if i == len(s) {
				return errors.New(`ends with a \ that escapes nothing`)
			}
			// Both know these letters behind a backslash, with the same meaning in a path.
			letters := "dDwWsSbB"
			if inClass {
				letters = "dDwWsS"
			}
			if isWordByte(s[i]) && !strings.Contains(letters, s[i:i+1]) {
				return fmt.Errorf(`has \%c in it, which means different things to HAProxy and to others (valid: %s, and \ before punctuation)`, s[i], `\`+strings.Join(strings.Split(letters, ""), ` \`))
			}
		case inClass:
			// It may be a character, or begin a class such as [:alpha:]. With a backslash it is the character.
			if c == '[' {
				return errors.New(`has a [ inside of [ ]; write \[`)
			}
			if c == ']' {
				inClass = false
			}
		case c == '[':
			inClass = true
			if strings.HasPrefix(s[i+1:], "^") {
				i++
			}
			// Some take it for the end of an empty class, others for a character of it.
			if strings.HasPrefix(s[i+1:], "]") {
				return errors.New(`has a ] that begins a class; write \]`)
			}
		case c == '(' && strings.HasPrefix(s[i+1:], "?"):
			// Look-ahead and atomic groups are PCRE's alone, and a name would be of no use.
			if rest := s[i+2:]; !strings.HasPrefix(rest, ":") && !strings.HasPrefix(rest, "i)") && !strings.HasPrefix(rest, "i:") {
				return errors.New("has a group that begins with (? (valid: (?:, (?i) and (?i:)")
			}
		// {,3} is a repetition to newer versions of PCRE, and four characters to others.
		case c == '{' && !repeatForm.MatchString(s[i:]):
			return errors.New(`has a { that begins no {n}, {n,} or {n,m}; write \{`)
		}
	}
	return nil
}

var repeatForm = regexp.MustCompile(`^\{[0-9]{1,4}(,[0-9]{0,4})?\}`)

// isWord reports whether a text needs no quotes in YAML, wherever it is.
func isWord(s string) bool {
	for i := range len(s) {
		if !isWordByte(s[i]) {
			return false
		}
	}
	return s != ""
}

func isWordByte(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' || c == '_'
}
