// Package into edits configurations of HAProxy that its operators wrote. It reads them line by line, keeps every byte,
// and puts lines of ours between marks, or takes them out again. It understands sections, words and conditions (.if) as
// far as that needs, and expands no environment variables: what a variable says is not known to it.
package into

import (
	"fmt"
	"slices"
	"strings"
)

// A Config is all that one HAProxy is started with, without blocks of ours.
type Config struct {
	Blocked  []string // the frontends and listens that had a block of ours, in their order
	files    []*file
	sections []*section
}

type file struct {
	name  string
	end   string // of its lines
	block string // of With, in front of its first line
	lines []*line
	last  *section
	rule  *line // the one that goes on in the next line, if it says something
	depth int   // how many .if are open
}

type line struct {
	file   *file
	text   string   // with its end
	number int      // from 1 on, blocks of ours included
	words  []string // without a comment; of a line that goes on in the next ones, theirs as well
	says   bool     // it has words, or goes on a line that has
	depth  int      // how many .if are open behind it,
	around int      // and behind the head of its section
	glued  bool     // it goes on in the next line
	block  string   // of With, behind it
}

type section struct {
	kind, name string
	lines      []*line
	defaults   *section // in force for it; those that they are from are theirs
}

// kinds are the sections that HAProxy knows, to 3.4.
var kinds = []string{
	"acme", "backend", "cache", "crt-store", "defaults", "dynamic-update", "fcgi-app", "frontend", "global", "http-errors", "listen",
	"log-forward", "log-profile", "mailers", "peers", "program", "resolvers", "ring", "traces", "userlist",
}

// Add reads the next file. Any text is one, but marks of blocks must come in pairs, because a block has no known end otherwise.
func (c *Config) Add(name, text string) error {
	// Blocks end as the file's own lines, so that editors and git do not show two kinds.
	f := &file{name: name, end: endOf(strings.SplitAfterN(text, "\n", 2)[0])}
	c.files = append(c.files, f)
	open, number, end := 0, 0, ""
	for raw := range strings.Lines(text) {
		number++
		mark := strings.TrimSpace(raw)
		switch begins := strings.HasPrefix(mark, BeginMark); {
		// As after a block was copied by hand. Which end is whose would be a guess, and a wrong one deletes lines of theirs.
		case begins && open > 0:
			return fmt.Errorf("%s: line %d: %q stands in the block that begins in line %d", name, number, BeginMark, open)
		case begins:
			open, end = number, endOf(raw)
			if f.last != nil && f.last.frontend() && !slices.Contains(c.Blocked, f.last.name) {
				c.Blocked = append(c.Blocked, f.last.name)
			}
		case mark == endMark && open == 0:
			return fmt.Errorf("%s: line %d: %q stands here without %q before it", name, number, endMark, BeginMark)
		case mark == endMark:
			open = 0
			// The line before the block had no end then: it was the file's last one.
			if n := len(f.lines); n > 0 && !strings.HasSuffix(raw, "\n") {
				f.lines[n-1].text = strings.TrimSuffix(f.lines[n-1].text, end)
			}
		case open == 0:
			c.addLine(f, &line{file: f, text: raw, number: number, words: splitWords(raw), glued: continues(raw)})
		}
	}
	if open > 0 {
		return fmt.Errorf("%s: line %d: %q has no %q behind it", name, open, BeginMark, endMark)
	}
	return nil
}

func (c *Config) addLine(f *file, l *line) {
	f.lines = append(f.lines, l)
	l.says = f.rule != nil || len(l.words) > 0
	switch {
	// No section begins in such a line, and no .if, even if its first word says so.
	case f.rule != nil:
		f.rule.words, l.words = append(f.rule.words, l.words...), nil
	// .else and .elif leave as many open as there were.
	case l.is(".if"):
		f.depth++
	// One too many is HAProxy's to refuse. Below 0 it would hide the next .if when a place is looked for.
	case l.is(".endif"):
		f.depth = max(0, f.depth-1)
	// Also of a branch that does not hold: which one does depends on versions and variables.
	case slices.Contains(kinds, l.word(0)):
		f.last = c.newSection(l.words)
	}
	switch {
	case !l.glued:
		f.rule = nil
	case f.rule == nil && l.says:
		f.rule = l
	}
	if l.depth = f.depth; f.last != nil {
		f.last.lines = append(f.last.lines, l)
		l.around = f.last.lines[0].depth
	}
}

func (c *Config) newSection(words []string) *section {
	x := &section{kind: words[0]}
	rest, from := words[1:], ""
	// "defaults from base" has no name; nothing else may lack one.
	if len(rest) > 0 && rest[0] != "from" {
		x.name, rest = rest[0], rest[1:]
	}
	if len(rest) > 1 && rest[0] == "from" {
		from = rest[1]
	}
	for _, d := range c.sections {
		// Without a name: the last ones. Defaults themselves have no others unless they name some.
		if d.kind == "defaults" && (from != "" && d.name == from || from == "" && x.kind != "defaults") {
			x.defaults = d
		}
	}
	c.sections = append(c.sections, x)
	return x
}

func (x *section) frontend() bool { return x.kind == "frontend" || x.kind == "listen" }

// all are the lines of a section and of the defaults that are in force for it. Its own come first: what is set there outdoes these.
func (x *section) all() []*line {
	if x == nil {
		return nil
	}
	return slices.Concat(x.lines, x.defaults.all())
}

// is whether a line begins with these words.
func (l *line) is(words ...string) bool {
	return len(l.words) >= len(words) && slices.Equal(l.words[:len(words)], words)
}

// word is a line's word, from 0 on, or "".
func (l *line) word(i int) string {
	if i < len(l.words) {
		return l.words[i]
	}
	return ""
}

// Texts are the files, by their order, with the lines that With has put in.
func (c *Config) Texts() []string {
	var texts []string
	for _, f := range c.files {
		var b strings.Builder
		b.WriteString(f.block)
		for _, l := range f.lines {
			b.WriteString(l.text + l.block)
		}
		texts = append(texts, b.String())
	}
	return texts
}

func endOf(raw string) string {
	if strings.HasSuffix(raw, "\r\n") {
		return "\r\n"
	}
	return "\n"
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
