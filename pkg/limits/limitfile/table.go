package limitfile

import (
	"slices"

	"gopkg.in/yaml.v3"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// field is one that a mapping may have: its name, and what reads its value into a T.
type field[T any] struct {
	name string
	read func(f *file, to *T, at place, value *yaml.Node)
}

// fields are all that a mapping may have, in the order in which errors tell them.
type fields[T any] []field[T]

func (all fields[T]) names() []string {
	names := make([]string, len(all))
	for i, one := range all {
		names[i] = one.name
	}
	return names
}

func (all fields[T]) indexOf(name string) int {
	return slices.IndexFunc(all, func(one field[T]) bool { return one.name == name })
}

func (all fields[T]) without(names []string) fields[T] {
	return slices.DeleteFunc(slices.Clone(all), func(one field[T]) bool { return slices.Contains(names, one.name) })
}

// readFields reads a mapping of fields into a T. The example shows one in an error.
func readFields[T any](f *file, to *T, at place, n *yaml.Node, example string, all fields[T]) {
	for key, value := range f.eachEntry(n, at, example) {
		if i := all.indexOf(key.Value); i >= 0 {
			// In the order of the file: no field depends on one beside it, but for tier, which is looked up before.
			all[i].read(f, to, at.below(key.Value), value)
		} else {
			f.refuseUnknown(key, at, "field", all.names())
		}
	}
}

// kind is a form of scalars.
type kind[T any] struct {
	forms  string                  // what is valid, as errors tell it
	parse  func(string) (T, error) // its errors go on where the name of the field leaves off
	lifts  bool                    // unlimited is valid, and the zero T
	number bool                    // it must not be in quotes
	text   bool                    // what YAML reads as a number, as true or as false is not valid
	silent bool                    // OriginOf does not tell where it is set: it is no limit
}

// read reads a scalar, and leaves what was there if it is not valid.
func (k kind[T]) read(f *file, to *T, at place, n *yaml.Node) {
	if !f.isScalar(n, at, k.forms) {
		return
	}
	var v T
	var err error
	lifted := k.lifts && isUnlimited(n)
	if !lifted {
		// What is written, not what YAML makes of it: to YAML 010 is eight, and 1_000 is a number.
		v, err = k.parse(n.Value)
	}
	switch tag := n.ShortTag(); {
	case err != nil:
		f.errorf(n, "%s %v", at, err)
	// To JSON Schema it would be no text, whatever it looks like.
	case k.text && (tag == "!!int" || tag == "!!float" || tag == "!!bool"):
		f.errorf(n, "%s must be text, got %s; write it in quotes", at, shorten(n.Value))
	// The schema refuses a number in quotes, so that an editor would call wrong what is accepted here.
	case k.number && !lifted && tag == "!!str":
		f.errorf(n, "%s must be a number, got text; write %v without quotes", at, v)
	// Where a comment or an end stands is known by the entry's line.
	case k.silent:
		*to = v
	default:
		*to = v
		f.mark(at, n)
	}
}

// scalar is a field of a kind, which is in an S.
func scalar[S, T any](name string, k kind[T], in func(*S) *T) field[S] {
	// By a function and not by a pointer: the table is one for all tiers and users.
	return field[S]{name, func(f *file, to *S, at place, n *yaml.Node) { k.read(f, in(to), at, n) }}
}

// modeField is a field with the name of a mode.
func modeField[S any](in func(*S) *limits.Mode) field[S] {
	return field[S]{"mode", func(f *file, to *S, at place, n *yaml.Node) { f.readMode(in(to), at, n) }}
}

// list is a field with a list of texts, each of which isValid checks, and refuses if it is not.
func list[S any](name, example string, most int, in func(*S) *[]string, isValid func(f *file, item *yaml.Node, at place) bool) field[S] {
	return field[S]{name, func(f *file, to *S, at place, n *yaml.Node) {
		for item := range f.eachItem(n, at, example, most) {
			// One that is refused is left out, so that nothing that follows is told of it again.
			if isValid(f, item, at) {
				all := in(to)
				*all = append(*all, item.Value)
			}
		}
	}}
}
