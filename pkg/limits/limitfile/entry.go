package limitfile

import (
	"fmt"
	"slices"

	"gopkg.in/yaml.v3"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// layer is what somebody has: their tier, or it with other limits over it.
type layer struct {
	draft
	tier string
}

// entry is a mapping of a tier, of a user, or of an override, while it is read.
type entry struct {
	layer            // begins as what the mapping lies over
	sets        bool // it sets limits
	until, then *yaml.Node
}

// The fields of tiers, of users, and of overrides, which have an end and a reason of their own.
var (
	tierFields = slices.Concat(ofEntry(limitFields), fields[entry]{
		{"comment", func(f *file, _ *entry, at place, n *yaml.Node) { comments.read(f, &f.written.comment, at, n) }},
	})
	userFields = slices.Concat(fields[entry]{
		{"tier", func(*file, *entry, place, *yaml.Node) {}}, // read before the others, which lie over it
	}, tierFields, fields[entry]{
		{"until", func(_ *file, e *entry, _ place, n *yaml.Node) { e.until = n }},
		{"then", func(_ *file, e *entry, _ place, n *yaml.Node) { e.then = n }},
	})
	overrideFields = userFields.without(notInOverride)
)

// notInOverride are the fields of a user's entry that have no meaning in an override.
var notInOverride = []string{"comment", "until", "then"}

// ofEntry are the fields of limits as those of an entry.
func ofEntry(all fields[draft]) (of fields[entry]) {
	for _, one := range all {
		of = append(of, field[entry]{one.name, func(f *file, e *entry, at place, n *yaml.Node) {
			e.sets = true
			one.read(f, &e.draft, at, n)
		}})
	}
	return of
}

// comments mean nothing to the parts of the cluster.
var comments = kind[string]{forms: "text", silent: true, parse: func(s string) (string, error) {
	if len(s) > maxComment {
		return "", fmt.Errorf("is longer than %d bytes", maxComment)
	}
	return s, nil
}}

// maxComment is the longest comment field, in bytes.
const maxComment = 1000

// readEntry reads what a mapping says over a layer.
func (f *file) readEntry(over layer, where place, n *yaml.Node, example string, all fields[entry]) entry {
	// It begins as a copy of the layer: what the mapping does not name stays as it is there.
	e := &f.entry
	*e = entry{layer: over}
	readFields(f, e, where, n, example, all)
	return *e
}

// layerUnder is the tier that an entry names, alone or in a mapping, and otherwise the layer
// that is given.
func (f *file) layerUnder(where place, n *yaml.Node, otherwise layer) layer {
	if n.Kind != yaml.ScalarNode {
		// It may stand behind the fields that lie over it.
		if n = lookup(n, "tier"); n == nil {
			return otherwise
		}
	}
	f.written.tier = true
	return f.tiers[f.readTierName(n, where.atField("tier"))]
}

// entryOf makes an entry that does not expire.
func (f *file) entryOf(l layer) limits.Entry {
	return limits.Entry{Limits: f.sharedLimits(l.tier, l.draft)}
}
