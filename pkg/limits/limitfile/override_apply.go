package limitfile

import (
	"errors"
	"fmt"

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
	file, had, err := SplitSource(s.Source())
	if err != nil {
		return s, nil // cannot be: Parse has read it
	}
	var refused []Refused
	var list []limits.Override // that can be encoded
	for _, o := range overrides {
		if err := CheckOverride(o); err != nil {
			refused = append(refused, Refused{o, err})
			continue
		}
		list = append(list, o)
	}
	// The same set, so that its version and whoever compares its address see no change.
	if len(list) == 0 && had == nil {
		return s, refused
	}
	// From the source: what entries were made of is not kept, for a million users and the few of them with overrides.
	f := parseSources(s.Name(), sourceWith(file, list))
	if f.hasErrors() { // too much of them: the file itself is good
		for _, o := range list {
			refused = append(refused, Refused{o, f.errors()})
		}
		return s, refused
	}
	refused = append(refused, f.refused...)
	if len(f.inForce) == 0 && had == nil {
		return s, refused
	}
	set := f.set
	if len(f.refused) > 0 {
		// Agents parse the source, and would refuse all of it for one of these.
		set = set.WithOverrides(sourceWith(file, f.inForce), f.inForce, f.overridden)
	}
	// What has expired in s must not come back.
	return set.At(s.Time()), refused
}

// sourceWith is the source of a set with overrides.
func sourceWith(file []byte, overrides []limits.Override) []byte {
	if len(overrides) == 0 {
		return file
	}
	return JoinSource(file, EncodeOverrides(overrides))
}

// overrideState is what is known of overrides while a file is read. Its zero value has
// none.
type overrideState struct {
	overrides []limits.Override     // those that may count
	nodes     map[string]*yaml.Node // of their limits, by user
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

// readOverrides takes the overrides, before anything is read.
func (f *file) readOverrides(data []byte) {
	list, err := DecodeOverrides(data)
	if err != nil {
		f.addError(1, 1, "the overrides are damaged: %s", shorten(err.Error()))
		return
	}
	f.nodes, f.wanted, f.bases = map[string]*yaml.Node{}, map[string]bool{}, map[string]base{}
	for _, o := range list {
		// Checked again: they come from Redis, perhaps from a newer build.
		n, err := checkOverride(o)
		if err == nil && f.nodes[o.User] != nil {
			err = errors.New("the user has two overrides")
		}
		if err != nil {
			f.refused = append(f.refused, Refused{o, err})
			continue
		}
		f.nodes[o.User], f.wanted[limits.Key(o.User)] = n, true
		f.overrides = append(f.overrides, o)
	}
}

// keepBase keeps what an entry of users is made of, if an override may be over it.
func (f *file) keepBase(name string, l layer, e limits.Entry) {
	// Of a pattern it is not known yet whether it matches one of their users.
	if f.wanted == nil || !limits.IsPattern(name) && !f.wanted[limits.Key(name)] {
		return
	}
	b := base{layer: l}
	if e.Until != 0 {
		b.until, b.then = e.Until, e.Then.Limits.Tier
	}
	f.bases[limits.Key(name)] = b
}

// applyOverrides gives users who have overrides an entry each that counts before all else.
func (f *file) applyOverrides() {
	f.overridden = map[string]*limits.Entry{}
	for _, o := range f.overrides {
		key := limits.Key(o.User)
		fromFile := f.set.FromFile(key)
		e, err := f.overriddenEntry(o, f.baseOf(key, fromFile), fromFile)
		if fromFile.Limits.Tier == limits.ExemptTier {
			err = fmt.Errorf("user %s is exempt by the limit file, so nothing limits this user; an override would have no effect", quote(o.User))
		}
		if err != nil {
			f.refused = append(f.refused, Refused{o, err})
			continue
		}
		f.overridden[key] = e
		f.inForce = append(f.inForce, o)
	}
	f.set = f.set.WithOverrides(f.set.Source(), f.inForce, f.overridden)
}
