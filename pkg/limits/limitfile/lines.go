package limitfile

import (
	"bytes"
	"iter"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// Nearly all of a large file are lines "  name: tier" under users. The YAML library
// takes some 400 bytes of nodes and most of a microsecond for each. So what is
// plainly such a line is read here, and the library gets the rest of the file, with
// an empty line in its place: nothing else is anywhere else then.
//
// That is only done where the result is the same for sure. Where it may not be, and
// for every file with an error, the library reads the whole file.

// plainUsers are the plain lines under users of one file.
type plainUsers struct {
	text   string // from the line after "users:" to the end of the block
	line   int    // of "users:"; 0 if the file has no plain lines
	indent int    // blanks before each name
	count  int
}

// plainLines takes the plain lines out of a file. It returns the file without them,
// or as it is if it has none or something that could change what they mean.
func plainLines(data []byte) (rest []byte, p plainUsers) {
	start := usersLine(data)
	if start < 0 || breaksLines(data) {
		return data, plainUsers{}
	}
	rest = append(make([]byte, 0, len(data)/2), data[:start]...)
	at := start
	for at < len(data) {
		line := data[at:]
		if end := bytes.IndexByte(line, '\n'); end >= 0 {
			line = line[:end]
		}
		words := bytes.TrimLeft(line, " ")
		indent := len(line) - len(words)
		if len(words) > 0 && words[0] != '#' {
			if indent == 0 {
				break // the block has ended
			}
			if p.indent == 0 {
				p.indent = indent
			}
			name, _ := plainLine(words)
			switch {
			case indent != p.indent:
				return data, plainUsers{}
			case name != nil:
				p.count++
				line = nil
			case !oneLine(words):
				return data, plainUsers{}
			}
			rest = append(rest, line...)
		} else {
			rest = append(rest, line...)
		}
		at += len(words) + indent + 1
		rest = append(rest, '\n')
	}
	if p.count == 0 {
		return data, plainUsers{}
	}
	at = min(at, len(data))
	p.line = 1 + bytes.Count(data[:start-1], []byte("\n"))
	p.text = string(data[start:at])
	return append(rest, data[at:]...), p
}

// usersLine returns where the line after "users:" begins, or -1 if nothing follows
// that or it is not there alone.
func usersLine(data []byte) int {
	const users = "users:"
	at := 0
	if !bytes.HasPrefix(data, []byte(users)) {
		if at = 1 + bytes.Index(data, []byte("\n"+users)); at == 0 {
			return -1
		}
	}
	at += len(users)
	end := bytes.IndexByte(data[at:], '\n')
	if end < 0 || !blankOrComment(data[at:at+end]) {
		return -1
	}
	return at + end + 1
}

// breaksLines reports whether YAML would count other lines than those that end with
// a newline.
func breaksLines(data []byte) bool {
	for _, s := range []string{"\r", "\u0085", "\u2028", "\u2029"} {
		if bytes.Contains(data, []byte(s)) {
			return true
		}
	}
	return false
}

// yield the names and tiers of the plain lines, and where the names are.
func (p plainUsers) all() iter.Seq2[[2]string, spot] {
	return func(yield func([2]string, spot) bool) {
		line := p.line
		for rest := p.text; rest != ""; {
			var words string
			words, rest, _ = strings.Cut(rest, "\n")
			line++
			if len(words) <= p.indent || words[p.indent] == ' ' || words[p.indent] == '#' {
				continue
			}
			name, tier := plainLine(words[p.indent:])
			if len(name) > 0 && !yield([2]string{name, tier}, spot{line, p.indent + 1}) {
				return
			}
		}
	}
}

// plainLine takes "name: tier" apart, with a comment behind it or not. The name is
// nil (or "") if it is anything else, such as what YAML does not read as text.
func plainLine[T []byte | string](line T) (name, tier T) {
	var none T
	end := max(hiddenWord(line), wordEnd(line, 0, "@+/"))
	if end == 0 || end > limits.MaxOwnKey || end+2 >= len(line) || line[end] != ':' || line[end+1] != ' ' || isYAMLWord(line[:end]) {
		return none, none
	}
	begin := end + 2
	for begin < len(line) && line[begin] == ' ' {
		begin++
	}
	stop := wordEnd(line, begin, "")
	if stop == begin || isYAMLWord(line[begin:stop]) || !blankOrComment(line[stop:]) {
		return none, none
	}
	return line[:end], line[begin:stop]
}

// wordEnd returns the end of the word that begins at an index: letters, digits and
// _, and behind the first also - . and what is in more.
func wordEnd[T []byte | string](s T, begin int, more string) int {
	i := begin
	for ; i < len(s); i++ {
		c := s[i]
		if !isWord(c) && (i == begin || c != '-' && c != '.' && strings.IndexByte(more, c) < 0) {
			break
		}
	}
	return i
}

// isYAMLWord reports whether YAML may read a word as something else than text.
func isYAMLWord[T []byte | string](s T) bool {
	if len(s) != len("null") && len(s) != len("false") {
		return false
	}
	switch strings.ToLower(string(s)) {
	case "null", "true", "false":
		return true
	}
	return false
}

// blankOrComment reports whether the end of a line says nothing.
func blankOrComment[T []byte | string](s T) bool {
	for i := range len(s) {
		if s[i] == '#' && i > 0 {
			return printable(s[i:])
		}
		if s[i] != ' ' {
			return false
		}
	}
	return true
}

func printable[T []byte | string](s T) bool {
	for i := range len(s) {
		if s[i] < 0x20 || s[i] == 0x7f {
			return false
		}
	}
	return true
}

// oneLine reports whether a line under users is an entry that ends with it for
// sure: a name, perhaps in quotes, and a tier or a mapping in braces.
func oneLine(line []byte) bool {
	end := max(hiddenWord(line), wordEnd(line, 0, "@+/*"))
	if len(line) > 0 && (line[0] == '"' || line[0] == '\'') {
		end = 1 + quotedEnd(line[1:], line[0])
	}
	if end < 1 || end == 1 && !isWord(line[0]) || end+2 >= len(line) || line[end] != ':' || line[end+1] != ' ' {
		return false
	}
	value := bytes.TrimLeft(line[end+1:], " ")
	if len(value) > 0 && value[0] == '{' {
		return closes(value)
	}
	stop := wordEnd(value, 0, "")
	return stop > 0 && blankOrComment(value[stop:])
}

// quotedEnd returns the index behind the closing quote, or -1 if there is none or
// something is escaped.
func quotedEnd(s []byte, quote byte) int {
	end := bytes.IndexByte(s, quote)
	if end < 0 || bytes.IndexByte(s[:end], '\\') >= 0 || !printable(s[:end]) {
		return -1
	}
	return end + 1
}

// closes reports whether the braces and brackets at the beginning of a line close in
// it, and nothing but a comment follows. It knows quotes only where a value can
// begin, and nothing that could make them mean something else.
func closes(s []byte) bool {
	depth, before := 0, byte('{')
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case c < 0x20 || c == 0x7f || strings.IndexByte("#&*!|>%@`\\?", c) >= 0:
			return false
		case c == '"' || c == '\'':
			if strings.IndexByte("{[,:", before) < 0 {
				return false
			}
			end := quotedEnd(s[i+1:], c)
			if end < 0 {
				return false
			}
			i += end
		case c == '{' || c == '[':
			if strings.IndexByte("{[,:", before) < 0 {
				return false
			}
			depth++
		case c == '}' || c == ']':
			if depth--; depth == 0 {
				return blankOrComment(s[i+1:])
			}
		}
		if c != ' ' {
			before = c
		}
	}
	return false
}

// fits reports whether what the YAML library has read of the rest of a file leaves
// no doubt that the plain lines are entries of its users.
func (p plainUsers) fits(root *yaml.Node) bool {
	key, value := find(root, "users")
	if key == nil || root.Style&yaml.FlowStyle != 0 || root.Column != 1 || key.Line != p.line || key.Column != 1 || key.Style != 0 {
		return false
	}
	if value.Kind == yaml.MappingNode {
		return value.Style == 0 && value.Column == p.indent+1 && value.Anchor == ""
	}
	return isNull(value) && value.Style == 0 && value.Value == "" && value.Anchor == ""
}

// plainUsers adds the users of plain lines. Any doubt ends in doubtful.
func (f *file) plainUsers(p plainUsers) {
	if len(f.content.Users) == 0 {
		f.content.Users = make(map[string]*limits.Entry, p.count)
	}
	for user := range p.all() {
		e := f.content.Tiers[user[1]]
		if _, twice := f.content.Users[user[0]]; e == nil || twice {
			f.doubtful = true
			return
		}
		f.content.Users[user[0]] = e
	}
}
