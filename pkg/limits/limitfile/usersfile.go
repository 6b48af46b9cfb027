package limitfile

import (
	"iter"
	"path/filepath"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// A flat users file is for many users: a file of users_from whose name ends with .txt. Each
// line is a user's name and a tier, with blanks between them:
//
//	# comment
//	alice pro
//	team-* pro
//
// The YAML library takes some 400 bytes and a microsecond for each user. Nothing here is
// quoted or escaped, so a name with blanks, and a user with limits of their own, need YAML.
const flatExtension = ".txt"

// flatLine is a line of a flat users file that is neither empty nor a comment.
type flatLine struct {
	name, tier string // "" if there is no second word
	rest       string // what follows the tier
	line       int    // from 1
	column     int    // of name, in characters, from 1
	tierColumn int    // of tier
}

func (s source) isFlat() bool { return filepath.Ext(s.name) == flatExtension }

const blanks = " \t\r"

// flatLines yields the lines of a flat users file.
func flatLines(text string) iter.Seq[flatLine] {
	return func(yield func(flatLine) bool) {
		for line := 1; text != ""; line++ {
			var words string
			words, text, _ = strings.Cut(text, "\n")
			// Cut, not split: a million lines would be a million slices of words.
			name := strings.TrimLeft(words, blanks)
			if name == "" || name[0] == '#' {
				continue
			}
			l := flatLine{line: line, column: len(words) - len(name) + 1}
			name, after := cutWord(name)
			tier := strings.TrimLeft(after, blanks)
			// In characters, as errors count, and only from the name on: blanks before it are one byte each.
			l.tierColumn = l.column + len([]rune(words[l.column-1:len(words)-len(tier)]))
			l.name = name
			l.tier, after = cutWord(tier)
			l.rest = strings.TrimLeft(after, blanks)
			if !yield(l) {
				return
			}
		}
	}
}

// cutWord parts a text at its first blank.
func cutWord(s string) (word, after string) {
	if i := strings.IndexAny(s, blanks); i >= 0 {
		return s[:i], s[i:]
	}
	return s, ""
}

// asNodes are the name and the tier as the YAML library would have read them.
func (l flatLine) asNodes() (key, value *yaml.Node) {
	// So that the few lines that need a closer look are judged by the same code as YAML.
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: l.name, Line: l.line, Column: l.column},
		&yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: l.tier, Line: l.line, Column: l.tierColumn}
}

// problem says what is wrong with the form of a line, or nothing.
func (l flatLine) problem() string {
	switch {
	// First of all, because this is YAML in a file with the wrong name, and its every line would be an error.
	case strings.HasSuffix(l.name, ":"):
		return "write the name without a colon, such as alice free; a file in YAML has another name than *" + flatExtension
	// A third word is not passed over: it may be the rest of a name with a blank.
	case l.tier == "" || l.tier[0] == '#' || l.rest != "" && l.rest[0] != '#':
		return "each line must be a user's name and a tier, such as alice free; a name with blanks, and limits of a user's own, need a file in YAML"
	// YAML can write them visibly; here they could be in a name that looks like another.
	case strings.ContainsFunc(l.name, isControl):
		return "the name " + quote(l.name) + " has control characters; name this user in a file in YAML"
	}
	return ""
}

// readFlatFile reads a flat users file.
func (f *file) readFlatFile(data []byte) {
	if !f.checkText(data) {
		return
	}
	text := string(data)
	// So that the map of a million users does not grow again and again.
	if len(f.content.Users) == 0 {
		f.content.Users = make(map[string]limits.Named, strings.Count(text, "\n"))
	}
	for l := range flatLines(text) {
		if wrong := l.problem(); wrong != "" {
			f.addError(l.line, l.column, "%s", wrong)
			continue
		}
		// Nearly all, and without nodes, which would take longer to make than all else.
		if entry, ok := f.scalars[l.tier]; ok && !limits.IsPattern(l.name) {
			f.addNamed(l.name, l.line, l.column, entry)
			continue
		}
		f.readUser(l.asNodes())
	}
}
