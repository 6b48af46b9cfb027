package limitfile

import (
	"iter"
	"slices"

	"gopkg.in/yaml.v3"
)

// field is a field that a mapping may have, and its reader.
type field struct {
	name string
	read func(at place, n *yaml.Node)
}

// readFields reads a mapping of fields. The example shows one in an error.
func (f *file) readFields(n *yaml.Node, where place, example string, fields ...field) {
	f.readKnown(n, where, example, "field", fields)
}

func (f *file) readKnown(n *yaml.Node, where place, example, what string, fields []field) {
	for key, value := range f.eachEntry(n, where, example) {
		if i := slices.IndexFunc(fields, func(one field) bool { return one.name == key.Value }); i >= 0 {
			fields[i].read(where.below(key.Value), value)
			continue
		}
		var valid []string
		for _, one := range fields {
			valid = append(valid, one.name)
		}
		f.refuseUnknown(key, where, what, valid)
	}
}

// eachEntry yields the names and values of a mapping. A name that is no text, or a repeated
// name, is an error and left out.
func (f *file) eachEntry(n *yaml.Node, where place, example string) iter.Seq2[*yaml.Node, *yaml.Node] {
	return func(yield func(key, value *yaml.Node) bool) {
		// Most mappings are small: for them a search costs less than a map.
		var lines map[string]int
		if len(n.Content) > 40 {
			lines = make(map[string]int, len(n.Content)/2)
		}
		for key, value := range f.allEntries(n, where, example) {
			first, twice := lines[key.Value]
			if lines == nil {
				name, _ := findEntry(n, key.Value)
				first, twice = name.Line, name != key
			} else if !twice {
				lines[key.Value] = key.Line
			}
			if twice {
				f.errorf(key, "%s has %s twice, first on line %d", where, quote(key.Value), first)
			} else if !yield(key, value) {
				return
			}
		}
	}
}

// allEntries is eachEntry with repeated names.
func (f *file) allEntries(n *yaml.Node, where place, example string) iter.Seq2[*yaml.Node, *yaml.Node] {
	return func(yield func(key, value *yaml.Node) bool) {
		if !f.is(n, where, yaml.MappingNode, "a mapping such as "+example) {
			return
		}
		for key, value := range children(n) {
			if f.isName(key, where) && !yield(key, value) {
				return
			}
		}
	}
}

// texts reads a list of 1 to most texts. A repeated text is an error, and isValid reports others.
func (f *file) texts(to *[]string, example string, most int, isValid func(item *yaml.Node, at place) bool) func(place, *yaml.Node) {
	return func(where place, n *yaml.Node) {
		switch {
		case !f.is(n, where, yaml.SequenceNode, "a list such as "+example):
			return
		// To some people an empty list means no user, to others every user.
		case len(n.Content) == 0:
			f.errorf(n, "%s is empty; leave it out, or write a list such as %s", where, example)
			return
		case len(n.Content) > most:
			f.errorf(n, "%s has %d items; at most %d are possible", where, len(n.Content), most)
			return
		}
		seen := make(map[string]bool, len(n.Content))
		for _, item := range n.Content {
			switch {
			case !f.isText(item, where):
			case seen[item.Value]:
				f.errorf(item, "%s has %s twice", where, quote(item.Value))
			default:
				seen[item.Value] = true
				if isValid(item, where) {
					*to = append(*to, item.Value)
				}
			}
		}
	}
}

// isText reports whether a node is text that is not empty. A number is the text that it is
// written as.
func (f *file) isText(n *yaml.Node, where place) bool {
	switch {
	case !f.isPlain(n):
	case n.Kind == yaml.ScalarNode && n.Value == "":
		f.errorf(n, "%s: each must be text, got nothing", where)
	case n.Kind != yaml.ScalarNode || isNull(n):
		f.errorf(n, "%s: each must be text, got %s", where, describe(n))
	default:
		return !f.refuseBool(n, where)
	}
	return false
}

// isName reports whether a key of a mapping is text that is not empty.
func (f *file) isName(n *yaml.Node, where place) bool {
	switch {
	case !f.isPlain(n):
	case n.Kind != yaml.ScalarNode:
		f.errorf(n, "%s: a name must be text, got %s", where, describe(n))
	case n.ShortTag() == "!!merge":
		f.errorf(n, "%s: merging (<<) is not supported; write the values out", where)
	case n.Value == "":
		f.errorf(n, "%s: a name must not be empty", where)
	default:
		return !f.refuseBool(n, where)
	}
	return false
}

// refuseBool reports whether YAML reads a text as true, false or null, which is an error.
func (f *file) refuseBool(n *yaml.Node, where place) bool {
	if tag := n.ShortTag(); tag != "!!bool" && tag != "!!null" {
		return false
	}
	f.errorf(n, "%s: YAML does not read %s as text; write it in quotes", where, n.Value)
	return true
}

// isPlain reports whether a node has no alias and no anchor, which can make a small file huge,
// and no tag.
func (f *file) isPlain(n *yaml.Node) bool {
	switch {
	case n.Kind == yaml.AliasNode:
		f.errorf(n, "aliases (*%s) are not supported; write the value out", shorten(n.Value))
	case n.Anchor != "":
		f.errorf(n, "anchors (&%s) are not supported; leave it out", shorten(n.Anchor))
	case n.Style&yaml.TaggedStyle != 0:
		f.errorf(n, "tags (%s) are not supported; leave it out", shorten(n.Tag))
	default:
		return true
	}
	return false
}

// is reports whether a node is plain, not null, and of one of some kinds.
func (f *file) is(n *yaml.Node, where place, kinds yaml.Kind, forms string) bool {
	if !f.isPlain(n) {
		return false
	}
	if n.Kind&kinds == 0 || isNull(n) {
		f.errorf(n, "%s must be %s, got %s", where, forms, describe(n))
		return false
	}
	return true
}

// isSized reports whether a mapping has 1 to most entries. Other nodes are for the next check.
func (f *file) isSized(n *yaml.Node, where place, most int, what string) bool {
	if n.Kind != yaml.MappingNode || len(n.Content) > 0 && len(n.Content)/2 <= most {
		return true
	}
	f.errorf(n, "%s must have 1 to %d %s, got %d", where, most, what, len(n.Content)/2)
	return false
}

// readChoice reads one of some names, and returns its index, or -1 after an error.
func (f *file) readChoice(n *yaml.Node, where place, forms, what string, valid []string) int {
	if !f.is(n, where, yaml.ScalarNode, forms) {
		return -1
	}
	i := slices.Index(valid, n.Value)
	if i < 0 {
		f.refuseUnknown(n, where, what, valid)
	}
	return i
}

func (f *file) refuseUnknown(key *yaml.Node, where place, what string, valid []string) {
	f.errorf(key, "%s: unknown %s %s", where, what, choices{key.Value, valid})
}

func (p *problems) errorf(n *yaml.Node, format string, args ...any) {
	p.addError(n.Line, n.Column, format, args...)
}

// describe says what kind of value a node is, for "must be …, got …".
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

func isUnlimited(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.Value == unlimited }

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

// isEmpty reports whether a node is a mapping without entries.
func isEmpty(n *yaml.Node) bool { return n.Kind == yaml.MappingNode && len(n.Content) == 0 }

// children yields the entries of a mapping, unchecked. Other nodes have none.
func children(n *yaml.Node) iter.Seq2[*yaml.Node, *yaml.Node] {
	return func(yield func(key, value *yaml.Node) bool) {
		for i := 0; n != nil && n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
			if !yield(n.Content[i], n.Content[i+1]) {
				return
			}
		}
	}
}

// findEntry returns the first entry of that name in a mapping, or nil.
func findEntry(n *yaml.Node, name string) (key, value *yaml.Node) {
	for key, value := range children(n) {
		if key.Value == name {
			return key, value
		}
	}
	return nil, nil
}

// lookup returns the value of the first entry of that name, or nil.
func lookup(n *yaml.Node, name string) *yaml.Node {
	_, value := findEntry(n, name)
	return value
}
