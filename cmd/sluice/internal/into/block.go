package into

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// The marks of a block of ours. What stands behind the first one's beginning is for people.
const (
	beginMark = "# sluice: begin"
	endMark   = "# sluice: end"
	beginText = beginMark + ` ("sluice haproxy --into" writes these lines and writes them anew: changes in here are lost. ` +
		`Questions: https://github.com/sluice-qos/sluice, haproxy/README.md)`
)

// Blocks is what stands in a configuration for Sluice: a text before the first section that is not global, and one in each of some
// sections.
type Blocks struct {
	Process  string
	Sections map[int]string // by the index in File.Sections of the file without blocks
}

// Without is the configuration without our blocks, byte for byte as it was before they were put into it. A mark
// without its other one is an error, for nobody knows then what is ours.
func (f *File) Without() (*File, error) {
	var b strings.Builder
	var numbers []int
	open, end := 0, "\n" // the line of the mark of a block that has not ended, and how that line ends
	trim := false
	for i, l := range f.lines {
		mark := strings.TrimSpace(l.text)
		switch begins := strings.HasPrefix(mark, beginMark); {
		// As after a block was copied by hand. Which end is whose would be a guess, and a wrong one deletes lines of theirs.
		case begins && open > 0:
			return nil, fmt.Errorf("line %d: %q stands in the block that begins in line %d", i+1, beginMark, open)
		case begins:
			// As With ends all lines of a block, whatever ends the file's other lines.
			if open = i + 1; strings.HasSuffix(l.text, "\r\n") {
				end = "\r\n"
			}
		case mark == endMark && open == 0:
			return nil, fmt.Errorf("line %d: %q stands here without %q before it", i+1, endMark, beginMark)
		case mark == endMark:
			open = 0
			// The line before the block had no end then: it was the file's last one.
			trim = i == len(f.lines)-1 && !strings.HasSuffix(l.text, "\n")
		case open == 0:
			b.WriteString(l.text)
			numbers = append(numbers, l.number)
		}
	}
	if open > 0 {
		return nil, fmt.Errorf("line %d: %q has no %q behind it", open, beginMark, endMark)
	}
	text := b.String()
	if trim {
		text = strings.TrimSuffix(text, end)
	}
	without := Parse(text)
	// What is found is told by the lines of the file that its owner has, with the blocks.
	for i := range without.lines {
		without.lines[i].number = numbers[i]
	}
	return without, nil
}

// Blocked are the frontends and listens that have a block, in their order.
func (f *File) Blocked() []string {
	var names []string
	for _, l := range f.lines {
		if !l.ours || l.section < 0 {
			continue
		}
		s := f.Sections[l.section]
		// The block of the process stands behind their global section, and has sections of ours.
		limited := (s.Kind == "frontend" || s.Kind == "listen") && !f.lines[s.head].ours
		if limited && !slices.Contains(names, s.Name) {
			names = append(names, s.Name)
		}
	}
	return names
}

// With is a configuration without blocks with these in it.
func (f *File) With(blocks Blocks) (string, error) {
	// Marks of ours would end a block that they do not belong to.
	if f.hasMarks() {
		return "", errors.New("there are marks of blocks in it already")
	}
	at := map[int]string{}
	if blocks.Process != "" {
		at[f.placeOfProcess()] = blocks.Process
	}
	for section, text := range blocks.Sections {
		// Before anything is written, for half of the blocks would be worse than none.
		place, err := f.placeIn(section)
		if err != nil {
			return "", err
		}
		at[place] = text
	}
	end := "\n"
	// As the file's own lines, so that editors and git do not show two kinds.
	if len(f.lines) > 0 && strings.HasSuffix(f.lines[0].text, "\r\n") {
		end = "\r\n"
	}
	var b strings.Builder
	// One more than there are lines: a block may stand behind the last one.
	for i := range len(f.lines) + 1 {
		if text, there := at[i]; there {
			b.WriteString(f.block(i, text, end))
		}
		if i < len(f.lines) {
			b.WriteString(f.lines[i].text)
		}
	}
	return b.String(), nil
}

func (f *File) hasMarks() bool {
	return slices.ContainsFunc(f.lines, func(l line) bool {
		mark := strings.TrimSpace(l.text)
		return strings.HasPrefix(mark, beginMark) || mark == endMark
	})
}

// block is a block that stands before line i.
func (f *File) block(i int, text, end string) string {
	lines := beginText + "\n" + text + endMark + "\n"
	// In a section, as its lines. The process' block has sections of its own.
	if i > 0 && !strings.HasPrefix(text, "global\n") {
		lines = "    " + beginText + "\n" + text + "    " + endMark + "\n"
	}
	lines = strings.ReplaceAll(lines, "\n", end)
	// Without says how it is known from this that the last line had no end.
	if i == len(f.lines) && i > 0 && !strings.HasSuffix(f.lines[i-1].text, "\n") {
		return end + strings.TrimSuffix(lines, end)
	}
	return lines
}

// placeOfProcess is the line before which the process' block stands: before the first section that is not global, where no
// defaults are in force, and no rule has asked for Lua. What stands there for people, such as the title of that section, stays with it.
func (f *File) placeOfProcess() int {
	first := len(f.lines)
	for _, s := range f.Sections {
		if s.Kind != "global" {
			first = s.head
			break
		}
	}
	return f.behind(0, first)
}

// behind is the line behind the last one that says something, of lines from up to to, where no .if is open. If there is none it is the
// first one where none is.
func (f *File) behind(from, to int) int {
	// An .if around the section is around the block as well, which goes before it then.
	for i := to; i > from; i-- {
		if says := len(f.lines[i-1].words) > 0 || i > 1 && f.lines[i-2].glued; says && f.lines[i-1].depth == 0 && !f.lines[i-1].glued {
			return i
		}
	}
	return from
}

// lines of section i, as indices: the first behind its head, and the one behind its last.
func (f *File) linesOf(section int) (from, to int) {
	from, to = f.Sections[section].head+1, len(f.lines)
	if section+1 < len(f.Sections) {
		to = f.Sections[section+1].head
	}
	return from, to
}

// placeIn is the line of a section before which its block stands: behind the last http-request rule, for ours end a request's
// rules, and before the first use_backend rule, for ours must be the first of those.
func (f *File) placeIn(section int) (int, error) {
	from, to := f.linesOf(section)
	// The section may stand in an .if itself: what counts is what its own lines leave open.
	base := f.lines[from-1].depth
	last, first := from, to
	for i := from; i < to; i++ {
		words := f.lines[i].words
		switch {
		case len(words) == 0:
		// Those that answer come first, such as theirs against attackers. Behind ours none would be looked at for who has credit.
		case words[0] == "http-request":
			last = i + 1
		// default_backend is no rule and may stand anywhere, but people read it as the last one. A listen may have neither.
		case (words[0] == "use_backend" || words[0] == "default_backend") && first == to:
			first = i
		}
	}
	if last > first {
		return 0, fmt.Errorf("line %d: this http-request rule stands behind %s in line %d: move it above, as HAProxy asks for",
			f.lines[last-1].number, f.lines[first].words[0], f.lines[first].number)
	}
	// Where no .if of the section is open: from the last line before use_backend that says something upwards.
	for i := first; i >= last; i-- {
		said := i == from || len(f.lines[i-1].words) > 0 || f.lines[i-1].words == nil && i > 1 && f.lines[i-2].glued
		if said && f.lines[i-1].depth == base && !f.lines[i-1].glued {
			return i, nil
		}
	}
	return 0, fmt.Errorf("line %d: this http-request rule and use_backend stand in one .if: end it between them", f.lines[last-1].number)
}
