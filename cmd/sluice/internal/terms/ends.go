package terms

import (
	"sort"
	"time"

	"github.com/sluice-qos/sluice/internal/terminal"
	"github.com/sluice-qos/sluice/pkg/limits"
)

// Ends finds out when what a limit file says of a user ends (until), and what the user
// has from then on.
type Ends struct {
	before, after *limits.Set // before anything has ended, and after everything has
	times         []time.Time // at which something ends, sorted
}

// End is when an entry ends. The zero end is never.
type End struct {
	At   time.Time
	Tier string // the user's from then on
}

// NewEnds takes a set in which nothing has ended, as limitfile.Load makes it.
func NewEnds(set *limits.Set) *Ends {
	e := &Ends{before: set, after: set}
	for t := set.Expires(); !t.IsZero(); t = e.after.Expires() {
		e.times = append(e.times, t)
		e.after = set.At(t)
	}
	return e
}

// AnyEnds reports whether anything ends, or has ended.
func (e *Ends) AnyEnds() bool { return len(e.times) > 0 }

// EndOf returns when the entry of a key ends, past or future. An entry that ends but
// changes nothing has no end.
func (e *Ends) EndOf(key string) End {
	if len(e.times) == 0 || e.sameLimits(key, e.after) {
		return End{}
	}
	i := sort.Search(len(e.times), func(i int) bool { return !e.sameLimits(key, e.before.At(e.times[i])) })
	return End{e.times[i], e.after.User(key).Tier}
}

// sameLimits is whether the user has the limits of before in a set. Equal limits are
// shared, so that their address tells.
func (e *Ends) sameLimits(key string, set *limits.Set) bool {
	return e.before.User(key) == set.User(key)
}

// String says when it ends and what follows.
func (e End) String() string {
	if e.At.IsZero() {
		return "never"
	}
	return e.At.Format(time.RFC3339Nano) + ", then like everybody in tier " + terminal.QuoteName(e.Tier)
}
