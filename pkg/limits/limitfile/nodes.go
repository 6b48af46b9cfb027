package limitfile

import (
	"iter"

	"gopkg.in/yaml.v3"
)

// pairs yields the names and values of a mapping. A name that is no text, or a repeated name, is
// an error and left out.
func (d *decoder) pairs(n *yaml.Node, where place) iter.Seq2[*yaml.Node, *yaml.Node] {
	return func(yield func(key, value *yaml.Node) bool) {
		lines := make(map[string]int, len(n.Content)/2)
		for key, value := range children(n) {
			switch first, twice := lines[key.Value]; {
			case !d.isName(key, where):
			case twice:
				d.errorf(key, "%s has %s twice, first on line %d", where, quote(key.Value), first)
			default:
				lines[key.Value] = key.Line
				if !yield(key, value) {
					return
				}
			}
		}
	}
}

// isName reports whether a key of a mapping is text that is not empty.
func (d *decoder) isName(n *yaml.Node, where place) bool {
	switch {
	case !d.isPlain(n):
	case n.Kind != yaml.ScalarNode:
		d.errorf(n, "%s: a name must be text, got %s", where, describe(n))
	case n.ShortTag() == "!!merge":
		d.errorf(n, "%s: merging (<<) is not supported; write the values out", where)
	case n.Value == "":
		d.errorf(n, "%s: a name must not be empty", where)
	default:
		return !d.refuseBool(n, where)
	}
	return false
}

// refuseBool reports whether YAML reads a text as true, false or null, which is an error.
func (d *decoder) refuseBool(n *yaml.Node, where place) bool {
	if tag := n.ShortTag(); tag != "!!bool" && tag != "!!null" {
		return false
	}
	d.errorf(n, "%s: YAML does not read %s as text; write it in quotes", where, n.Value)
	return true
}

// isPlain reports whether a node has no alias and no anchor, which can make a small file huge,
// and no tag.
func (d *decoder) isPlain(n *yaml.Node) bool {
	switch {
	case n.Kind == yaml.AliasNode:
		d.errorf(n, "aliases (*%s) are not supported; write the value out", shorten(n.Value))
	case n.Anchor != "":
		d.errorf(n, "anchors (&%s) are not supported; leave it out", shorten(n.Anchor))
	case n.Style&yaml.TaggedStyle != 0:
		d.errorf(n, "tags (%s) are not supported; leave it out", shorten(n.Tag))
	default:
		return true
	}
	return false
}

// is reports whether a node is plain, not null, and of one of some kinds.
func (d *decoder) is(n *yaml.Node, where place, kinds yaml.Kind, forms string) bool {
	if !d.isPlain(n) {
		return false
	}
	if n.Kind&kinds == 0 || isNull(n) {
		d.errorf(n, "%s must be %s, got %s", where, forms, describe(n))
		return false
	}
	return true
}

func (d *decoder) errorf(n *yaml.Node, format string, args ...any) {
	d.report(d.at(n), format, args...)
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

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

// children yields the entries of a mapping, unchecked. Other nodes have none.
func children(n *yaml.Node) iter.Seq2[*yaml.Node, *yaml.Node] {
	return func(yield func(key, value *yaml.Node) bool) {
		for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
			if !yield(n.Content[i], n.Content[i+1]) {
				return
			}
		}
	}
}

// lookup returns the value of the first entry of that name, or nil.
func lookup(n *yaml.Node, name string) *yaml.Node {
	for key, value := range children(n) {
		if key.Value == name {
			return value
		}
	}
	return nil
}
