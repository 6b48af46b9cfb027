package limits

import (
	"bytes"
	"cmp"
	"slices"

	"gopkg.in/yaml.v3"
)

// Origin tells where a limit file says what a user may do. All lines are from 1.
type Origin struct {
	User int // the line that names him; 0 when the file does not, so that his tier is the default one
	Tier int // the line of his tier

	// Named is whether the file names his tier at his name. Otherwise it is the
	// default tier, with or without overrides.
	Named bool

	// Fields are what his tier and his overrides set, sorted by name. An override
	// hides the same field of the tier.
	Fields []FieldOrigin
}

// FieldOrigin is one field that a file sets, to a value or to unlimited.
type FieldOrigin struct {
	Name     string // such as "requests.GET", "concurrent" or "bandwidth"
	Line     int
	Override bool // the user's own, not his tier's
}

// Origin returns where the file sets the limits of a user, who is named as in
// the file and not by his key. It reads Source again, which takes as long as
// Parse: it is for people's questions.
func (s *Set) Origin(user string) Origin {
	first, _, err := documents(bytes.NewReader(s.source))
	if err != nil || first == nil {
		return Origin{} // cannot be: Parse has read it
	}
	root := first.Content[0]
	var o Origin
	fields := map[string]FieldOrigin{}
	tier := s.User(Key(user)).Tier
	if key, value := find(lookup(root, "tiers"), tier); key != nil {
		o.Tier = key.Line
		collect(fields, value, "", false)
	}
	if key, value := find(lookup(root, "users"), user); key != nil {
		o.User = key.Line
		o.Named = value.Kind == yaml.ScalarNode || lookup(value, "tier") != nil
		collect(fields, value, "", true)
	}
	for _, f := range fields {
		o.Fields = append(o.Fields, f)
	}
	slices.SortFunc(o.Fields, func(a, b FieldOrigin) int { return cmp.Compare(a.Name, b.Name) })
	return o
}

// Field returns who sets a field: the field itself, or the mapping around it that
// was set as a whole (requests: unlimited). It is false when nothing does.
func (o Origin) Field(name string) (FieldOrigin, bool) {
	for ; name != ""; name = parent(name) {
		for _, f := range o.Fields {
			if f.Name == name {
				return f, true
			}
		}
	}
	return FieldOrigin{}, false
}

// collect adds the scalars of a mapping by their path. One that stands where the
// tier has a mapping (unlimited) hides all that is below it.
func collect(fields map[string]FieldOrigin, n *yaml.Node, path string, override bool) {
	if n.Kind == yaml.ScalarNode {
		if path == "" || path == "tier" {
			return
		}
		for name := range fields {
			if parent(name) == path {
				delete(fields, name)
			}
		}
		fields[path] = FieldOrigin{path, n.Line, override}
		return
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		name := n.Content[i].Value
		if path != "" {
			name = path + "." + name
		}
		collect(fields, n.Content[i+1], name, override)
	}
}

// parent is the path of the mapping around a field, or "".
func parent(path string) string {
	for i := len(path) - 1; i > 0; i-- {
		if path[i] == '.' {
			return path[:i]
		}
	}
	return ""
}

// find returns the entry of that name in a mapping, or nil.
func find(n *yaml.Node, name string) (key, value *yaml.Node) {
	if n == nil || n.Kind != yaml.MappingNode {
		return nil, nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == name {
			return n.Content[i], n.Content[i+1]
		}
	}
	return nil, nil
}
