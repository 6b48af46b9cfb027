package into

import (
	"fmt"
	"slices"
	"strings"
)

// BeginMark is the beginning of the first line of a block of ours. The rest of that line is for people.
const BeginMark = "# sluice: begin"

const (
	endMark   = "# sluice: end"
	beginText = BeginMark + ` (written by "sluice haproxy --into": changes in here are lost. %sQuestions: https://github.com/sluice-qos/sluice, haproxy/README.md)` + "\n"
	aboveText = "http-request rules belong above: below they are skipped. "
)

// With puts our lines in: those of the process before the first section that is not global, those of the frontends where they are. After
// an error the texts have some lines only.
func (c *Config) With(o Ours) error {
	c.putProcess(fmt.Sprintf(beginText, "") + o.Process + endMark + "\n")
	for _, x := range c.limited(o) {
		rules, choice, err := x.places()
		if err != nil {
			return err
		}
		blocks := map[int]string{rules: x.filters() + o.Frontend}
		blocks[choice] += o.Choice // one block, if nothing stands between them
		for i, text := range blocks {
			x.lines[i].put("    " + fmt.Sprintf(beginText, aboveText) + text + "    " + endMark + "\n")
		}
	}
	return nil
}

// filters are lines for those that HAProxy adds by itself only as long as there are no others: caches, and compression behind them, as
// HAProxy wants it.
func (x *section) filters() (lines string) {
	all := x.all()
	add := func(filter ...string) {
		text := "    " + strings.Join(filter, " ") + "\n"
		if !strings.Contains(lines, text) && !slices.ContainsFunc(all, func(l *line) bool { return l.is(filter...) }) {
			lines += text
		}
	}
	for _, l := range all {
		if l.is("http-request", "cache-use") || l.is("http-response", "cache-store") {
			add("filter", "cache", l.word(2))
		}
	}
	if slices.ContainsFunc(all, func(l *line) bool { return l.is("compression") }) {
		add("filter", "compression")
	}
	return lines
}

// put puts a block behind a line.
func (l *line) put(block string) {
	l.block = strings.ReplaceAll(block, "\n", l.file.end)
	// Add says how it is known from this that the last line had no end.
	if !strings.HasSuffix(l.text, "\n") {
		l.block = l.file.end + strings.TrimSuffix(l.block, l.file.end)
	}
}

// putProcess puts the process' block before the first section that is not global: no defaults are in force there, and no rule has asked
// for Lua. Comments above that section, such as its title, stay with it, and so does an .if around it.
func (c *Config) putProcess(block string) {
	first := c.sections[slices.IndexFunc(c.sections, func(x *section) bool { return x.kind != "global" })].lines[0]
	for i := slices.Index(first.file.lines, first) - 1; i >= 0; i-- {
		if l := first.file.lines[i]; l.ends(0) {
			l.put(block)
			return
		}
	}
	first.file.block = strings.ReplaceAll(block, "\n", first.file.end)
}

// ends is whether a block can stand behind a line: behind one that says something, where no .if is open but those around.
func (l *line) ends(depth int) bool { return l.says && !l.glued && l.depth == depth }

// order is the order in which HAProxy looks at rules. It warns of a rule behind one of a later kind.
var order = map[string]int{"tcp-request": 1, "monitor": 1, "http-request": 1, "redirect": 2, "use_backend": 3, "use-server": 3}

// places are the lines behind which our rules stand, and those that choose a backend: behind the section's last http-request rule, because
// ours end a request's rules, and before its first use_backend rule, because ours must be the first.
func (x *section) places() (rules, choice int, err error) {
	redirect, fallback := 0, len(x.lines)
	first, chooses := fallback, fallback
	for i, l := range x.lines {
		switch order[l.word(0)] {
		case 1:
			if rules = i; first < i {
				return 0, 0, fmt.Errorf("line %d: this %s rule stands behind %s in line %d: move it above, as HAProxy asks for",
					l.number, l.words[0], x.lines[first].words[0], x.lines[first].number)
			}
		case 2:
			first = min(first, i)
			// HAProxy warns already of one behind use_backend.
			if chooses == len(x.lines) {
				redirect = i
			}
		case 3:
			first, chooses = min(first, i), min(chooses, i)
		}
		// It has no order, but people read it as the last rule.
		if l.is("default_backend") {
			fallback = i
		}
	}
	if rules, err = x.between(rules, first, fallback); err == nil {
		choice, err = x.between(max(rules, redirect), chooses, fallback)
	}
	return rules, choice, err
}

// between is the last line before another one, from a line on, behind which a block can stand: before a default_backend, if that is there.
func (x *section) between(from, before, fallback int) (int, error) {
	if fallback > from {
		before = min(before, fallback)
	}
	for i := before - 1; i >= from; i-- {
		// The section may stand in an .if itself: what counts is what its own lines leave open.
		if x.lines[i].ends(x.lines[i].around) {
			return i, nil
		}
	}
	return 0, fmt.Errorf("line %d: this line and the rules that must be behind Sluice's stand in one .if: end it between them", x.lines[from].number)
}
