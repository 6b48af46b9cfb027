package limitfile

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// baseOf is what the file says of a user, for overrides to be over.
func (f *file) baseOf(key string, e *limits.Entry) base {
	if b, ok := f.bases[key]; ok {
		return b
	}
	// A user whom the file names by a tier alone has no base, and no pattern counts for them.
	if _, named := f.content.Users[key]; !named {
		if b, ok := f.bases[f.set.PatternOf(key)]; ok {
			return b
		}
	}
	return base{layer: f.tiers[e.Limits.Tier]}
}

// overriddenEntry is a user's entry with an override: one part for each time in which the override is
// over the same, and at last what the file says.
func (f *file) overriddenEntry(o limits.Override, b base, fromFile *limits.Entry) (*limits.Entry, error) {
	ends := []int64{o.Until.UnixNano()}
	// If the file's own end is the last one, the entry that is left has it itself.
	if b.until != 0 && b.until < ends[0] {
		ends = append([]int64{b.until}, ends...)
	}
	// From the file's end on the override is over other limits: one entry each, made from the last one back, because
	// an entry has the one that follows it.
	next := fromFile
	for _, end := range slices.Backward(ends) {
		over := b.layer
		if b.until != 0 && b.until < end {
			over = f.tiers[b.then]
		}
		over, err := f.tryOverride(o, over)
		if err != nil {
			return nil, err
		}
		e := f.entryOf(over)
		e.Until, e.Then = end, next
		next = &e
	}
	return next, nil
}

// tryOverride reads the limits of an override over what there is. What is wrong with them is
// no problem of the file.
func (f *file) tryOverride(o limits.Override, over layer) (layer, error) {
	// An override is refused by itself: the file stays good.
	file := f.problems
	f.problems = problems{}
	defer func() { f.problems = file }()
	n := f.nodes[o.User]
	// Each time it is read, which is the same each time: only the layer below differs.
	f.beginEntry(n)
	over = f.readOverride(n, over)
	if !f.hasErrors() {
		f.origins.overrides[o.User] = f.takeWritten()
		return over, nil
	}
	var all []string
	// Without their places: an override is a line of JSON that nobody has before their eyes.
	for _, e := range f.found[:min(len(f.found), 3)] {
		all = append(all, e.Message)
	}
	if more := f.count() - len(all); more > 0 {
		all = append(all, fmt.Sprintf("and %d more", more))
	}
	return over, errors.New(strings.Join(all, "; "))
}

func (f *file) readOverride(n *yaml.Node, over layer) layer {
	where := place{kind: "limits"}
	over = f.layerUnder(where, n, over)
	if n.Kind == yaml.ScalarNode {
		return over
	}
	// It would be in force, and tell everybody that something is overridden.
	if n.Kind == yaml.MappingNode && len(n.Content) == 0 {
		f.errorf(n, "limits must say something, such as {\"concurrent\": 10}")
	}
	return f.readEntry(over, where, n, `{"tier": "pro", "concurrent": 10}`, overrideFields).layer
}

// OverrideJobs returns limits of jobs over which an override is applied that is in force in the
// set. A Set applies overrides to what its file says. This is for limits that are stored elsewhere.
func OverrideJobs(s *limits.Set, o limits.Override, j limits.Jobs) limits.Jobs {
	n, err := overrideNode(o.Limits)
	if err != nil {
		return j // cannot be: what is in force has been read
	}
	// Without the services of the file, because the override has been checked against them.
	f, d := newFile(s.Name()), draft{jobs: &j, mode: j.Mode}
	for key, value := range children(n) {
		if key.Value == "jobs" || key.Value == "mode" {
			limitFields[limitFields.indexOf(key.Value)].read(f, &d, place{kind: "limits"}, value)
		}
	}
	j = *d.jobs
	// An override may enforce what its tier does not, but not what the whole file does not.
	j.Mode = max(s.Mode(), d.mode)
	return j
}
