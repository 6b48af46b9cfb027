package limitfile

import (
	"bytes"
	"cmp"
	"encoding/json"
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

// How many overrides there may be: a person must be able to look them over, and all of them
// travel with the limits.
const (
	MaxOverrides     = 1000
	MaxOverridesSize = 1 << 20 // bytes of EncodeOverrides

	maxReason = 200  // characters
	maxBy     = 1000 // bytes
)

// EncodeOverrides is what DecodeOverrides reads: JSON, sorted by user, with
// times in UTC.
func EncodeOverrides(overrides []limits.Override) []byte {
	list := append([]limits.Override{}, overrides...)
	for i := range list {
		list[i].Since, list[i].Until = list[i].Since.UTC(), list[i].Until.UTC()
	}
	slices.SortStableFunc(list, func(a, b limits.Override) int { return cmp.Compare(a.User, b.User) })
	data, err := json.Marshal(list)
	if err != nil {
		return []byte("[]") // cannot be: what was decoded, or checked, is JSON
	}
	return data
}

// DecodeOverrides reads them. WithOverrides judges their limits.
func DecodeOverrides(data []byte) ([]limits.Override, error) {
	// Before it is decoded, which takes several times as much memory.
	if len(data) > MaxOverridesSize {
		return nil, fmt.Errorf("overrides: larger than %d bytes", MaxOverridesSize)
	}
	var list []limits.Override
	d := json.NewDecoder(bytes.NewReader(data))
	// A field that this build does not know might change what the override means.
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

// CheckOverride returns the error of an override that no limit file could make valid, or nil.
func CheckOverride(o limits.Override) error {
	runes := utf8.RuneCountInString(o.Reason)
	switch {
	case o.User == "" || !utf8.ValidString(o.User):
		return errors.New("user must be a name in UTF-8, as in a limit file")
	case limits.IsPattern(o.User):
		return fmt.Errorf("user %s: a pattern cannot be overridden; name one user", quote(o.User))
	case runes < 1 || runes > maxReason || !utf8.ValidString(o.Reason) || strings.ContainsFunc(o.Reason, func(r rune) bool { return !unicode.IsPrint(r) }) || strings.TrimSpace(o.Reason) == "":
		return fmt.Errorf("reason must be 1 to %d printable characters, got %d characters", maxReason, runes)
	case !utf8.ValidString(o.By) || len(o.By) > maxBy:
		return fmt.Errorf("by must be UTF-8 text of at most %d bytes", maxBy)
	case !isWritable(o.Since) || !isWritable(o.Until) || o.Until.UnixNano() <= 0:
		return errors.New("since and until must be times from 1970 to 2200")
	}
	_, err := overrideNode(o.Limits)
	return err
}

func isWritable(t time.Time) bool { return t.IsZero() || t.Year() >= 1970 && t.Year() < 2200 }

var notInOverride = []string{"comment", "until", "then", "group"}

func overrideNode(data []byte) (*yaml.Node, error) {
	// JSON is YAML, but an override is no other YAML.
	var text bytes.Buffer
	err := json.Compact(&text, data)
	if !utf8.Valid(data) {
		err = errors.New("not UTF-8 text")
	}
	var document *yaml.Node
	if err == nil {
		document, _, err = documents(&text)
	}
	if err != nil {
		return nil, fmt.Errorf("limits: %w", err)
	}
	n := document.Content[0]
	for key := range children(n) {
		if slices.Contains(notInOverride, key.Value) {
			return nil, fmt.Errorf("limits: %s is for limit files; an override has an end and a reason of its own", key.Value)
		}
	}
	return n, nil
}

// ParsePublished is Parse of a file with the overrides that EncodeOverrides has written, nil for
// none. All of them were in force at the publisher, so one that is refused is an error. The set
// that is in force, or nil, saves parsing if it is of the same file.
func ParsePublished(name string, data, overrides []byte, inForce *limits.Set) (set *limits.Set, err error) {
	if set = inForce; set == nil || !bytes.Equal(set.Source(), data) {
		if set, err = Parse(name, data); err != nil {
			return nil, err
		}
	}
	f := problems{file: name}
	var list []limits.Override
	if len(overrides) > 0 {
		list, err = DecodeOverrides(overrides)
	}
	if err != nil {
		f.report(at{line: 1, column: 1}, "the overrides are damaged: %s", shorten(err.Error()))
		return nil, f.errors()
	}
	set, refused := WithOverrides(set, list)
	for _, r := range refused {
		f.report(at{line: 1, column: 1}, "override of user %s: %v", quote(r.User), r.Why)
	}
	if len(f.found) > 0 {
		return nil, f.errors()
	}
	return set, nil
}

// Refused is an override that cannot be in force, and why.
type Refused struct {
	limits.Override
	Why error
}

// WithOverrides returns the set in which the overrides are in force, until each ends, in
// place of any that s has, and those that are refused because they are not valid with this
// file. It has another version than s, unless none is in force. There may be MaxOverrides at
// most, of MaxOverridesSize. It takes time by their number, not by that of users.
func WithOverrides(s *limits.Set, overrides []limits.Override) (*limits.Set, []Refused) {
	before, ok := s.Origins().(*model)
	var refused []Refused
	refuse := func(o limits.Override, why error) { refused = append(refused, Refused{o, why}) }
	var list []limits.Override
	for _, o := range overrides {
		if !ok {
			refuse(o, errors.New("the limits are of no file"))
		} else if err := CheckOverride(o); err != nil {
			refuse(o, err)
		} else {
			list = append(list, o)
		}
	}
	// As agents will decode them.
	decoded, err := DecodeOverrides(EncodeOverrides(list))
	if err != nil || !ok {
		for _, o := range list {
			refuse(o, err)
		}
		return s, refused
	}
	m := *before
	m.overrides = map[string]*entry{}
	r := newResolver(&m)
	entries := map[string]*limits.Entry{}
	var inForce []limits.Override
	for _, o := range decoded {
		key := limits.Key(o.User)
		if e, err := r.override(s, key, o); err != nil {
			refuse(o, err)
		} else {
			entries[key], inForce = e, append(inForce, o)
		}
	}
	if len(inForce) > 0 {
		return s.WithOverrides(EncodeOverrides(inForce), inForce, entries, &m), refused
	}
	// The same set, so that a comparison of addresses shows no change.
	if before.overrides == nil {
		return s, refused
	}
	m.overrides = nil
	return s.WithOverrides(nil, nil, nil, &m), refused
}

// override returns a user's entry with an override: one part for each time in which the override
// lies over the same, and at last what the file says.
func (r *resolver) override(s *limits.Set, key string, o limits.Override) (*limits.Entry, error) {
	fromFile := s.FromFile(key)
	switch {
	case r.overrides[o.User] != nil:
		return nil, errors.New("the user has two overrides")
	case fromFile.Limits.Tier == limits.ExemptTier:
		return nil, fmt.Errorf("user %s is exempt by the limit file, so nothing limits this user; an override would have no effect", quote(o.User))
	}
	n, err := overrideNode(o.Limits)
	if err != nil {
		return nil, err
	}
	var own entry // of a user that the file does not name: nothing
	if text, at, _ := r.named(s, key, o.User); at != 0 {
		own = r.readText(text, at)
	}
	tier := fromFile.Limits.Tier
	ends := []int64{o.Until.UnixNano()}
	if own.Until.said() && own.Until.n < ends[0] {
		ends = []int64{own.Until.n, ends[0]}
	}
	// From the last part to the first, because an entry has the one that follows it.
	next, first := fromFile, &entry{}
	for _, end := range slices.Backward(ends) {
		under := r.tiers[tier].with(&own, limits.OfUser)
		if own.Until.said() && own.Until.n < end {
			under = r.tiers[cmp.Or(own.Then.text, tier)].layer
		}
		said, err := r.readOverride(n, &under)
		if err != nil {
			return nil, err
		}
		first = &said
		next = &limits.Entry{Limits: r.limitsOf(under.with(&said, limits.OfUser)), Until: end, Then: next}
	}
	r.overrides[o.User] = first // only now: a later part may be refused
	return next, nil
}

// readOverride reads the limits of an override over a layer. If they name a tier, it takes the
// place of the layer.
func (r *resolver) readOverride(n *yaml.Node, under *layer) (entry, error) {
	f := &file{resolver: *r}
	f.layer = OverrideLayer
	where := place{of: "limits"}
	if n.Kind == yaml.MappingNode && len(n.Content) == 0 {
		return entry{}, errors.New("limits must say something, such as {\"concurrent\": 10}")
	}
	var u userEntry
	f.decode(n, &u, where, overrideTag)
	if f.checkTier(u.Tier, where.below("tier")) != "" {
		*under = f.tierOf(u.Tier.text)
	}
	f.checkEntry(&u.entry, *under, where)
	if len(f.found) == 0 {
		return u.entry, nil
	}
	// Without their places: an override is a line of JSON.
	var all []string
	for _, e := range f.found[:min(len(f.found), 3)] {
		all = append(all, e.Message)
	}
	if more := len(f.found) + f.more - len(all); more > 0 {
		all = append(all, fmt.Sprintf("and %d more", more))
	}
	return u.entry, errors.New(strings.Join(all, "; "))
}

// readText decodes the text of an entry whose name is on a line (see textOf).
func (m *model) readText(text []byte, line int) entry {
	d := decoder{layer: EntryLayer, base: int32(line) - 1}
	var u userEntry
	// The text is of an entry without errors, which was checked when the file was read.
	if document, _, err := documents(bytes.NewReader(text)); err == nil && len(document.Content) == 1 {
		d.decode(document.Content[0], &u, place{}, userTag)
	}
	return u.entry
}

// OverrideJobs returns limits of jobs under an override that is in force in the set. A Set
// applies overrides to what its file says. This is for limits that are stored elsewhere.
func OverrideJobs(s *limits.Set, o limits.Override, j limits.Jobs) limits.Jobs {
	m, ok := s.Origins().(*model)
	if !ok || m.overrides[o.User] == nil {
		return j
	}
	e := m.overrides[o.User]
	out := *e.Jobs.over(&j, limits.OfUser)
	// An override may enforce what its tier does not, but not what the whole file does not.
	if e.Mode.said() {
		out.Mode = limits.Mode(e.Mode.n)
	}
	out.Mode = max(s.Mode(), out.Mode)
	return out
}
