package limits

import (
	"iter"
	"slices"
	"time"

	"gopkg.in/yaml.v3"
)

// limit reads one field of a tier or a user into d. It reports whether there is
// such a field. What is wrong with its value it reports as an error of the file.
func (f *file) limit(d *draft, where place, key, value *yaml.Node) bool {
	switch key.Value {
	case "requests":
		f.requests(d, where, value)
	case "concurrent":
		f.count(&d.concurrent, where.at("concurrent"), value, MaxConcurrent)
	case "bandwidth":
		f.bandwidth(&d.bandwidth, where, value)
	case "over_limit":
		f.overLimit(&d.wait, where, value)
	case "priority":
		f.priority(&d.priority, where.at("priority"), value)
	default:
		return false
	}
	return true
}

func (f *file) requests(d *draft, where place, n *yaml.Node) {
	if !f.plain(n) {
		return
	}
	if n.Value == unlimited {
		d.requests = requests{}
		return
	}
	for key, value := range f.entries(n, where.at("requests"), `{GET: 100, "*": 200}`) {
		if i := slices.Index(classes[:], key.Value); i >= 0 {
			f.count(&d.requests[i], where.at("requests."+key.Value), value, MaxPerSecond)
		} else {
			f.unknown(key, where.at("requests"), "class", classes[:])
		}
	}
}

func (f *file) bandwidth(b *Bandwidth, where place, n *yaml.Node) {
	if !f.plain(n) {
		return
	}
	if n.Value == unlimited {
		*b = Bandwidth{}
		return
	}
	at := n // what may make the default share too large
	for key, value := range f.entries(n, where.at("bandwidth"), "{down: 10MiB, up: 5MiB}") {
		switch key.Value {
		case "down":
			f.size(&b.Down, where.at("bandwidth.down"), value)
		case "up":
			f.size(&b.Up, where.at("bandwidth.up"), value)
		case "default_share":
			f.size(&b.DefaultShare, where.at("bandwidth.default_share"), value)
			at = value
		default:
			f.unknown(key, where.at("bandwidth"), "field", bandwidthFields)
		}
	}
	if b.Down > 0 && b.DefaultShare > b.Down {
		f.errorf(at, "%s must be at most bandwidth.down, which is %d bytes, got %d", where.at("bandwidth.default_share"), b.Down, b.DefaultShare)
	}
	if b.Up > 0 && b.DefaultShare > b.Up {
		f.errorf(at, "%s must be at most bandwidth.up, which is %d bytes, got %d", where.at("bandwidth.default_share"), b.Up, b.DefaultShare)
	}
}

func (f *file) overLimit(wait *time.Duration, where place, n *yaml.Node) {
	for key, value := range f.entries(n, where.at("over_limit"), "{concurrent: wait 2s}") {
		if key.Value == "concurrent" {
			f.wait(wait, where.at("over_limit.concurrent"), value)
		} else {
			f.unknown(key, where.at("over_limit"), "field", overLimitFields)
		}
	}
}

// wait reads what becomes of a request over a limit: refuse, which is 0, or wait
// and for how long.
func (f *file) wait(to *time.Duration, where place, n *yaml.Node) {
	if !f.plain(n) {
		return
	}
	if n.Kind != yaml.ScalarNode || isNull(n) {
		f.errorf(n, "%s must be %s, got %s", where, waitForms, describe(n))
		return
	}
	v, err := parseWait(n.Value)
	if err != nil {
		f.errorf(n, "%s %v", where, err)
		return
	}
	*to = v
}

// priority reads a whole number from -MaxPriority to MaxPriority.
func (f *file) priority(to *int, where place, n *yaml.Node) {
	if !f.plain(n) {
		return
	}
	if n.Kind != yaml.ScalarNode || isNull(n) {
		f.errorf(n, "%s must be %s, got %s", where, priorityForms, describe(n))
		return
	}
	v, err := parsePriority(n.Value)
	switch {
	case err != nil:
		f.errorf(n, "%s %v", where, err)
	case n.ShortTag() == "!!str":
		f.errorf(n, "%s must be a number, got text; write %d without quotes", where, v)
	default:
		*to = v
	}
}

// count reads a whole number from 1 to most, or unlimited, which is 0.
func (f *file) count(to *int, where place, n *yaml.Node, most int) {
	if !f.plain(n) {
		return
	}
	switch {
	case n.Kind != yaml.ScalarNode || isNull(n):
		f.errorf(n, "%s must be a whole number or unlimited, got %s", where, describe(n))
		return
	case n.Value == unlimited:
		*to = 0
		return
	}
	v, err := parseCount(n.Value, most)
	switch {
	case err != nil:
		f.errorf(n, "%s %v", where, err)
	case n.ShortTag() == "!!str":
		f.errorf(n, "%s must be a number, got text; write %d without quotes", where, v)
	default:
		*to = v
	}
}

// size reads a size, or unlimited, which is 0.
func (f *file) size(to *int64, where place, n *yaml.Node) {
	if !f.plain(n) {
		return
	}
	switch {
	case n.Kind != yaml.ScalarNode || isNull(n):
		f.errorf(n, "%s must be %s, got %s", where, sizeForms, describe(n))
		return
	case n.Value == unlimited:
		*to = 0
		return
	}
	v, err := parseSize(n.Value)
	if err != nil {
		f.errorf(n, "%s %v", where, err)
		return
	}
	*to = v
}

// tierName reads the name of a tier of the file. It is "" after an error. When
// the file has no tiers, which is an error already, any name is as good.
func (f *file) tierName(n *yaml.Node, where place) string {
	if !f.plain(n) {
		return ""
	}
	if n.Kind != yaml.ScalarNode || isNull(n) {
		f.errorf(n, "%s must be the name of a tier, got %s", where, describe(n))
		return ""
	}
	if _, ok := f.drafts[n.Value]; ok {
		return n.Value
	}
	if len(f.drafts) > 0 {
		f.unknown(n, where, "tier", f.set.tierNames)
	}
	return ""
}

// entries yields the names and values of a mapping; the example shows one in an
// error. A name that is not text, or that was there before, is an error and left
// out.
func (f *file) entries(n *yaml.Node, where place, example string) iter.Seq2[*yaml.Node, *yaml.Node] {
	return func(yield func(key, value *yaml.Node) bool) {
		if !f.plain(n) {
			return
		}
		if n.Kind != yaml.MappingNode {
			f.errorf(n, "%s must be a mapping such as %s, got %s", where, example, describe(n))
			return
		}
		lines := make(map[string]int, len(n.Content)/2)
		for i := 0; i+1 < len(n.Content); i += 2 {
			key, value := n.Content[i], n.Content[i+1]
			if !f.name(key, where) {
				continue
			}
			if line, ok := lines[key.Value]; ok {
				f.errorf(key, "%s has %s twice, first on line %d", where, quote(key.Value), line)
				continue
			}
			lines[key.Value] = key.Line
			if !yield(key, value) {
				return
			}
		}
	}
}

// name reports whether a key of a mapping is text that is there. Numbers and
// dates are the text that they are written as; what YAML reads as nothing, as
// true or false, or as a merge is more likely a mistake.
func (f *file) name(n *yaml.Node, where place) bool {
	if !f.plain(n) {
		return false
	}
	switch {
	case n.Kind != yaml.ScalarNode:
		f.errorf(n, "%s: a name must be text, got %s", where, describe(n))
	case n.ShortTag() == "!!merge":
		f.errorf(n, "%s: merging (<<) is not supported; write the values out", where)
	case n.Value == "":
		f.errorf(n, "%s: a name must not be empty", where)
	case n.ShortTag() == "!!null" || n.ShortTag() == "!!bool":
		f.errorf(n, "%s: YAML does not read %s as text; write it in quotes", where, n.Value)
	default:
		return true
	}
	return false
}

// plain reports whether a node does without the parts of YAML that a limit file
// may not use: aliases and anchors, which can make a small file huge, and tags.
func (f *file) plain(n *yaml.Node) bool {
	switch {
	case n.Kind == yaml.AliasNode:
		f.errorf(n, "aliases (*%s) are not supported; write the value out", cut(n.Value))
	case n.Anchor != "":
		f.errorf(n, "anchors (&%s) are not supported; leave it out", cut(n.Anchor))
	case n.Style&yaml.TaggedStyle != 0:
		f.errorf(n, "tags (%s) are not supported; leave it out", cut(n.Tag))
	default:
		return true
	}
	return false
}

// lookup returns the value of the first entry of that name, or nil.
func lookup(n *yaml.Node, name string) *yaml.Node {
	if n.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == name {
			return n.Content[i+1]
		}
	}
	return nil
}

func (f *file) unknown(key *yaml.Node, where place, what string, valid []string) {
	if !f.full() {
		f.errorf(key, "%s: unknown %s %s", where, what, choices(key.Value, valid))
		return
	}
	f.more++
}

func (f *file) errorf(n *yaml.Node, format string, args ...any) {
	f.add(n.Line, n.Column, format, args...)
}
