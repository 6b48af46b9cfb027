package limits

import (
	"iter"
	"maps"
	"math"
	"slices"
)

// Content is what a limit file says. A reader of limit files
// (pkg/limits/limitfile) has checked it; New does not.
type Content struct {
	Name   string // of the limit file, as in errors
	Source []byte // what the reader can make an equal Set of

	Mode           Mode
	DefaultTier    string // one of Tiers
	AnonymousTier  string // one of Tiers, or ""
	UnreadableTier string // one of Tiers, or ""
	Tiers          map[string]*Entry
	Groups         map[string]*Entry // what the members of each group may do together

	Classes       []Class // in the order in which they are matched
	Exempt        Exempt
	AddressLimits AddressLimits
	Queues        []Queue     // sorted by service
	Dedicated     []Dedicated // users first, and sorted
	CostUnits     []CostUnit  // sorted by name

	Entries  []*Entry          // what is said of users; the same may be there more than once
	Users    map[string]Named  // by Key of the name or pattern
	Names    map[string]string // by key: the names and patterns whose key is not the name
	Patterns []string          // those of Users, in the order of the file

	Origins any // what the reader notes of where the file says what; the Set only keeps it
}

// NewSet makes the Set of a Content, which it keeps: callers must not use its slices and maps
// any more. The Set is that of all times: nothing in it has expired (see Set.At).
func NewSet(content Content) *Set {
	v := version(content.Source)
	s := &derived{Content: content, version: v, fileVersion: v}
	if s.fallback = s.Tiers[s.DefaultTier]; s.fallback == nil {
		s.fallback = &Entry{Limits: &Limits{Tier: s.DefaultTier}}
	}
	if s.Users == nil {
		s.Users = map[string]Named{}
	}
	s.tierNames = slices.Sorted(maps.Keys(s.Tiers))
	s.anonymous, s.unreadable = s.Tiers[s.AnonymousTier], s.Tiers[s.UnreadableTier]
	s.patterns = newMatcher(s.Patterns)
	for _, pattern := range s.Patterns {
		s.patternEntries = append(s.patternEntries, s.Entries[s.Users[Key(pattern)].Entry])
	}
	s.shareOthersKeys()
	s.exemptUsers()
	s.addEnds(slices.Values(s.Entries))
	return &Set{content: s, now: math.MinInt64}
}

// exemptUsers removes the limits of exempt users, whatever else the file says of
// them. Users that only exempt names are unlisted.
func (s *derived) exemptUsers() {
	if len(s.Exempt.Users) == 0 {
		return
	}
	s.unlisted = map[string]bool{}
	exempt := uint32(len(s.Entries))
	s.Entries = append(s.Entries, exemptEntry)
	var patterns []string
	for _, name := range s.Exempt.Users {
		if IsPattern(name) {
			patterns = append(patterns, name)
			continue
		}
		key := Key(name)
		named, ok := s.Users[key]
		if !ok {
			s.unlisted[key] = true
		}
		s.Users[key] = Named{exempt, named.Line}
	}
	s.exemptPatterns = newMatcher(patterns)
	counts := make([]bool, len(s.Entries))
	for key, named := range s.Users {
		if key[0] != '~' && !IsPattern(key) && s.exemptPatterns.bestMatch(key) >= 0 {
			named.Entry = exempt
			s.Users[key] = named
		}
		counts[named.Entry] = true
	}
	// The ends and limits of entries of exempt users alone do not count.
	for i := range s.Entries {
		if !counts[i] {
			s.Entries[i] = nil
		}
	}
}

// WithOverrides returns the Set in which overrides are in force, in place of any that s has: the
// entries, by key of their users, count before what the file says. A reader of limit files
// has made them, with origins and with encoded, which limitfile.DecodeOverrides reads.
func (s *Set) WithOverrides(encoded []byte, overrides []Override, entries map[string]*Entry, origins any) *Set {
	content := *s.content
	content.Origins, content.encoded, content.overrides, content.overridden = origins, encoded, overrides, entries
	content.version = content.fileVersion
	if len(overrides) > 0 {
		content.version = version(slices.Concat([]byte(content.fileVersion), encoded))
	}
	content.addEnds(maps.Values(entries))
	return &Set{content: &content, now: s.now}
}

// addEnds adds the times at which entries end. An end too many does no harm.
func (s *derived) addEnds(entries iter.Seq[*Entry]) {
	until := map[int64]bool{}
	for _, end := range s.untils {
		until[end] = true
	}
	for e := range entries {
		e.eachEnd(func(end int64) { until[end] = true })
	}
	s.untils = slices.Sorted(maps.Keys(until))
}
