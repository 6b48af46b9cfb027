package credit

import "github.com/sluice-qos/sluice/pkg/limits"

const (
	// nobody is a key that no user has: their limits are the default tier's.
	nobody = "\x00"
	// maxNamed bounds the users with limits of their own whom HAProxy is told of: its table
	// has room for more.
	maxNamed = 150_000
)

// ByDefault is the credit that each user of the default tier has whom nobody has asked about.
// ok is false if they have none.
//
// HAProxy tells these users from all others by their key alone, so it must know the key of
// everybody who has other limits: there may not be too many, nor patterns that match any
// number of keys. What it is told is the same for all of them: of requests in progress they have DefaultPlaces, and of a limited
// bandwidth the share that the instance always has, if shares says that HAProxy's configuration
// can keep one by default.
func ByDefault(set *limits.Set, classes string, shares bool, instances int) (g Grant, ok bool) {
	if _, named, exact := set.ExactKeys(); !exact || named > maxNamed {
		return Grant{}, false
	}
	if _, _, together := set.Together(nobody); together { // no HAProxy counts over all endpoints
		return Grant{}, false
	}
	of := DefaultLimits(set)
	if !Possible(of, instances) || (of.Bandwidth.Down > 0 || of.Bandwidth.Up > 0) && !shares {
		return Grant{}, false
	}
	g, ok = GrantOf(of, classes, instances)
	if ok && of.Concurrent > 0 {
		n := DefaultPlaces(of.Concurrent, instances)
		if n == 0 {
			return Grant{}, false
		}
		g.Places = uint32(n)
	}
	return g, ok
}

// DefaultLimits are the limits of the users whom the credit ByDefault is for.
func DefaultLimits(set *limits.Set) *limits.Limits { return set.User(nobody) }

// HasDefault reports whether the credit ByDefault is for the user of a key. At an endpoint users
// may have other limits, and so may those whom HAProxy knows by their address.
func HasDefault(set *limits.Set, key string) bool {
	if !DefaultKey(key) || !set.MadeUp(key) {
		return false
	}
	return set.AnonymousTier() == "" || !limits.Anonymous(key)
}

// DefaultKey reports whether a wire key is of one user, away from endpoints, whom HAProxy knows by it:
// their name. HAProxy gives others none by default.
func DefaultKey(key string) bool {
	return key != "" && key[0] != '@' && key[0] != '~'
}
