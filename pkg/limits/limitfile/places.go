package limitfile

import (
	"bytes"
	"iter"

	"gopkg.in/yaml.v3"
)

// spot is where something is in a file, from 1.
type spot struct{ line, column int }

// places yields the users that a source names, and where, in its order.
func (s source) places() iter.Seq2[string, spot] {
	return func(yield func(string, spot) bool) {
		for key := range children(lookup(s.root(), "users")) {
			if !yield(key.Value, spot{key.Line, key.Column}) {
				return
			}
		}
	}
}

// user returns the entry of users that names a user so, or nil. The root is that of
// quickRoot.
func (p plainUsers) user(root *yaml.Node, name string) (key, value *yaml.Node) {
	if key, value := find(lookup(root, "users"), name); key != nil {
		return key, value
	}
	for user, at := range p.all() {
		if user[0] == name {
			return &yaml.Node{Kind: yaml.ScalarNode, Value: name, Line: at.line, Column: at.column},
				&yaml.Node{Kind: yaml.ScalarNode, Value: user[1], Line: at.line}
		}
	}
	return nil, nil
}

// quickRoot is root without plain lines, and those.
func (s source) quickRoot() (*yaml.Node, plainUsers) {
	rest, plain := plainLines(s.data)
	if root := (source{data: rest}).root(); plain.count == 0 || plain.fits(root) {
		return root, plain
	}
	return s.root(), plainUsers{}
}

// root is the top of a source. It is a node without content if Parse would refuse
// the source as YAML.
func (s source) root() *yaml.Node {
	if parts(s.data) > maxParts {
		return &yaml.Node{}
	}
	first, _, err := documents(bytes.NewReader(s.data))
	if err != nil || first == nil || len(first.Content) == 0 {
		return &yaml.Node{}
	}
	return first.Content[0]
}
