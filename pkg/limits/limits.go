// Package limits reads the limit file and looks users up in it.
//
// Parse turns a file into an immutable Set, or says everything that is wrong
// with it, each error with its line, its column and what would be valid. A Set
// never changes: a reload makes another one. What a file does not name is not
// limited.
//
// The package holds no state, opens no file but in ReadFile and Load, and
// decides nothing about requests: that is the work of pkg/ratelimit,
// pkg/concurrency and pkg/bandwidth.
package limits

import (
	"cmp"
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
	MaxPerSecond  = 1_000_000_000 // requests per second
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

// Rate is one request limit: at most PerSecond requests of Class in each second,
// summed over the cluster.
type Rate struct {
	Class     string
	PerSecond int // at least 1
}

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
	Concurrent int // requests in progress over the cluster; 0 means not limited
	Bandwidth  Bandwidth

	// Wait is how long a request over Concurrent waits for room before it is
	// refused: whole milliseconds, at most MaxWait; 0 means that it is refused at
	// once. It means nothing while Concurrent is 0.
	Wait time.Duration

	// Priority orders the requests that wait for a server when all are full: the
	// lower is served first. From -MaxPriority to MaxPriority.
	Priority int

	// rates holds, sorted by class, each class that has a limit, followed each
	// time by that of All when there is one, so that Rates can return a part of
	// it. When only All is limited it is the one element.
	rates []Rate
}

// Rates returns the limits that a request of the class counts against: the
// class's own, then that of All. It is nil if there is none. It does not
// allocate; callers must not modify what it returns.
func (l *Limits) Rates(class string) []Rate {
	n := len(l.rates)
	if n == 0 {
		return nil
	}
	step := 1
	if l.rates[n-1].Class == All {
		step = 2
	}
	for i := 0; i+step <= n; i += step {
		if l.rates[i].Class == class {
			return l.rates[i : i+step : i+step]
		}
	}
	if step == 2 {
		return l.rates[n-1:]
	}
	return nil
}

// All returns every request limit, sorted by class ("*" comes first).
func (l *Limits) All() []Rate {
	all := slices.Clone(l.rates)
	slices.SortFunc(all, func(a, b Rate) int { return cmp.Compare(a.Class, b.Class) })
	return slices.Compact(all)
}

// draft is Limits while a file is read: comparable, so that users with equal
// limits can share them, and copied, so that an override starts from its tier.
// A limit of zero is none.
type draft struct {
	requests   requests
	concurrent int
	bandwidth  Bandwidth
	wait       time.Duration
	priority   int
}

// requests are the request limits of a draft, by index in classes.
type requests [len(classes)]int

// rates lays the request limits out as Limits.rates describes.
func (r requests) rates() []Rate {
	own := 0
	for _, perSecond := range r[1:] {
		if perSecond > 0 {
			own++
		}
	}
	all := r[0]
	switch {
	case own == 0 && all == 0:
		return nil
	case own == 0:
		return []Rate{{All, all}}
	case all > 0:
		own *= 2
	}
	rates := make([]Rate, 0, own)
	for i, perSecond := range r {
		if i == 0 || perSecond == 0 {
			continue
		}
		rates = append(rates, Rate{classes[i], perSecond})
		if all > 0 {
			rates = append(rates, Rate{All, all})
		}
	}
	return rates
}
