package limits

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// OthersKey is the wire key that users beyond an agent's quota share, if the file does not name
// them. They are limited together, as one user of the default tier. Users with the anonymous
// tier, and users of each pattern, share a key that begins with it, and the limits of that
// line of the file: a flood of one kind of names does not use up the limits of another. No
// user's name is one of these: Key hashes names that begin with "~".
const OthersKey = "~others"

// anonymousOthers cannot be a pattern's key, for patterns have a * in them.
const anonymousOthers = OthersKey + ":anonymous"

// maxOthersPattern is the longest pattern, in bytes, that is in its key as it is.
const maxOthersPattern = 60

func othersOf(pattern string) string {
	// A key must fit HAProxy's tables, with a class in front of it.
	if len(pattern) > maxOthersPattern {
		sum := sha256.Sum256([]byte(pattern))
		pattern = All + hex.EncodeToString(sum[:16]) // a pattern, as the key of no other kind is
	}
	return OthersKey + ":" + pattern
}

// shareOthersKeys makes the keys of users beyond a quota, and what they mean.
func (s *derived) shareOthersKeys() {
	s.others = map[string]*Entry{OthersKey: s.fallback}
	if s.anonymous != nil {
		s.others[anonymousOthers] = s.anonymous
	}
	for i, pattern := range s.Patterns {
		key := othersOf(pattern)
		s.patternOthers = append(s.patternOthers, key)
		s.others[key] = s.patternEntries[i]
	}
}

// MadeUp reports whether the user of a wire key may be one of any number: neither the
// file nor an override has the exact name, and the user is not exempt. A name
// that only a pattern matches may be made up too. Keys that stand for many requests,
// such as "~" and OthersKey, are not.
func (s *Set) MadeUp(key string) bool {
	if key == "" || key == "~" || key[0] == '~' && key[1] >= 'a' { // hashes are in capitals
		return false
	}
	if _, ok := s.content.overridden[key]; ok {
		return false
	}
	if _, ok := s.content.Users[key]; ok {
		return false
	}
	return key[0] == '~' || s.content.exemptPatterns.bestMatch(key) < 0
}

// Others returns the wire key that the user of a MadeUp key shares with others.
func (s *Set) Others(key string) string {
	if key != "" && key[0] != '~' {
		if i := s.content.patterns.bestMatch(key); i >= 0 {
			return s.content.patternOthers[i]
		}
		if s.content.anonymous != nil && Anonymous(key) {
			return anonymousOthers
		}
	}
	return OthersKey
}

// IsOthers reports whether a wire key is one that users share.
func IsOthers(key string) bool { return strings.HasPrefix(key, OthersKey) }

// Longest is the longest window of the limits of requests and costs; Second if there is none.
func (l *Limits) Longest() (w Window) {
	for _, r := range l.lists().Rates {
		w = max(w, r.Window)
	}
	for _, c := range l.lists().Costs {
		w = max(w, c.Window)
	}
	return w
}

// Unlimited reports whether the limits limit no request: those of background jobs are
// not requests'.
func (l *Limits) Unlimited() bool {
	return len(l.lists().Rates) == 0 && !l.LimitsCosts() && l.Concurrent == 0 && l.Bandwidth.Down == 0 && l.Bandwidth.Up == 0
}
