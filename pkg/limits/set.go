package limits

import (
	"crypto/sha256"
	"encoding/hex"
	"iter"
	"slices"
)

// Set is the content of one limit file. It never changes and is safe for
// concurrent use.
type Set struct {
	source  []byte
	version string

	defaultTier string
	fallback    *Limits // the default tier's
	tiers       map[string]*Limits
	tierNames   []string // sorted

	users     map[string]*Limits // by Key; users without overrides share their tier's
	userNames []string           // as written in the file, sorted
}

// User returns the limits of the user with this wire key (see Key). A user whom
// the file does not name has those of the default tier. It is never nil.
func (s *Set) User(key string) *Limits {
	if l, ok := s.users[key]; ok {
		return l
	}
	return s.fallback
}

// Users yields the names of the users in the file, as it writes them, sorted.
func (s *Set) Users() iter.Seq[string] { return slices.Values(s.userNames) }

// Len is the number of users whom the file names.
func (s *Set) Len() int { return len(s.userNames) }

// DefaultTier is the tier of users whom the file does not name.
func (s *Set) DefaultTier() string { return s.defaultTier }

// Tiers returns the names of all tiers, sorted.
func (s *Set) Tiers() []string { return slices.Clone(s.tierNames) }

// Tier returns the limits of a tier, and whether there is such a tier.
func (s *Set) Tier(name string) (*Limits, bool) {
	l, ok := s.tiers[name]
	return l, ok
}

// Version names the content: the first 12 hex digits of the SHA-256 of Source.
func (s *Set) Version() string { return s.version }

// Source is the file that the Set was made from. Parse makes an equal Set of it.
// Callers must not modify it.
func (s *Set) Source() []byte { return s.source }

func version(source []byte) string {
	sum := sha256.Sum256(source)
	return hex.EncodeToString(sum[:6])
}
