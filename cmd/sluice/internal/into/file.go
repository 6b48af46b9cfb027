// Package into edits configurations of HAProxy that somebody else wrote. It reads them line by line, keeps every byte,
// and puts lines of ours between marks, or takes them out again. It understands sections, words and conditions (.if) as
// far as that needs, and expands no environment variables: what a variable says is not known to it.
package into

import (
	"slices"
	"strings"
)

// A File is a configuration, read by Parse.
type File struct {
	lines    []line
	Sections []Section
}

type line struct {
	text    string   // with its end
	number  int      // from 1 on; in a file without its blocks, the one that it has in that with them
	words   []string // of a line without a comment; of one that goes on in the next ones, theirs as well
	section int      // the index of its section, -1 before the first
	depth   int      // how many .if are open behind it
	glued   bool     // it goes on in the next line
	ours    bool     // in a block of ours, marks included
}

// A Section is one of a file's.
type Section struct {
	Kind, Name, From string // From is of which defaults it says to be
	head             int    // the index of its first line
}

// kinds are the sections that HAProxy knows, to 3.3.
var kinds = []string{
	"acme", "backend", "cache", "crt-store", "defaults", "dynamic-update", "fcgi-app", "frontend", "global", "http-errors", "listen",
	"log-forward", "log-profile", "mailers", "peers", "program", "resolvers", "ring", "traces", "userlist",
}

// Parse reads a configuration. Any text is one: what HAProxy would refuse stays as it is.
func Parse(text string) *File {
	f := &File{}
	section, depth := -1, 0
	block := false
	for raw := range strings.Lines(text) {
		l := line{text: raw, number: len(f.lines) + 1, section: section, depth: depth, glued: continues(raw)}
		// Whatever it says: a line of a block is ours, its marks included.
		mark := strings.TrimSpace(raw)
		block = block || strings.HasPrefix(mark, beginMark)
		l.ours = block
		block = block && mark != endMark
		if n := len(f.lines); n > 0 && f.lines[n-1].glued && len(f.lines[f.head(n-1)].words) > 0 {
			// No section begins in such a line, and no .if, even if its first word says so.
			head := &f.lines[f.head(n-1)]
			head.words = append(head.words, splitWords(raw)...)
			l.section, l.depth = f.lines[n-1].section, f.lines[n-1].depth
			f.lines = append(f.lines, l)
			continue
		}
		l.words = splitWords(raw)
		if len(l.words) > 0 {
			switch word := l.words[0]; {
			// .else and .elif leave as many open as there were.
			case word == ".if":
				depth++
			// One too many is HAProxy's to refuse. Below 0 it would hide the next .if from those who look for a place.
			case word == ".endif":
				depth = max(0, depth-1)
			// Also of a branch that does not hold: which one does depends on versions and variables.
			case slices.Contains(kinds, word):
				section = len(f.Sections)
				f.Sections = append(f.Sections, newSection(l.words, len(f.lines)))
			}
		}
		l.section, l.depth = section, depth
		f.lines = append(f.lines, l)
	}
	return f
}

func (f *File) head(i int) int {
	// A comment that ends with a backslash does not go on: the line behind it has words of its own.
	for i > 0 && f.lines[i-1].glued && f.lines[i].words == nil {
		i--
	}
	return i
}

func newSection(words []string, head int) Section {
	s := Section{Kind: words[0], head: head}
	rest := words[1:]
	// "defaults from base" has no name; nothing else may lack one.
	if len(rest) > 0 && rest[0] != "from" {
		s.Name, rest = rest[0], rest[1:]
	}
	if len(rest) > 1 && rest[0] == "from" {
		s.From = rest[1]
	}
	return s
}

// String is the configuration, byte for byte.
func (f *File) String() string {
	var b strings.Builder
	for _, l := range f.lines {
		b.WriteString(l.text)
	}
	return b.String()
}

// continues is whether a line ends with a backslash, with which HAProxy reads the next one as a part of it from 3.1 on.
// HAProxy before that takes both apart, and nothing may be put between them in either.
func continues(raw string) bool {
	text := strings.TrimRight(raw, "\r\n")
	slashes := len(text) - len(strings.TrimRight(text, `\`))
	return slashes%2 == 1
}

// splitWords returns the words of a line, without its comment, as HAProxy splits them: at blanks that are neither quoted
// nor behind a backslash. Quotes and backslashes are left out, variables stay as they are.
func splitWords(raw string) []string {
	var words []string
	var word strings.Builder
	begun, quote := false, byte(0)
	end := func() {
		if begun {
			words = append(words, word.String())
		}
		word.Reset()
		begun = false
	}
	for i := 0; i < len(raw); i++ {
		c := raw[i]
		switch {
		case quote != 0 && c == quote:
			quote = 0
		// Between apostrophes a backslash is one.
		case c == '\\' && quote != '\'' && i+1 < len(raw) && raw[i+1] != '\n' && raw[i+1] != '\r':
			i++
			word.WriteByte(raw[i])
			begun = true
		case c == '\\' && quote != '\'': // the line goes on
		// Blanks and # mean nothing in quotes. A quote that does not end is HAProxy's to refuse; here it ends with its line.
		case quote != 0 && c != '\n':
			word.WriteByte(c)
		case c == '"' || c == '\'':
			quote, begun = c, true
		// HAProxy begins a comment there also in the middle of a word.
		case c == '#':
			end()
			return words
		case c == ' ' || c == '\t' || c == '\n' || c == '\r':
			end()
		default:
			word.WriteByte(c)
			begun = true
		}
	}
	end()
	return words
}
