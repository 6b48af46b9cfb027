package limits

import (
	"crypto/sha256"
	"encoding/hex"
	"iter"
	"math"
	"slices"
	"time"
)

// Set is the content of one limit file, with those of its users_from, at one time.
// It never changes and is safe for concurrent use.
type Set struct {
	content *derived
	now     int64 // Unix time in ns; what expires by then has expired
}

// derived is what a Set says at any time: the Content, and what follows from it.
type derived struct {
	Content
	version string

	fallback   *Entry   // the default tier's
	anonymous  *Entry   // nil without an anonymous tier
	unreadable *Entry   // nil without a tier for UnreadableKey
	tierNames  []string // sorted
	together   bool     // whether anybody has limits over all endpoints together

	unlisted map[string]bool // keys in Users whom only Exempt names: their entry is exemptEntry

	patterns       matcher // of Users
	patternEntries []*Entry
	exemptPatterns matcher

	exemptPatternNames []string // in the order of the file

	others        map[string]*Entry // by the keys that users share, see OthersKey
	patternOthers []string          // those of the patterns

	overrides  []Override        // sorted by user and endpoint
	overridden map[string]*Entry // of their users by key; nil for none

	untils []int64 // when entries expire: Unix times in ns, sorted
}

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
	endpoint := awayFromEndpoints
	if key != "" && key[0] == '@' {
		endpoint, key = s.splitKey(key)
	}
	return s.limitsAt(key, endpoint)
}

// Together returns the limits on a user's requests at all endpoints and away from them, taken
// together, and the wire key "@*/key" under which they are counted. They hold rates and no other
// limit, and count beside those of User. The key is any wire key of a request. ok is false if
// there are none.
func (s *Set) Together(key string) (together string, of *Limits, ok bool) {
	if !s.content.together {
		return "", nil, false // asked for each request: most files have none
	}
	_, user := SplitEndpoint(key)
	of = s.limitsAt(user, allEndpoints)
	if len(of.rates) == 0 {
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
	if endpoint == "" || endpoint == All || slices.Contains(s.content.Endpoints, endpoint) {
		return "", key, false
	}
	return endpoint, counted, true
}

// entryOf is what the file says of the user of a key, which has no endpoint.
func (s *Set) entryOf(key string) *Entry {
	if named, ok := s.content.Users[key]; ok {
		return s.content.Entries[named.Entry]
	}
	return s.entryOfUnnamed(key)
}

// splitKey takes a key at an endpoint apart.
func (s *Set) splitKey(key string) (endpoint int, user string) {
	name, user := SplitEndpoint(key)
	return s.indexOf(name), user
}

// indexOf is an endpoint as entry.at takes it. One that the file does not declare is
// everywhere.
func (s *Set) indexOf(endpoint string) int {
	if endpoint == All {
		return allEndpoints
	}
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
	if key == "" || key[0] == '~' {
		return ""
	}
	if i := s.content.patterns.bestMatch(key); i >= 0 {
		return s.content.Patterns[i]
	}
	return ""
}

// ExemptPatternOf is PatternOf for the patterns of users who are exempt.
func (s *Set) ExemptPatternOf(key string) string {
	if key == "" || key[0] == '~' {
		return ""
	}
	if i := s.content.exemptPatterns.bestMatch(key); i >= 0 {
		return s.content.exemptPatternNames[i]
	}
	return ""
}

// Name is that of the limit file, as in errors.
func (s *Set) Name() string { return s.content.Name }

// Time is when the set is as it is (see At): before 1970 for the set of all times.
func (s *Set) Time() time.Time { return time.Unix(0, s.now) }

// entryOfUnnamed returns the entry of a user whom the file does not name exactly.
func (s *Set) entryOfUnnamed(key string) *Entry {
	if e := s.entryOfPattern(key); e != nil {
		return e // a pattern is about fewer users than what follows
	}
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

// At returns the set as it is at a time: s itself, or one of the same content and
// version in which other entries have expired.
func (s *Set) At(t time.Time) *Set {
	// The same set, not an equal one: callers tell a change by its address.
	now := unixNano(t)
	if s.expiredEntries(now) == s.expiredEntries(s.now) {
		return s
	}
	return &Set{content: s.content, now: now}
}

// unixNano is the Unix time in ns, the least or greatest one for times that have none:
// before 1970, which is before anything expires, and after 2262.
func unixNano(t time.Time) int64 {
	switch s := t.Unix(); {
	case s < 0:
		return math.MinInt64
	case s > math.MaxInt64/int64(time.Second)-1:
		return math.MaxInt64
	}
	return t.UnixNano()
}

// Expires returns when the next entry expires, after which At returns another
// set, or the zero time if none does.
func (s *Set) Expires() time.Time {
	if n := s.expiredEntries(s.now); n < len(s.content.untils) {
		return time.Unix(0, s.content.untils[n]).UTC()
	}
	return time.Time{}
}

// expiredEntries counts the entries that have expired at a time.
func (s *Set) expiredEntries(now int64) int {
	// What ends at now has ended, so now+1 is looked for, and this one has none.
	if now == math.MaxInt64 {
		return len(s.content.untils)
	}
	n, _ := slices.BinarySearch(s.content.untils, now+1)
	return n
}

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

// ExactKeys yields the keys of all whom the file or an override names, those who are
// only exempt included, in no order, of which there are n at most. ok is false if there are
// patterns as well: then other users have limits of their own, too.
func (s *Set) ExactKeys() (keys iter.Seq[string], n int, ok bool) {
	if len(s.content.patternEntries) > 0 || !s.content.exemptPatterns.isEmpty() {
		return nil, 0, false
	}
	return func(yield func(string) bool) {
		for key := range s.content.Users {
			if !yield(key) {
				return
			}
		}
		for key := range s.content.overridden {
			if _, there := s.content.Users[key]; !there && !yield(key) {
				return
			}
		}
	}, len(s.content.Users) + len(s.content.overridden), true
}

// Patterns returns the patterns among Users, in the order of the file.
func (s *Set) Patterns() []string { return slices.Clone(s.content.Patterns) }

// UserCount is the number of users whom the file names, patterns included.
func (s *Set) UserCount() int { return len(s.content.Users) - len(s.content.unlisted) }

// Mode is the mode of the whole file. Each limit's own mode has it already.
func (s *Set) Mode() Mode { return s.content.Mode }

// DefaultTier is the tier of users whom the file does not name.
func (s *Set) DefaultTier() string { return s.content.DefaultTier }

// AnonymousTier is the tier of Anonymous users whom the file does not name, or "" if
// they have the default tier like everybody.
func (s *Set) AnonymousTier() string { return s.content.AnonymousTier }

// UnreadableTier is the tier of UnreadableKey, or "" if it has the default tier.
func (s *Set) UnreadableTier() string { return s.content.UnreadableTier }

// TierNames returns the names of all tiers, sorted.
func (s *Set) TierNames() []string { return slices.Clone(s.content.tierNames) }

// TierLimits returns the limits of a tier, and whether there is such a tier.
func (s *Set) TierLimits(name string) (*Limits, bool) { return s.TierAt("", name) }

// TierAt returns the limits of a tier at an endpoint, and whether there is such a
// tier. At an endpoint that the file does not declare they are the tier's; at All they
// are those over all endpoints together (see Together).
func (s *Set) TierAt(endpoint, name string) (*Limits, bool) {
	e, ok := s.content.Tiers[name]
	if !ok {
		return nil, false
	}
	return e.limitsAt(s.now, s.indexOf(endpoint)), true
}

// Endpoints returns the names of the endpoints that the file declares, sorted.
func (s *Set) Endpoints() []string { return slices.Clone(s.content.Endpoints) }

// Classes returns the operation classes, in the order in which they are matched.
// Callers must not modify what they hold.
func (s *Set) Classes() []Class { return slices.Clone(s.content.Classes) }

// Exempt returns who is not limited. Callers must not modify it.
func (s *Set) Exempt() Exempt { return s.content.Exempt }

// Version names the content: the first 12 hex digits of the SHA-256 of Source.
func (s *Set) Version() string { return s.content.version }

// Source is what the Set was made from: the file, or a bundle of it and those of its
// users_from and the overrides. limitfile.Parse makes an equal Set of it. Callers
// must not modify it.
func (s *Set) Source() []byte { return s.content.Source }

func version(source []byte) string {
	sum := sha256.Sum256(source)
	return hex.EncodeToString(sum[:6])
}
