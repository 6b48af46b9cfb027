package limits

import "slices"

// ExemptTier is the Tier of users and keys that are exempt. No tier has this name.
const ExemptTier = "exempt"

// exemptEntry is what counts for exempt users and requests: no limit at all.
var exemptEntry = &Entry{Limits: exemptLimits, Together: exemptLimits}

var exemptLimits = &Limits{Tier: ExemptTier}

// User returns the limits of the user with this wire key: Key of the name, or at an
// endpoint EndpointKey of both. The result is never nil, and asking does not allocate, but for a name that is
// nearly an IP address.
//
// Exempt users, and ExemptKey, have no limit. Of others, an override (see WithOverrides)
// counts before what the file says. A name in the file counts before the patterns that
// match it, of which the one with most literal characters counts, or the earlier one. A
// user whom the file names neither way has the anonymous tier if there is one and the
// key is "~" (no name) or an IP address; UnreadableKey has its own tier if there is one;
// all others have the default tier. Patterns match no key that begins with "~", because
// it is not the name. OthersKey, and keys that begin with it, have the limits of their
// line of the file.
//
// At an endpoint that the file does not declare, users have the limits that they have
// everywhere. Of a key of Together these are the limits of Together, which are none for
// a user without them.
func (s *Set) User(key string) *Limits {
	// Nearly all keys have no endpoint, and this is asked for each request.
	if key == "" || key[0] != '@' {
		return s.limitsAt(key, awayFromEndpoints)
	}
	endpoint, user := SplitEndpoint(key)
	return s.limitsAt(user, s.indexOf(endpoint))
}

// Together returns the limits on a user's requests at all endpoints and away from them, taken
// together, and the wire key "@*/key" under which they are counted. They hold rates and costs and
// no other limit, and count beside those of User. The key is any wire key of a request. ok is false if
// there are none.
func (s *Set) Together(key string) (together string, of *Limits, ok bool) {
	if !s.content.together {
		return "", nil, false // asked for each request: most files have none
	}
	// Of any endpoint: what is taken together does not depend on where the request is.
	_, user := SplitEndpoint(key)
	of = s.limitsAt(user, allEndpoints)
	// A user whose tier has none is not counted under a second key for nothing.
	if of.Unlimited() {
		return "", nil, false
	}
	return EndpointKey(All, user), of, true
}

// limitsAt returns the limits of a user's own key, at an endpoint as entry.at takes it.
func (s *Set) limitsAt(key string, endpoint int) *Limits {
	if s.content.overridden != nil { // an operator knows more of a user than the file, also than its exact entry
		if e, ok := s.content.overridden[key]; ok {
			return e.limitsAt(s.now, endpoint)
		}
	}
	return s.entryOf(key).limitsAt(s.now, endpoint)
}

// Undeclared returns the endpoint of a wire key if the file does not declare it, and
// the key under which such a request counts: the user's own, as everywhere. Nobody can
// have limits of their own there, and a user who was counted apart at every name that
// somebody makes up would have their limits many times. ok is false for every other key,
// those of Together included.
func (s *Set) Undeclared(key string) (endpoint, counted string, ok bool) {
	endpoint, counted = SplitEndpoint(key)
	// The key of Together has no endpoint that a file could declare.
	if endpoint == "" || endpoint == All || slices.Contains(s.content.Endpoints, endpoint) {
		return "", key, false
	}
	return endpoint, counted, true
}

// entryOf is what the file says of the user of a key, which has no endpoint.
func (s *Set) entryOf(key string) *Entry {
	// The exact name first: it is the one line that somebody wrote for this user.
	if named, ok := s.content.Users[key]; ok {
		return s.content.Entries[named.Entry]
	}
	return s.entryOfUnnamed(key)
}

// indexOf is an endpoint as entry.at takes it. One that the file does not declare is
// everywhere.
func (s *Set) indexOf(endpoint string) int {
	switch endpoint {
	case "":
		return awayFromEndpoints // nearly all keys
	case All:
		return allEndpoints
	}
	// A file declares few, and an index finds the limits of an entry without a map in each.
	if i, ok := slices.BinarySearch(s.content.Endpoints, endpoint); ok {
		return i
	}
	return awayFromEndpoints
}

// FromFile is what the file says of the user of a wire key without endpoint, whatever
// overrides there are. It is never nil.
func (s *Set) FromFile(key string) *Entry { return s.entryOf(key) }

// Named is where the file has the user of a wire key without endpoint by name, or as exempt by name,
// rather than by a pattern alone. Of a pattern's own key it is where the pattern is.
func (s *Set) Named(key string) (Named, bool) {
	named, ok := s.content.Users[key]
	return named, ok
}

// Origins is what the reader of the file has noted of where it says what (see Content).
func (s *Set) Origins() any { return s.content.Origins }

// PatternOf is the pattern of users that a wire key without endpoint matches, or "": none,
// or the key is no name. A user who is named exactly, or exempt, may match one too.
func (s *Set) PatternOf(key string) string {
	return patternOf(key, s.content.Patterns, &s.content.patterns)
}

// ExemptPatternOf is PatternOf for the patterns of users who are exempt.
func (s *Set) ExemptPatternOf(key string) string {
	return patternOf(key, s.content.exemptPatternNames, &s.content.exemptPatterns)
}

func patternOf(key string, patterns []string, of *matcher) string {
	// A hash tells nothing of the name, and matches no pattern.
	if key == "" || key[0] == '~' {
		return ""
	}
	if i := of.bestMatch(key); i >= 0 {
		return patterns[i]
	}
	return ""
}

// entryOfUnnamed returns the entry of a user whom the file does not name exactly.
func (s *Set) entryOfUnnamed(key string) *Entry {
	if e := s.entryOfPattern(key); e != nil {
		return e // a pattern is about fewer users than what follows
	}
	// Asked last of all, because to tell an address takes longer than all else here.
	if s.content.anonymous != nil && Anonymous(key) {
		return s.content.anonymous
	}
	if s.content.unreadable != nil && key == UnreadableKey {
		return s.content.unreadable
	}
	return s.content.fallback
}

// entryOfPattern returns the entry of the pattern that a user's key matches, or nil.
func (s *Set) entryOfPattern(key string) *Entry {
	if key == "" {
		return nil
	}
	if key[0] == '~' {
		// HAProxy makes it of addresses and paths; no name becomes it.
		if key == ExemptKey {
			return exemptEntry
		}
		return s.content.others[key] // nil: it is a name's hash
	}
	// Exempt counts first, however short its pattern: whoever has to get through must not be limited by an
	// entry that somebody wrote for other users.
	if s.content.exemptPatterns.bestMatch(key) >= 0 {
		return exemptEntry
	}
	// By index, because two patterns may stand for the same entry.
	if i := s.content.patterns.bestMatch(key); i >= 0 {
		return s.content.patternEntries[i]
	}
	return nil
}

// NamesUser reports whether the file names the user of this wire key, at any endpoint:
// by name, by a pattern, or as exempt.
func (s *Set) NamesUser(key string) bool {
	_, key = SplitEndpoint(key)
	if _, ok := s.content.Users[key]; ok {
		return true
	}
	return s.entryOfPattern(key) != nil
}
