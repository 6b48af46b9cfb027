package limitfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"testing/iotest"
	"unicode/utf8"

	"gopkg.in/yaml.v3"
)

// maxParts bounds the values that the YAML library may have to hold at once, some 200
// bytes each: room for a million users with overrides.
const maxParts = 8_000_000

// countParts is at least the number of values in data but one, counted by what separates
// them.
func countParts(data []byte) int {
	n := 0
	for _, s := range []string{":", ",", "[", "{", "- ", "-\n", "-\r", "-\t", "?"} {
		n += bytes.Count(data, []byte(s))
	}
	return n
}

// topNode returns the top node of the only YAML document in data. When there is
// none, or it is not one, it reports that and returns nil.
func (p *problems) topNode(data []byte) *yaml.Node {
	if len(data) > MaxFileSize {
		p.report(at{line: 1, column: 1}, "the file is larger than %d MiB", MaxFileSize>>20)
		return nil
	}
	if !utf8.Valid(data) {
		p.report(position(data, bytes.IndexRune(data, utf8.RuneError)), "the file is not UTF-8 text")
		return nil
	}
	if n := countParts(data); n > maxParts {
		p.report(at{line: 1, column: 1}, "the file has about %d values; at most %d are possible", n, maxParts)
		return nil
	}
	first, second, err := documents(bytes.NewReader(data))
	switch {
	case err != nil:
		p.syntaxError(data, err)
	// A file that was truncated to nothing must not lift all limits.
	case len(first.Content) != 1 || isNull(first.Content[0]):
		p.report(at{line: 1, column: 1}, "the file is empty; it needs version, default_tier and tiers")
	case !second.IsZero():
		p.report(at{line: int32(second.Line), column: int32(second.Column)}, "the file has several YAML documents; keep one, without a line ---")
	default:
		return first.Content[0]
	}
	return nil
}

// documents reads the first two documents; those that do not exist are zero. A
// panic of the YAML library, which strange input may cause, becomes an error.
func documents(r io.Reader) (first, second *yaml.Node, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("yaml: %v", p)
		}
	}()
	decoder := yaml.NewDecoder(r)
	first, second = &yaml.Node{}, &yaml.Node{}
	if err = decoder.Decode(first); err == nil {
		err = decoder.Decode(second)
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return first, second, err
}

// syntaxError reports what the YAML library could not read. The library tells
// the line where the surrounding construct begins, or none, and never a column.
// So data is read again byte by byte: what the library has asked for when it
// gives up tells where it was.
func (p *problems) syntaxError(data []byte, err error) {
	rest := bytes.NewReader(data)
	if _, _, again := documents(iotest.OneByteReader(rest)); again != nil {
		err = again
	}
	read := data[:len(data)-rest.Len()]
	problem := linePrefix.ReplaceAllString(err.Error(), "")
	where := position(data, gaveUpAt(read, problem))
	for _, h := range syntaxHints {
		if strings.Contains(problem, h.problem) {
			problem += "; " + h.hint
			break
		}
	}
	p.report(where, "not valid YAML: %s", problem)
}

// gaveUpAt returns the index in read, the part of the file that the library has
// read, of what it did not like: the beginning of a token, four characters
// back, or the last character. Blanks are never it.
func gaveUpAt(read []byte, problem string) int {
	// The library reads four characters ahead of a token, and one of a control character.
	back := 4
	if strings.Contains(problem, "control characters") || strings.Contains(problem, "end of stream") {
		back = 1
	}
	for ; back > 1 && len(read) > 0; back-- {
		_, size := utf8.DecodeLastRune(read)
		read = read[:len(read)-size]
	}
	read = bytes.TrimRight(read, " \r\n")
	_, size := utf8.DecodeLastRune(read)
	return len(read) - size
}

var linePrefix = regexp.MustCompile(`^yaml: (line \d+: )?`)

// syntaxHints explain what people usually did when the library says problem.
var syntaxHints = []struct{ problem, hint string }{
	{"expected alphabetic or numeric", `write "*" in quotes`},
	{"cannot start any token", "indent with blanks, not tabs, and quote names that begin with @, ` or %"},
	{"expected key", "is this line indented like the one above?"},
	{"mapping values are not allowed", "is this line indented like the one above?"},
	{"expected ',' or", "is a comma or a closing bracket missing?"},
	{"expected ':'", "a name is followed by a colon and a blank"},
	{"unknown anchor", `aliases are not supported, write the value out, and "*" in quotes`},
	{"unexpected end of stream", "is a closing quote missing?"},
	{"max depth", "a limit file is four levels deep"},
}

func position(data []byte, index int) at {
	before := data[:min(index, len(data))]
	start := bytes.LastIndexByte(before, '\n') + 1
	return at{line: int32(bytes.Count(before, []byte("\n")) + 1), column: int32(utf8.RuneCount(before[start:]) + 1)}
}
