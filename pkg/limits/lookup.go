package limits

// ExemptTier is the Tier of users and keys that are exempt. No tier has this name.
const ExemptTier = "exempt"

// exemptEntry is what counts for exempt users and requests: no limit at all.
var exemptEntry = &Entry{Limits: &Limits{Tier: ExemptTier}}

// User returns the limits of the user with this wire key: Key of the name. The result is never nil, and
// asking does not allocate, but for a name that is nearly an IP address.
//
// Exempt users, and ExemptKey, have no limit. An override (see WithOverrides) counts before
// the file, a name in the file before patterns, and the pattern with most literal characters
// before others, or the earlier one. Other users have the anonymous tier if there is one and the
// key is "~" (no name) or an IP address; UnreadableKey has its own tier if there is one; all
// others have the default tier. Patterns match no key that begins with "~", because it is not
// the name. OthersKey, and keys that begin with it, have the limits of their line of the file.
func (s *Set) User(key string) *Limits {
	if s.content.overridden != nil {
		if e, ok := s.content.overridden[key]; ok {
			return e.at(s.now)
		}
	}
	return s.FromFile(key).at(s.now)
}

// FromFile is what the file says of the user of a wire key, whatever
// overrides there are. It is never nil.
func (s *Set) FromFile(key string) *Entry {
	if named, ok := s.content.Users[key]; ok {
		return s.content.Entries[named.Entry]
	}
	switch e := s.entryOfPattern(key); {
	case e != nil:
		return e
	case s.content.anonymous != nil && Anonymous(key):
		return s.content.anonymous
	case s.content.unreadable != nil && key == UnreadableKey:
		return s.content.unreadable
	}
	return s.content.fallback
}

// Named is where the file has the user of a wire key by name, or as exempt by name,
// rather than by a pattern alone. A pattern's own key is the place of the pattern.
func (s *Set) Named(key string) (Named, bool) {
	named, ok := s.content.Users[key]
	return named, ok
}

// Origins is what the reader of the file has noted of where it says what (see Content).
func (s *Set) Origins() any { return s.content.Origins }

// PatternOf is the pattern of users that a wire key matches, or "": none,
// or the key is no name. A user who is named exactly, or exempt, may match one too.
func (s *Set) PatternOf(key string) string {
	return s.content.patterns.patternOf(key)
}

// ExemptPatternOf is PatternOf for the patterns of users who are exempt.
func (s *Set) ExemptPatternOf(key string) string {
	return s.content.exemptPatterns.patternOf(key)
}

// entryOfPattern returns the entry of the pattern that a user's key matches, or nil.
func (s *Set) entryOfPattern(key string) *Entry {
	if key == "" {
		return nil
	}
	if key[0] == '~' {
		if key == ExemptKey {
			return exemptEntry
		}
		return s.content.others[key] // nil: it is a name's hash
	}
	// Exempt counts first, however short its pattern.
	if s.content.exemptPatterns.bestMatch(key) >= 0 {
		return exemptEntry
	}
	if i := s.content.patterns.bestMatch(key); i >= 0 {
		return s.content.patternEntries[i]
	}
	return nil
}

// NamesUser reports whether the file names the user of this wire key: by name,
// by a pattern, or as exempt.
func (s *Set) NamesUser(key string) bool {
	_, ok := s.content.Users[key]
	return ok || s.entryOfPattern(key) != nil
}
