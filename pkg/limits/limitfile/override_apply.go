package limitfile

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// Refused is an override that cannot be in force, and why.
type Refused struct {
	limits.Override
	Why error
}

// WithOverrides returns the set in which the overrides are in force, until each ends, in
// place of any that s has, and those that are refused because they are not valid with this
// file. It has another version than s, unless none is in force; its Source carries them, so
// that Parse makes an equal one. It takes as long as Parse. There may be MaxOverrides at
// most, of MaxOverridesSize.
func WithOverrides(s *limits.Set, overrides []limits.Override) (*limits.Set, []Refused) {
	sources, err := unbundle(s.Source())
	if err != nil {
		return s, nil // cannot be: Parse has read it
	}
	files, had := splitOverrides(sources)
	var refused []Refused
	var list []limits.Override // that can be encoded
	for _, o := range overrides {
		if err := CheckOverride(o); err != nil {
			refused = append(refused, Refused{o, err})
			continue
		}
		list = append(list, o)
	}
	if len(list) == 0 && had == nil {
		return s, refused
	}
	f := parseSources(s.Name(), bundleWith(files, list), s.Secrets(), s.NamedSet())
	if f.hasErrors() { // too much of them: the file itself is good
		for _, o := range list {
			refused = append(refused, Refused{o, f.errors()})
		}
		return s, refused
	}
	set := f.set
	if len(f.refused) > 0 {
		refused = append(refused, f.refused...)
		if len(set.Overrides()) == 0 && had == nil {
			return s, refused
		}
		// Agents parse the source, and would refuse all of it for one of these.
		set = set.WithOverrides(bundleWith(files, f.inForce), f.inForce, f.overridden)
	}
	return set.At(s.Time()), refused
}

// bundleWith is the source of a set with overrides.
func bundleWith(files []source, overrides []limits.Override) []byte {
	switch {
	// Clip: an append must not write into the array in which the overrides were.
	case len(overrides) > 0:
		return bundle(append(slices.Clip(files), source{overridesName, EncodeOverrides(overrides)}))
	case len(files) == 1:
		return files[0].data
	}
	return bundle(files)
}

// overrideState is what is known of overrides while a file is read. Its zero value has
// none.
type overrideState struct {
	overrides []limits.Override     // those that may count
	nodes     map[string]*yaml.Node // of their limits, by id
	refused   []Refused
	wanted    map[string]bool // keys of their users
	bases     map[string]base // of users and patterns that are mappings in the file

	inForce    []limits.Override        // those of overrides that are not refused
	overridden map[string]*limits.Entry // by key of their users
}

// base is what an override is over: what the file says of a user.
type base struct {
	layer
	until int64  // Unix time in ns from which it is the tier then; 0 if it never is
	then  string // its name
}

func overrideID(o limits.Override) string { return o.Endpoint + "/" + o.User }

// readOverrides takes the overrides, before anything is read.
func (f *file) readOverrides(data []byte) {
	list, err := DecodeOverrides(data)
	if err != nil {
		f.addError(1, 1, "the overrides are damaged: %s", shorten(err.Error()))
		return
	}
	f.nodes, f.wanted, f.bases = map[string]*yaml.Node{}, map[string]bool{}, map[string]base{}
	for _, o := range list {
		n, err := checkOverride(o)
		if err == nil && f.nodes[overrideID(o)] != nil {
			err = errors.New("the user has two overrides")
		}
		if err != nil {
			f.refused = append(f.refused, Refused{o, err})
			continue
		}
		f.nodes[overrideID(o)], f.wanted[limits.FileKey(o.User)] = n, true
		f.overrides = append(f.overrides, o)
	}
	// Those of everywhere come before those of an endpoint, which so count over them.
	slices.SortStableFunc(f.overrides, compareOverrides)
}

// keepBase keeps what an entry of users is made of, if an override may be over it.
func (f *file) keepBase(name string, l layer, e limits.Entry) {
	// Of a pattern it is not known yet whether it matches one of their users.
	if f.wanted == nil || !limits.IsPattern(name) && !f.wanted[limits.FileKey(name)] {
		return
	}
	b := base{layer: l}
	if e.More != nil && e.More.Until != 0 {
		b.until, b.then = e.More.Until, e.More.Then.Limits.Tier
	}
	f.bases[limits.FileKey(name)] = b
}

// applyOverrides gives users who have overrides an entry each that counts before all else.
func (f *file) applyOverrides() {
	f.overridden = map[string]*limits.Entry{}
	for rest := f.overrides; len(rest) > 0; {
		n := 1
		for n < len(rest) && rest[n].User == rest[0].User {
			n++
		}
		f.overrideUser(rest[:n])
		rest = rest[n:]
	}
	f.set = f.set.WithOverrides(f.set.Source(), f.inForce, f.overridden)
}

// overrideUser gives one user the overrides that are valid together with the ones before them.
func (f *file) overrideUser(overrides []limits.Override) {
	key := limits.FileKey(overrides[0].User)
	fromFile := f.set.FromFile(key)
	b := f.baseOf(key, fromFile)
	var good []limits.Override
	for _, o := range overrides {
		e, err := f.overriddenEntry(append(slices.Clip(good), o), b, fromFile)
		if fromFile.Limits.Tier == limits.ExemptTier {
			err = fmt.Errorf("user %s is exempt by the limit file, so nothing limits this user; an override would have no effect", quote(o.User))
		}
		if err != nil {
			f.refused = append(f.refused, Refused{o, err})
			continue
		}
		good = append(good, o)
		f.overridden[key] = e
		for _, also := range o.Also {
			f.overridden[also] = e
		}
	}
	f.inForce = append(f.inForce, good...)
}

// baseOf is what the file says of a user, for overrides to be over.
func (f *file) baseOf(key string, e *limits.Entry) base {
	if b, ok := f.bases[key]; ok {
		return b
	}
	if _, named := f.content.Users[key]; !named {
		if b, ok := f.bases[f.set.PatternOf(key)]; ok {
			return b
		}
	}
	return base{layer: f.tiers[e.Limits.Tier]}
}

// overriddenEntry is a user's entry with overrides: one part for each time in which the
// same of them count over the same, and at last what the file says.
func (f *file) overriddenEntry(overrides []limits.Override, b base, fromFile *limits.Entry) (*limits.Entry, error) {
	var ends []int64
	for _, o := range overrides {
		ends = append(ends, o.Until.UnixNano())
	}
	if b.until != 0 && b.until < slices.Max(ends) {
		ends = append(ends, b.until)
	}
	// From each end on other overrides count, or other things that the file says: one entry
	// each, made from the last one back, because an entry has the one that follows it.
	slices.Sort(ends)
	next := fromFile
	for _, end := range slices.Backward(slices.Compact(ends)) {
		over := b.layer
		if b.until != 0 && b.until < end {
			over = f.tiers[b.then]
		}
		for _, o := range overrides {
			if o.Until.UnixNano() < end {
				continue
			}
			var err error
			if over, err = f.tryOverride(o, over); err != nil {
				return nil, err
			}
		}
		e := f.entryOf(over)
		ends := &limits.More{Until: end, Then: next}
		if e.More != nil {
			ends.Endpoints = e.More.Endpoints
		}
		e.More = ends
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
	n := f.nodes[overrideID(o)]
	f.beginEntry(n)
	over = f.readOverride(n, over)
	if !f.hasErrors() {
		f.origins.overrides[overrideID(o)] = f.takeWritten()
		return over, nil
	}
	var all []string
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
	if n.Kind == yaml.MappingNode && len(n.Content) == 0 {
		f.errorf(n, "limits must say something, such as {\"concurrent\": 10}")
	}
	return f.readEntry(over, where, n, `{"tier": "pro", "concurrent": 10}`, overrideFields).layer
}
