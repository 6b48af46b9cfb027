package limits

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"gopkg.in/yaml.v3"
)

// How much may be set by hand at a time: an exception is what a person can look over,
// and all of them travel with the limits.
const (
	MaxOverrides     = 1000
	MaxOverridesSize = 1 << 20 // bytes of EncodeOverrides

	maxReason = 200  // characters
	maxBy     = 1000 // bytes
)

// Override is what an operator set by hand for a user until a time, over what the limit
// file says of that user.
type Override struct {
	User     string `json:"user"`               // named as in the limit file; no pattern
	Endpoint string `json:"endpoint,omitempty"` // "" is everywhere

	// Also are further keys of the user where names are hidden (see Secrets): those of the
	// previous secrets. User is the current one's then.
	Also []string `json:"also,omitempty"`

	// Limits, in JSON, are what an entry of users may hold except for comment, until and
	// then: the name of a tier or a mapping. A field that they do not set stays as the
	// file has it; a tier that they name replaces everything that the file says of the
	// user. At an endpoint they are what an entry may hold there, so no tier.
	Limits json.RawMessage `json:"limits"`

	Reason string    `json:"reason"`       // 1 to 200 printable characters
	By     string    `json:"by,omitempty"` // who did it; "" if that is not known
	Since  time.Time `json:"since"`        // means nothing
	Until  time.Time `json:"until"`        // when the file counts again
}

// Refused is an override that cannot be in force, and why.
type Refused struct {
	Override
	Why error
}

// EncodeOverrides is what DecodeOverrides reads: JSON, sorted by user and endpoint,
// with times in UTC.
func EncodeOverrides(overrides []Override) []byte {
	list := append([]Override{}, overrides...)
	for i := range list {
		list[i].Since, list[i].Until = list[i].Since.UTC(), list[i].Until.UTC()
	}
	slices.SortStableFunc(list, compareOverrides)
	data, err := json.Marshal(list)
	if err != nil {
		return []byte("[]") // cannot be: what was decoded, or checked, is JSON
	}
	return data
}

func compareOverrides(a, b Override) int {
	return cmp.Or(cmp.Compare(a.User, b.User), cmp.Compare(a.Endpoint, b.Endpoint))
}

// DecodeOverrides reads them. What they say is for With to judge.
func DecodeOverrides(data []byte) ([]Override, error) {
	if len(data) > MaxOverridesSize {
		return nil, fmt.Errorf("overrides: larger than %d bytes", MaxOverridesSize)
	}
	var list []Override
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&list); err != nil {
		return nil, fmt.Errorf("overrides: %w", err)
	}
	if d.More() {
		return nil, errors.New("overrides: something follows them")
	}
	if len(list) > MaxOverrides {
		return nil, fmt.Errorf("overrides: %d, want %d at most", len(list), MaxOverrides)
	}
	return list, nil
}

// With returns the set in which the overrides are in force, until each ends, in place
// of any that s has, and those that are refused because they are not valid with this
// file. It has another version than s, unless none is in force; its Source carries
// them, so that Parse makes an equal one. It takes as long as Parse. There may be
// MaxOverrides at most, of MaxOverridesSize.
func (s *Set) With(overrides []Override) (*Set, []Refused) {
	sources, err := unbundle(s.source)
	if err != nil {
		return s, nil // cannot be: Parse has read it
	}
	files, had := splitOverrides(sources)
	if len(overrides) == 0 && had == nil {
		return s, nil
	}
	data := s.source
	join := func(list []Override) {
		switch {
		case len(list) > 0:
			data = bundle(append(slices.Clip(files), source{overridesName, EncodeOverrides(list)}))
		case len(files) == 1:
			data = files[0].data
		default:
			data = bundle(files)
		}
	}
	var refused []Refused
	var list []Override // that can be encoded
	for _, o := range overrides {
		if err := o.Check(); err != nil {
			refused = append(refused, Refused{o, err})
			continue
		}
		list = append(list, o)
	}
	if len(list) == 0 && had == nil {
		return s, refused
	}
	join(list)
	f := parse(s.name, data, true)
	if f.any() || f.doubtful {
		f = parse(s.name, data, false)
	}
	if f.any() { // too much of them: the file itself is good
		for _, o := range list {
			refused = append(refused, Refused{o, f.errors()})
		}
		return s, refused
	}
	refused = append(refused, f.refused...)
	if len(f.refused) > 0 {
		if len(f.set.hand) == 0 && had == nil {
			return s, refused
		}
		join(f.set.hand)
	}
	f.set.source, f.set.version = bytes.Clone(data), version(data)
	f.set.secrets, f.set.named = s.secrets, s.named
	return (&Set{content: f.set, now: math.MinInt64}).At(time.Unix(0, s.now)), refused
}

// Overrides are those in force, sorted by user and endpoint.
func (s *Set) Overrides() []Override {
	return slices.DeleteFunc(slices.Clone(s.hand), func(o Override) bool { return unixNano(o.Until) <= s.now })
}

// overridesOf are those in force that count for a user at an endpoint.
func (s *Set) overridesOf(endpoint string, users ...string) []Override {
	return slices.DeleteFunc(s.Overrides(), func(o Override) bool {
		return !o.Of(users...) || o.Endpoint != "" && o.Endpoint != endpoint
	})
}

// Of reports whether an override is that of any user of these names or keys.
func (o Override) Of(users ...string) bool {
	return slices.ContainsFunc(users, func(user string) bool { return o.User == user || slices.Contains(o.Also, user) })
}

// hand is what is known of overrides by hand while a file is read. Its zero value has
// none.
type hand struct {
	overrides []Override            // those that may count
	nodes     map[string]*yaml.Node // of their limits, by id
	refused   []Refused
	wanted    map[string]bool // keys of their users
	bases     map[string]base // of users and patterns that are mappings in the file
}

// base is what an override is over: a tier, with what the file overrides.
type base struct {
	tierDraft
	tier string

	until int64  // Unix time in ns from which it is the tier then; 0 if it never is
	then  string // its name
}

func (o Override) id() string { return o.Endpoint + "/" + o.User }

// byHand takes the overrides, before anything is read.
func (f *file) byHand(data []byte) {
	list, err := DecodeOverrides(data)
	if err != nil {
		f.add(1, 1, "the overrides by hand are damaged: %s", cut(err.Error()))
		return
	}
	f.nodes, f.wanted, f.bases = map[string]*yaml.Node{}, map[string]bool{}, map[string]base{}
	for _, o := range list {
		n, err := o.check()
		if err == nil && f.nodes[o.id()] != nil {
			err = errors.New("the user has two overrides")
		}
		if err != nil {
			f.refused = append(f.refused, Refused{o, err})
			continue
		}
		f.nodes[o.id()], f.wanted[fileKey(o.User)] = n, true
		f.overrides = append(f.overrides, o)
	}
	slices.SortStableFunc(f.overrides, compareOverrides)
}

// check says what is wrong with an override whatever the file says, and returns its
// limits.
func (o Override) check() (*yaml.Node, error) {
	runes := utf8.RuneCountInString(o.Reason)
	switch {
	case o.User == "" || !utf8.ValidString(o.User):
		return nil, errors.New("user must be a name in UTF-8, as in a limit file")
	case len(o.Also) >= maxSecrets || slices.ContainsFunc(o.Also, func(key string) bool { return !IsHidden(key) }):
		return nil, errors.New("also must be hidden keys of the same user")
	case isPattern(o.User):
		return nil, fmt.Errorf("user %s: a pattern cannot be overridden by hand; name one user", quote(o.User))
	case runes < 1 || runes > maxReason || !utf8.ValidString(o.Reason) || strings.ContainsFunc(o.Reason, func(r rune) bool { return !unicode.IsPrint(r) }) || strings.TrimSpace(o.Reason) == "":
		return nil, fmt.Errorf("reason must be 1 to %d printable characters, got %d characters", maxReason, runes)
	case !utf8.ValidString(o.By) || len(o.By) > maxBy:
		return nil, fmt.Errorf("by must be UTF-8 text of at most %d bytes", maxBy)
	case o.Endpoint == All:
		return nil, errors.New(`limits over all endpoints together are set everywhere, with {"endpoints": {"*": {"requests": {"GET": 100}}}}`)
	case o.Endpoint != "" && !endpointForm.MatchString(o.Endpoint):
		return nil, fmt.Errorf("endpoint %s is no name of one", quote(o.Endpoint))
	case !orderly(o.Since) || !orderly(o.Until) || unixNano(o.Until) <= 0:
		return nil, errors.New("since and until must be times from 1970 to 2200")
	}
	n, err := jsonNode(o.Limits)
	if err != nil {
		return nil, fmt.Errorf("limits: %w", err)
	}
	for key := range children(n) {
		if slices.Contains(notByHand, key.Value) {
			return nil, fmt.Errorf("limits: %s is for limit files; an override by hand has an end and a reason of its own", key.Value)
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

// notByHand are the fields of a user's entry that have no meaning in an override.
var notByHand = []string{"comment", "until", "then"}

// remember keeps what an entry of users is made of, if an override may be over it.
func (f *file) remember(name string, d tierDraft, tier string, e entry) {
	if f.wanted == nil || !isPattern(name) && !f.wanted[fileKey(name)] {
		return
	}
	b := base{tierDraft: d, tier: tier}
	if e.more != nil && e.more.until != 0 {
		b.until, b.then = e.more.until, e.more.then.limits.Tier
	}
	f.bases[fileKey(name)] = b
}

// setByHand gives users who have overrides an entry each that counts before all else.
func (f *file) setByHand() {
	f.set.byHand = map[string]*entry{}
	for rest := f.overrides; len(rest) > 0; {
		n := 1
		for n < len(rest) && rest[n].User == rest[0].User {
			n++
		}
		f.setUser(rest[:n])
		rest = rest[n:]
	}
	if len(f.set.byHand) == 0 {
		f.set.byHand = nil
	}
}

// setUser gives one user the overrides: all of them, or, if one is wrong, those that are
// valid together with the ones before them.
func (f *file) setUser(overrides []Override) {
	key := fileKey(overrides[0].User)
	fromFile := (&Set{content: f.set, now: math.MinInt64}).entry(key)
	if fromFile.limits.Tier == ExemptTier {
		for _, o := range overrides {
			f.refused = append(f.refused, Refused{o, fmt.Errorf("user %s is exempt by the limit file, so nothing limits this user; an override would have no effect", quote(o.User))})
		}
		return
	}
	b := f.baseOf(key, fromFile)
	e, err := f.entryByHand(overrides, b, fromFile)
	if err != nil {
		var good []Override
		for _, o := range overrides {
			if _, err := f.entryByHand(append(slices.Clip(good), o), b, fromFile); err != nil {
				f.refused = append(f.refused, Refused{o, err})
				continue
			}
			good = append(good, o)
		}
		if overrides = good; len(good) == 0 {
			return
		}
		e, _ = f.entryByHand(good, b, fromFile)
	}
	f.set.byHand[key] = e
	for _, o := range overrides {
		for _, also := range o.Also {
			f.set.byHand[also] = e
		}
	}
	f.set.hand = append(f.set.hand, overrides...)
	for _, o := range overrides {
		f.set.untils = append(f.set.untils, unixNano(o.Until))
	}
}

// baseOf is what the file says of a user, for overrides to be over.
func (f *file) baseOf(key string, e *entry) base {
	if b, ok := f.bases[key]; ok {
		return b
	}
	if _, named := f.set.users[key]; !named && key[0] != '~' {
		if i := f.set.patterns.match(key); i >= 0 {
			if b, ok := f.bases[f.set.patternNames[i]]; ok {
				return b
			}
		}
	}
	return base{tierDraft: f.tierDrafts[e.limits.Tier], tier: e.limits.Tier}
}

// entryByHand is a user's entry with overrides: one part for each time in which the
// same of them count over the same, and at last what the file says.
func (f *file) entryByHand(overrides []Override, b base, fromFile *entry) (*entry, error) {
	var ends []int64
	for _, o := range overrides {
		ends = append(ends, unixNano(o.Until))
	}
	if b.until != 0 && b.until < slices.Max(ends) {
		ends = append(ends, b.until)
	}
	slices.Sort(ends)
	ends = slices.Compact(ends)
	next := fromFile
	for _, end := range slices.Backward(ends) {
		over := base{tierDraft: b.tierDraft, tier: b.tier}
		if b.until != 0 && b.until < end {
			over = base{tierDraft: f.tierDrafts[b.then], tier: b.then}
		}
		for _, o := range overrides {
			if unixNano(o.Until) < end {
				continue
			}
			var err error
			if over, err = f.over(f.nodes[o.id()], over); err != nil {
				return nil, err
			}
		}
		e := f.entryOf(over.tier, over.draft, over.at)
		m := &more{until: end, then: next}
		if e.more != nil {
			m.endpoints = e.more.endpoints
		}
		e.more = m
		next = &e
	}
	return next, nil
}

// over reads the limits of an override over what there is. What is wrong with them is
// no problem of the file.
func (f *file) over(n *yaml.Node, b base) (base, error) {
	file := f.problems
	f.problems = problems{}
	defer func() { f.problems = file }()
	b = f.overrideOf(n, b)
	if !f.any() {
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

func (f *file) overrideOf(n *yaml.Node, b base) base {
	where := place{kind: "limits"}
	if n.Kind == yaml.ScalarNode {
		tier := f.tierName(n, where.at("tier"))
		return base{tierDraft: f.tierDrafts[tier], tier: tier}
	}
	if t := lookup(n, "tier"); t != nil {
		tier := f.tierName(t, where.at("tier"))
		b = base{tierDraft: f.tierDrafts[tier], tier: tier}
	}
	d := b.draft
	var endpoints *yaml.Node
	for key, value := range f.entries(n, where, `{"tier": "pro", "concurrent": 10}`) {
		switch key.Value {
		case "tier":
		case "endpoints":
			endpoints = value
		default:
			if !f.limit(&d, where, key, value) {
				f.unknown(key, where, "field", handFields)
			}
		}
	}
	if n.Kind == yaml.MappingNode && len(n.Content) == 0 {
		f.errorf(n, "limits must say something, such as {\"concurrent\": 10}")
	}
	if f.any() {
		return b
	}
	return base{tierDraft: tierDraft{d, f.userEndpoints(where, n, b.tierDraft, endpoints)}, tier: b.tier}
}

var handFields = slices.DeleteFunc(slices.Clone(userFields), func(field string) bool { return slices.Contains(notByHand, field) })

// Check says what is wrong with an override whatever the limit file says, or nil.
func (o Override) Check() error {
	_, err := o.check()
	return err
}
