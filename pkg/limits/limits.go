// Package limits holds what each user may do: a Set says it of all of them, and looks up the
// Limits of one by wire key.
//
// A Set never changes: a reload of the limit file makes another one. Users that it does not name
// have the default tier. Package limitfile, below this one, reads limit files into Sets. Nothing is read here, so that pkg/ratelimit,
// pkg/concurrency, pkg/bandwidth and pkg/credit, which decide about requests, depend on the
// standard library alone.
package limits

import (
	"slices"
	"time"
)

// All is the pseudo-class "*": every request counts against its limit, whatever
// the request's own class.
const All = "*"

// The largest limits that a file may ask for. They are far above what one
// cluster serves, and leave room to add up without overflow: the sum of any two
// counts fits 31 bits, and a thousand times any bandwidth fits 63.
const (
	MaxPerSecond  = 1_000_000_000 // requests per window
	MaxBurst      = 1_000_000_000 // requests beyond a second's
	MaxConcurrent = 1_000_000_000 // requests in progress
	MaxBandwidth  = 1 << 40       // bytes per second: 1 TiB
)

// MaxWait is the longest that a request may wait for room; the shortest is a
// millisecond. HAProxy must wait longer than that for the agent's answer, or it
// lets the request through: its SLUICE_WAIT_TIMEOUT is 31 s as shipped.
const MaxWait = 30 * time.Second

// MaxPriority bounds a priority on both sides of 0: it is the range of HAProxy's
// set-priority-class, which would cut what is beyond (configuration.txt, "http-request
// set-priority-class").
const MaxPriority = 2047

// classes are the classes that a file may limit, sorted. OTHER is every method
// without a class of its own.
var classes = [...]string{All, "DELETE", "GET", "HEAD", "OPTIONS", "OTHER", "PATCH", "POST", "PUT"}

// Bandwidth limits a user's bytes per second, summed over the cluster. Zero
// means not limited.
type Bandwidth struct {
	Down int64 // response bodies, from the cluster to the user
	Up   int64 // request bodies, from the user to the cluster

	// DefaultShare is what one instance of several gives the user, in each limited
	// direction, before the cluster has divided the limit. It is at most each of the
	// limits that are set. 0 means an even part.
	DefaultShare int64
}

// Limits are the limits of one user, or of a tier. The zero Limits limits
// nothing. Limits that come from a Set are shared between users and goroutines
// and must not be modified.
type Limits struct {
	Tier       string
	Group      string // whose limits hold for its members together, besides their own; "" for none
	Concurrent int    // requests in progress over the cluster; 0 means not limited
	Bandwidth  Bandwidth

	ConcurrentMode Mode // Enforce or DryRun

	// Wait is how long a request over Concurrent waits for room before it is
	// refused: whole milliseconds, at most MaxWait; 0 means that it is refused at
	// once. It means nothing while Concurrent is 0.
	Wait time.Duration

	// Priority orders the requests that wait for a server when all are full: the
	// lower is served first. From -MaxPriority to MaxPriority.
	Priority int

	// Lists and BackgroundJobs are shared between users with equal ones.
	Lists          *Lists // nil means no limits of requests and costs
	BackgroundJobs *Jobs  // nil means not limited; see Jobs
}

// Lists are limits by class and by unit, and other lists.
type Lists struct {
	Rates []Rate   // sorted by class and window
	Costs []Cost   // sorted by unit and window
	Off   []string // the fields whose mode is off, sorted

	Except []string // the classes whose requests do not count as in progress, sorted
}

func (l *Limits) lists() Lists {
	if l.Lists == nil {
		return Lists{}
	}
	return *l.Lists
}

// CountsInProgress reports whether requests of a verb and an operation class, "" if there is none,
// count against Concurrent.
func (l *Limits) CountsInProgress(verb, op string) bool {
	return l.Concurrent > 0 && !slices.ContainsFunc(l.lists().Except, func(class string) bool { return class == verb || class == op })
}

// Except are the classes whose requests do not count against Concurrent, sorted.
func (l *Limits) Except() []string { return slices.Clone(l.lists().Except) }

// OffFields returns the limits that the file states and whose mode is off, so that they
// do not exist: the names of their fields, such as "requests.GET/minute",
// "concurrent" or "bandwidth.down", sorted. It is nil if there are none, and for
// people only: everything else in Limits is as if they were not written.
func (l *Limits) OffFields() []string { return slices.Clone(l.lists().Off) }

// BuiltinClasses returns the classes that a request can have without further
// configuration, sorted. All is not among them: it is no request's own class.
func BuiltinClasses() []string { return slices.Clone(classes[1:]) }

// IsBuiltinClass reports whether a class is All or one of BuiltinClasses.
func IsBuiltinClass(name string) bool { return slices.Contains(classes[:], name) }

// MaxPatterns bounds the patterns of a file, those of exempt users included.
const MaxPatterns = 10_000
