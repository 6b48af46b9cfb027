package limitfile

import (
	"iter"

	"gopkg.in/yaml.v3"
)

// eachEntry yields the names and values of a mapping; the example shows one in an
// error. A name that is not text, or that was there before, is an error and left
// out.
func (f *file) eachEntry(n *yaml.Node, where place, example string) iter.Seq2[*yaml.Node, *yaml.Node] {
	return func(yield func(key, value *yaml.Node) bool) {
		// A map for each mapping of each user would cost more than to look through the few names before.
		var lines map[string]int
		if len(n.Content) > 40 {
			lines = make(map[string]int, len(n.Content)/2)
		}
		for key, value := range f.allEntries(n, where, example) {
			// The first one counts, and further ones are told with its line: which of them was meant, nobody but
			// whoever wrote them knows.
			first, twice := lines[key.Value]
			if lines == nil {
				name, _ := findEntry(n, key.Value)
				first, twice = name.Line, name != key
			} else if !twice {
				lines[key.Value] = key.Line
			}
			if twice {
				f.errorf(key, "%s has %s twice, first on line %d", where, quote(key.Value), first)
				continue
			}
			if !yield(key, value) {
				return
			}
		}
	}
}

// allEntries is entries without regard to names that were there before.
func (f *file) allEntries(n *yaml.Node, where place, example string) iter.Seq2[*yaml.Node, *yaml.Node] {
	return func(yield func(key, value *yaml.Node) bool) {
		if !f.isPlain(n) {
			return
		}
		// With an example, because most such mistakes are a value in place of a mapping of values.
		if n.Kind != yaml.MappingNode {
			f.errorf(n, "%s must be a mapping such as %s, got %s", where, example, describe(n))
			return
		}
		// A name that is refused does not hide what is wrong with the others.
		for i := 0; i+1 < len(n.Content); i += 2 {
			if f.isName(n.Content[i], where) && !yield(n.Content[i], n.Content[i+1]) {
				return
			}
		}
	}
}

// eachItem yields the items of a list of at most so many texts, each there once; the
// example shows one in an error. A list without items is an error.
func (f *file) eachItem(n *yaml.Node, where place, example string, most int) iter.Seq[*yaml.Node] {
	return func(yield func(*yaml.Node) bool) {
		if !f.isPlain(n) {
			return
		}
		switch {
		case n.Kind != yaml.SequenceNode:
			f.errorf(n, "%s must be a list such as %s, got %s", where, example, describe(n))
			return
		// An empty list may be meant as nobody or as everybody.
		case len(n.Content) == 0:
			f.errorf(n, "%s is empty; leave it out, or write a list such as %s", where, example)
			return
		case len(n.Content) > most:
			f.errorf(n, "%s has %d items; at most %d are possible", where, len(n.Content), most)
			return
		}
		// Only now is it known to be short: what comes before must not grow with the file.
		seen := make(map[string]bool, len(n.Content))
		for _, item := range n.Content {
			if !f.isText(item, where) {
				continue
			}
			// What is there twice is a slip in one of both places, and the other was meant.
			if seen[item.Value] {
				f.errorf(item, "%s has %s twice", where, quote(item.Value))
				continue
			}
			seen[item.Value] = true
			if !yield(item) {
				return
			}
		}
	}
}

// isText reports whether a node is text that is not empty, or a number, which is the
// text that it is written as.
func (f *file) isText(n *yaml.Node, where place) bool {
	switch {
	case !f.isPlain(n):
	case n.Kind != yaml.ScalarNode || isNull(n):
		f.errorf(n, "%s: each must be text, got %s", where, describe(n))
	// The empty text is what a value that was forgotten becomes when it is in quotes.
	case n.Value == "":
		f.errorf(n, "%s: each must be text, got nothing", where)
	default:
		return !f.refuseBool(n, where)
	}
	return false
}

// isName reports whether a key of a mapping is text that is there. Numbers and
// dates are the text that they are written as; what YAML reads as nothing, as
// true or false, or as a merge is more likely a mistake.
func (f *file) isName(n *yaml.Node, where place) bool {
	switch {
	case !f.isPlain(n):
	case n.Kind != yaml.ScalarNode:
		f.errorf(n, "%s: a name must be text, got %s", where, describe(n))
	// Merging would need the rules of YAML for what counts, and people know others.
	case n.ShortTag() == "!!merge":
		f.errorf(n, "%s: merging (<<) is not supported; write the values out", where)
	case n.Value == "":
		f.errorf(n, "%s: a name must not be empty", where)
	default:
		return !f.refuseBool(n, where)
	}
	return false
}

// refuseBool refuses what looks like text and is none to YAML, such as a user who is called true.
func (f *file) refuseBool(n *yaml.Node, where place) bool {
	// A number or a date is the text that it is written as, and may well be a name.
	if tag := n.ShortTag(); tag != "!!bool" && tag != "!!null" {
		return false
	}
	f.errorf(n, "%s: YAML does not read %s as text; write it in quotes", where, n.Value)
	return true
}

// isPlain reports whether a node does without the parts of YAML that a limit file
// may not use: aliases and anchors, which can make a small file huge, and tags.
func (f *file) isPlain(n *yaml.Node) bool {
	switch {
	// The library has not followed the alias: a node of a few bytes may stand for gigabytes.
	case n.Kind == yaml.AliasNode:
		f.errorf(n, "aliases (*%s) are not supported; write the value out", shorten(n.Value))
	case n.Anchor != "":
		f.errorf(n, "anchors (&%s) are not supported; leave it out", shorten(n.Anchor))
	// A tag may make any text of a number, which the error about the value would then deny.
	case n.Style&yaml.TaggedStyle != 0:
		f.errorf(n, "tags (%s) are not supported; leave it out", shorten(n.Tag))
	default:
		return true
	}
	return false
}

// lookup returns the value of the first entry of that name, or nil.
func lookup(n *yaml.Node, name string) *yaml.Node {
	_, value := findEntry(n, name)
	return value
}

func (f *file) refuseUnknown(key *yaml.Node, where place, what string, valid []string) {
	// To find what is nearest takes long, and a file may have a million unknown names.
	if !f.isFull() {
		f.errorf(key, "%s: unknown %s %s", where, what, choices(key.Value, valid))
		return
	}
	f.more++
}

func (p *problems) errorf(n *yaml.Node, format string, args ...any) {
	// Of JSON the lines are 0: whoever asks about overrides has no use for a place.
	p.addError(n.Line, n.Column, format, args...)
}

// isScalar reports whether a node is a scalar that is not null.
func (f *file) isScalar(n *yaml.Node, where place, forms string) bool {
	if !f.isPlain(n) {
		return false
	}
	// A value that was forgotten is null to YAML, and would be read as empty text.
	if n.Kind != yaml.ScalarNode || isNull(n) {
		f.errorf(n, "%s must be %s, got %s", where, forms, describe(n))
		return false
	}
	return true
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

// describe says what kind of thing a node is, for "must be …, got …".
func describe(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.MappingNode:
		return "a mapping"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case isNull(n):
		return "nothing"
	case n.ShortTag() == "!!str":
		return "the text " + quote(n.Value)
	default:
		return shorten(n.Value)
	}
}

const unlimited = "unlimited"

// isUnlimited reports whether a node lifts a limit.
func isUnlimited(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.Value == unlimited }

// children yields the entries of a mapping; anything else has none.
func children(n *yaml.Node) func(yield func(key, value *yaml.Node) bool) {
	return func(yield func(key, value *yaml.Node) bool) {
		// Without judging names: whoever asks has had the mapping checked, or needs no more than what is good.
		for i := 0; n != nil && n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
			if !yield(n.Content[i], n.Content[i+1]) {
				return
			}
		}
	}
}

// findEntry returns the entry of that name in a mapping, or nil.
func findEntry(n *yaml.Node, name string) (key, value *yaml.Node) {
	for key, value := range children(n) {
		if key.Value == name {
			return key, value
		}
	}
	return nil, nil
}
