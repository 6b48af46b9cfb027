package limitfile

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

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
	if len(overrides) == 0 && had == nil {
		return s, nil
	}
	join := func(list []limits.Override) []byte {
		switch {
		// Clip: an append must not write into the array in which the overrides were.
		case len(list) > 0:
			return bundle(append(slices.Clip(files), source{overridesName, EncodeOverrides(list)}))
		case len(files) == 1:
			return files[0].data
		default:
			return bundle(files)
		}
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
	if len(list) == 0 && had == nil {
		return s, refused
	}
	f := parseSources(s.Name(), join(list), s.Secrets(), s.NamedSet())
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
		set = set.WithOverrides(join(f.inForce), f.inForce, f.overridden)
	}
	return set.At(s.Time()), refused
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

// base is what an override is over: a tier, with what the file overrides.
type base struct {
	tierDraft
	tier string

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

// checkOverride says what is wrong with an override whatever the file says, and returns its
// limits.
func checkOverride(o limits.Override) (*yaml.Node, error) {
	runes := utf8.RuneCountInString(o.Reason)
	switch {
	case o.User == "" || !utf8.ValidString(o.User):
		return nil, errors.New("user must be a name in UTF-8, as in a limit file")
	case len(o.Also) >= limits.MaxSecrets || slices.ContainsFunc(o.Also, func(key string) bool { return !limits.IsHidden(key) }):
		return nil, errors.New("also must be hidden keys of the same user")
	case limits.IsPattern(o.User):
		return nil, fmt.Errorf("user %s: a pattern cannot be overridden; name one user", quote(o.User))
	case runes < 1 || runes > maxReason || !utf8.ValidString(o.Reason) || strings.ContainsFunc(o.Reason, func(r rune) bool { return !unicode.IsPrint(r) }) || strings.TrimSpace(o.Reason) == "":
		return nil, fmt.Errorf("reason must be 1 to %d printable characters, got %d characters", maxReason, runes)
	case !utf8.ValidString(o.By) || len(o.By) > maxBy:
		return nil, fmt.Errorf("by must be UTF-8 text of at most %d bytes", maxBy)
	case o.Endpoint == limits.All:
		return nil, errors.New(`limits over all endpoints together are set everywhere, with {"endpoints": {"*": {"requests": {"GET": 100}}}}`)
	case o.Endpoint != "" && !endpointForm.MatchString(o.Endpoint):
		return nil, fmt.Errorf("endpoint %s is no name of one", quote(o.Endpoint))
	case !orderly(o.Since) || !orderly(o.Until) || o.Until.UnixNano() <= 0:
		return nil, errors.New("since and until must be times from 1970 to 2200")
	}
	n, err := jsonNode(o.Limits)
	if err != nil {
		return nil, fmt.Errorf("limits: %w", err)
	}
	for key := range children(n) {
		if slices.Contains(notInOverride, key.Value) {
			return nil, fmt.Errorf("limits: %s is for limit files; an override has an end and a reason of its own", key.Value)
		}
	}
	if o.Endpoint == "" {
		return n, nil
	}
	if n.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("limits at %s must be a mapping such as {\"concurrent\": 2}, got %s", quote(o.Endpoint), describe(n))
	}
	return mappingNode("endpoints", mappingNode(o.Endpoint, n)), nil
}

// orderly reports whether a time can be written, and compared.
func orderly(t time.Time) bool { return t.IsZero() || t.Year() >= 1970 && t.Year() < 2200 }

// notInOverride are the fields of a user's entry that have no meaning in an override.
var notInOverride = []string{"comment", "until", "then"}

// keepBase keeps what an entry of users is made of, if an override may be over it.
func (f *file) keepBase(name string, d tierDraft, tier string, e limits.Entry) {
	if f.wanted == nil || !limits.IsPattern(name) && !f.wanted[limits.FileKey(name)] {
		return
	}
	b := base{tierDraft: d, tier: tier}
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

// overrideUser gives one user the overrides: all of them, or, if one is wrong, those that are
// valid together with the ones before them.
func (f *file) overrideUser(overrides []limits.Override) {
	key := limits.FileKey(overrides[0].User)
	fromFile := f.set.FromFile(key)
	if fromFile.Limits.Tier == limits.ExemptTier {
		for _, o := range overrides {
			f.refused = append(f.refused, Refused{o, fmt.Errorf("user %s is exempt by the limit file, so nothing limits this user; an override would have no effect", quote(o.User))})
		}
		return
	}
	b := f.baseOf(key, fromFile)
	e, err := f.overriddenEntry(overrides, b, fromFile)
	if err != nil {
		var good []limits.Override
		for _, o := range overrides {
			if _, err := f.overriddenEntry(append(slices.Clip(good), o), b, fromFile); err != nil {
				f.refused = append(f.refused, Refused{o, err})
				continue
			}
			good = append(good, o)
		}
		if overrides = good; len(good) == 0 {
			return
		}
		e, _ = f.overriddenEntry(good, b, fromFile)
	}
	f.overridden[key] = e
	for _, o := range overrides {
		for _, also := range o.Also {
			f.overridden[also] = e
		}
	}
	f.inForce = append(f.inForce, overrides...)
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
	return base{tierDraft: f.tierDrafts[e.Limits.Tier], tier: e.Limits.Tier}
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
	ends = slices.Compact(ends)
	next := fromFile
	for _, end := range slices.Backward(ends) {
		over := base{tierDraft: b.tierDraft, tier: b.tier}
		if b.until != 0 && b.until < end {
			over = base{tierDraft: f.tierDrafts[b.then], tier: b.then}
		}
		for _, o := range overrides {
			if o.Until.UnixNano() < end {
				continue
			}
			var err error
			if over, err = f.tryOverride(f.nodes[overrideID(o)], over); err != nil {
				return nil, err
			}
		}
		e := f.entryOf(over.tier, over.draft, over.at)
		m := &limits.More{Until: end, Then: next}
		if e.More != nil {
			m.Endpoints = e.More.Endpoints
		}
		e.More = m
		next = &e
	}
	return next, nil
}

// tryOverride reads the limits of an override over what there is. What is wrong with them is
// no problem of the file.
func (f *file) tryOverride(n *yaml.Node, b base) (base, error) {
	// An override is refused by itself: the file stays good.
	file := f.problems
	f.problems = problems{}
	defer func() { f.problems = file }()
	b = f.readOverride(n, b)
	if !f.hasErrors() {
		return b, nil
	}
	var all []string
	for _, e := range f.found[:min(len(f.found), 3)] {
		all = append(all, e.Message)
	}
	if more := len(f.found) + f.more - len(all); more > 0 {
		all = append(all, fmt.Sprintf("and %d more", more))
	}
	return b, errors.New(strings.Join(all, "; "))
}

func (f *file) readOverride(n *yaml.Node, b base) base {
	where := place{kind: "limits"}
	if n.Kind == yaml.ScalarNode {
		tier := f.readTierName(n, where.atField("tier"))
		return base{tierDraft: f.tierDrafts[tier], tier: tier}
	}
	if t := lookup(n, "tier"); t != nil {
		tier := f.readTierName(t, where.atField("tier"))
		b = base{tierDraft: f.tierDrafts[tier], tier: tier}
	}
	d := b.draft
	var endpoints *yaml.Node
	for key, value := range f.eachEntry(n, where, `{"tier": "pro", "concurrent": 10}`) {
		switch key.Value {
		case "tier":
		case "endpoints":
			endpoints = value
		default:
			if !f.readLimit(&d, where, key, value) {
				f.refuseUnknown(key, where, "field", overrideFields)
			}
		}
	}
	if n.Kind == yaml.MappingNode && len(n.Content) == 0 {
		f.errorf(n, "limits must say something, such as {\"concurrent\": 10}")
	}
	if f.hasErrors() {
		return b
	}
	return base{tierDraft: tierDraft{d, f.userEndpoints(where, n, b.tierDraft, endpoints)}, tier: b.tier}
}

var overrideFields = slices.DeleteFunc(slices.Clone(userFields), func(field string) bool { return slices.Contains(notInOverride, field) })

// CheckOverride says what is wrong with an override whatever the limit file says, or nil.
func CheckOverride(o limits.Override) error {
	_, err := checkOverride(o)
	return err
}
