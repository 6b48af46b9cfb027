package haproxy

import (
	"fmt"
	"strings"
)

// An edition is haproxy.cfg or spoe.cfg while it is edited. Parts of it stand between marks, which are comments with
// the part's name. A mark or a text that is not there is an error, after which nothing more is edited: the
// files are ours, so tests find out, and whoever edits looks once, at the end.
type edition struct {
	text string
	err  error
}

// cut returns what stands before, between and behind the marks of a part. The marks belong to the outer two.
func (e *edition) cut(name, indent string) (before, part, after string) {
	begin, end := indent+"# "+name+": begin\n", indent+"# "+name+": end\n"
	before, rest, begun := strings.Cut(e.text, begin)
	part, after, ended := strings.Cut(rest, end)
	if (!begun || !ended) && e.err == nil {
		e.err = fmt.Errorf("no file has marks for %s", name)
	}
	return before + begin, part, end + after
}

// part is the text of a part.
func (e *edition) part(name string) string {
	_, text, _ := e.cut(name, "    ")
	return text
}

// put puts lines in place of a part.
func (e *edition) put(name, lines string) {
	// The marks stay, for a part may be put in place more than once, and so that people find it in what was
	// written.
	if before, _, after := e.cut(name, "    "); e.err == nil {
		e.text = before + lines + after
	}
}
