package limits

import (
	"crypto/sha256"
	"encoding/hex"
	"iter"
	"maps"
	"slices"
)

// Set is the content of one limit file, at one time.
// It never changes and is safe for concurrent use.
type Set struct {
	content *derived
	now     int64 // Unix time in ns; what expires by then has expired
}

// derived is what a Set says at any time: the Content, and what follows from it.
type derived struct {
	Content
	version, fileVersion string // with overrides, and without

	fallback   *Entry   // the default tier's
	anonymous  *Entry   // nil without an anonymous tier
	unreadable *Entry   // nil without a tier for UnreadableKey
	tierNames  []string // sorted

	unlisted map[string]bool // keys in Users that only Exempt names: their entry is exemptEntry

	patterns       matcher // of Users
	patternEntries []*Entry
	exemptPatterns matcher

	others        map[string]*Entry // by the keys that users share, see OthersKey
	patternOthers []string          // those of the patterns

	encoded    []byte            // overrides, as the reader reads them
	overrides  []Override        // sorted by user
	overridden map[string]*Entry // of their users by key; nil for none

	untils []int64 // when entries expire: Unix times in ns, sorted
}

// Name is that of the limit file, as in errors.
func (s *Set) Name() string { return s.content.Name }

// UserNames yields what the file names users by, as it writes them, sorted: names and
// patterns. Sorting takes a second for a million.
func (s *Set) UserNames() iter.Seq[string] {
	names := make([]string, 0, len(s.content.Users))
	for key := range s.content.Users {
		if s.content.unlisted[key] {
			continue
		}
		if name, ok := s.content.Names[key]; ok {
			key = name
		}
		names = append(names, key)
	}
	slices.Sort(names)
	return slices.Values(names)
}

// Patterns returns the patterns among Users, in the order of the file.
func (s *Set) Patterns() []string { return slices.Clone(s.content.Patterns) }

// UserCount is the number of users in the file, patterns included.
func (s *Set) UserCount() int { return len(s.content.Users) - len(s.content.unlisted) }

// Mode is the mode of the whole file. Each limit's own mode has it already.
func (s *Set) Mode() Mode { return s.content.Mode }

// DefaultTier is the tier of users that the file does not name.
func (s *Set) DefaultTier() string { return s.content.DefaultTier }

// AnonymousTier is the tier of Anonymous users that the file does not name, or "" if
// they have the default tier like everybody.
func (s *Set) AnonymousTier() string { return s.content.AnonymousTier }

// UnreadableTier is the tier of UnreadableKey, or "" if it has the default tier.
func (s *Set) UnreadableTier() string { return s.content.UnreadableTier }

// TierNames returns the names of all tiers, sorted.
func (s *Set) TierNames() []string { return slices.Clone(s.content.tierNames) }

// TierLimits returns the limits of a tier, and whether there is such a tier.
func (s *Set) TierLimits(name string) (*Limits, bool) {
	e, ok := s.content.Tiers[name]
	if !ok {
		return nil, false
	}
	return e.at(s.now), true
}

// GroupNames returns the names of all groups, sorted.
func (s *Set) GroupNames() []string { return slices.Sorted(maps.Keys(s.content.Groups)) }

// GroupLimits returns what the members of a group may do together, and whether there is such a group.
func (s *Set) GroupLimits(name string) (*Limits, bool) {
	e, ok := s.content.Groups[name]
	if !ok {
		return nil, false
	}
	return e.at(s.now), true
}

// Classes returns the operation classes, in the order in which they are matched.
// Callers must not modify what they hold.
func (s *Set) Classes() []Class { return slices.Clone(s.content.Classes) }

// Exempt returns who is not limited. Callers must not modify it.
func (s *Set) Exempt() Exempt { return s.content.Exempt }

// Version names the content: the first 12 hex digits of the SHA-256 of Source, or with overrides
// of the file's Version and EncodedOverrides.
func (s *Set) Version() string { return s.content.version }

// Source is the file that the Set was made from. limitfile.ParsePublished makes an equal Set of it and EncodedOverrides. Callers
// must not modify it.
func (s *Set) Source() []byte { return s.content.Source }

// EncodedOverrides are the overrides as limitfile.EncodeOverrides writes them, nil for none.
// Callers must not modify them.
func (s *Set) EncodedOverrides() []byte { return s.content.encoded }

func version(source []byte) string {
	sum := sha256.Sum256(source)
	return hex.EncodeToString(sum[:6])
}

// SecondClasses are the classes, All among them, with a limit by the second for a user at any
// time, sorted.
func (s *Set) SecondClasses() []string {
	found := map[string]bool{}
	s.eachLimits(func(l *Limits) {
		for _, r := range l.lists().Rates {
			if r.Window == Second {
				found[r.Class] = true
			}
		}
	})
	return slices.Sorted(maps.Keys(found))
}

// LimitsBandwidth is whether a user's bandwidth is limited at any time.
func (s *Set) LimitsBandwidth() bool {
	found := false
	s.eachLimits(func(l *Limits) { found = found || l.Bandwidth != (Bandwidth{}) })
	return found
}

func (s *Set) eachLimits(of func(*Limits)) {
	for _, e := range slices.Concat(s.content.Entries, []*Entry{s.content.fallback}) {
		e.eachLimits(of)
	}
	for _, entries := range []map[string]*Entry{s.content.Tiers, s.content.overridden} {
		for _, e := range entries {
			e.eachLimits(of)
		}
	}
}
