package limitfile

import (
	"bytes"
	"iter"

	"gopkg.in/yaml.v3"
)

// spot is where something is in a file, from 1.
type spot struct{ line, column int }

// eachUser yields the users that a source names, and what it says of them, in its order.
func (s source) eachUser() iter.Seq2[*yaml.Node, *yaml.Node] {
	if !s.isFlat() {
		return children(lookup(s.rootNode(), "users"))
	}
	return func(yield func(key, value *yaml.Node) bool) {
		for l := range flatLines(string(s.data)) {
			if !yield(l.asNodes()) {
				return
			}
		}
	}
}

// entryOfUser returns the entry of users that names a user so, or nil.
func (s source) entryOfUser(name string) (key, value *yaml.Node) {
	for key, value := range s.eachUser() {
		if key.Value == name {
			return key, value
		}
	}
	return nil, nil
}

// rootNode is the top of a source. It is a node without content if Parse would refuse
// the source as YAML.
func (s source) rootNode() *yaml.Node {
	if countParts(s.data) > maxParts {
		return &yaml.Node{}
	}
	first, _, err := documents(bytes.NewReader(s.data))
	if err != nil || first == nil || len(first.Content) == 0 {
		return &yaml.Node{}
	}
	return first.Content[0]
}
