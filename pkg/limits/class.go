package limits

import "strconv"

// What HAProxy has room for in a rule: its lines have 64 words, and an expression of PCRE2 has 64 KiB.
const (
	MaxConditions = 8    // of a match, as Match.Conditions counts them
	MaxMatchText  = 3000 // bytes of a path or of all keys of NoQuery, with one between two of them
)

// A Class is an operation class of the file: requests that are alike in what they
// ask for, such as the listings of an S3 service. The first class of the file that
// a request matches is the request's.
type Class struct {
	Name string  // 1 to 32 of A-Z, 0-9 and _, the first a letter; no verb and not OTHER
	Any  []Match // the request matches one of these, at least
}

// A Match is what a request of a class looks like: everything that is given
// holds. The zero Match holds of every request.
type Match struct {
	Methods    []string      // one of these, in capitals
	Hosts      []string      // the host that is asked for is one of these: a name in small letters, or *.example.com for all below one
	NoHosts    []string      // it is none of these
	Frontends  []string      // HAProxy's name of the frontend that the request came in by is one of these
	PathPrefix string        // of the path without the query, decoded and without empty and "." segments
	PathRegex  string        // RE2 that this path matches somewhere; "" for any
	RawPath    bool          // the path is compared as the client wrote it: keys of S3 may have empty segments
	Query      []string      // keys of the query that are all present, with or without a value
	NoQuery    []string      // keys of the query that are all absent
	Headers    []HeaderMatch // all of these
}

// Conditions is how many conditions the match has: each key of the query and each header is one, and so is every other field that
// is set.
func (m Match) Conditions() int {
	n := len(m.Query) + len(m.Headers)
	for _, there := range []bool{len(m.Methods) > 0, m.PathPrefix != "", m.PathRegex != "", len(m.NoQuery) > 0, len(m.Hosts) > 0, len(m.NoHosts) > 0, len(m.Frontends) > 0} {
		if there {
			n++
		}
	}
	return n
}

// A HeaderMatch is a header that is present, and has the value if one is given.
type HeaderMatch struct{ Name, Value string }

// Exempt is who is not limited, though still measured.
type Exempt struct {
	Users     []string // names and patterns, as in the file
	Addresses []string // of clients: addresses and networks in CIDR form
	Paths     []string // paths, or prefixes of paths that end with *
}

// ExemptKey is the wire key of requests that are exempt by address or path. No
// user's name is it: HAProxy hashes names that begin with "~".
const ExemptKey = "~exempt"

// UnreadableKey is the wire key of requests whose credentials HAProxy cannot read, or
// which have more than one. No user's name is it, as with ExemptKey.
const UnreadableKey = "~unreadable"

// AddressLimits bound what comes from one address of clients, whatever users the
// requests name. Each HAProxy enforces them by itself, from its configuration: they hold
// at each HAProxy, not over the cluster. The zero AddressLimits limit nothing.
type AddressLimits struct {
	Requests   int // in each second; 0 means unlimited
	Concurrent int // requests in progress; 0 means unlimited

	// FailedAuth is how many answers 401 or 403 of the origin an address may cause in
	// a FailedAuthWindow before it is refused; 0 means unlimited.
	FailedAuth       int
	FailedAuthWindow Window
}

// FailedAuthString is the limit of failed authentication as the limit file has it,
// such as "30/min", or "" without one.
func (a AddressLimits) FailedAuthString() string {
	if a.FailedAuth == 0 {
		return ""
	}
	return strconv.Itoa(a.FailedAuth) + "/" + a.FailedAuthWindow.Unit()
}

// AddressLimits returns the limits of each address that HAProxy has to enforce: none
// unless the mode of the file is Enforce, because HAProxy has no dry run of them.
func (s *Set) AddressLimits() AddressLimits {
	if s.content.Mode != Enforce {
		return AddressLimits{}
	}
	return s.content.AddressLimits
}
