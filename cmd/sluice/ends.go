package main

import (
	"slices"
	"sort"
	"time"

	"github.com/sluice-qos/sluice/pkg/limits"
)

// ends finds out when what a limit file says of a user ends (until), and what the user
// has from then on.
type ends struct {
	before, after *limits.Set // before anything has ended, and after everything has
	times         []time.Time // at which something ends, sorted
	endpoints     []string    // "" for everywhere else, all of the file, and limits.All for all of them together
}

// end is when an entry ends. The zero end is never.
type end struct {
	at   time.Time
	tier string // the user's from then on
}

// newEnds takes a set in which nothing has ended, as limits.Load makes it.
func newEnds(set *limits.Set) *ends {
	e := &ends{before: set, after: set, endpoints: slices.Concat([]string{""}, set.Endpoints(), []string{limits.All})}
	for t := set.Expires(); !t.IsZero(); t = e.after.Expires() {
		e.times = append(e.times, t)
		e.after = set.At(t)
	}
	return e
}

// of returns when the entry of a key ends, past or future. An entry that ends but
// changes nothing has no end.
func (e *ends) of(key string) end {
	if len(e.times) == 0 || e.same(key, e.after) {
		return end{}
	}
	i := sort.Search(len(e.times), func(i int) bool { return !e.same(key, e.before.At(e.times[i])) })
	return end{e.times[i], e.after.User(key).Tier}
}

// same is whether the user has the limits of before in a set. Equal limits are
// shared, so that their address tells.
func (e *ends) same(key string, set *limits.Set) bool {
	for _, endpoint := range e.endpoints {
		at := limits.EndpointKey(endpoint, key)
		if e.before.User(at) != set.User(at) {
			return false
		}
	}
	return true
}

// String says when it ends and what follows.
func (e end) String() string {
	if e.at.IsZero() {
		return "never"
	}
	return e.at.Format(time.RFC3339Nano) + ", then like everybody in tier " + shown(e.tier)
}

// ending is a user whose entry ends.
type ending struct {
	user string
	end
}

// keep adds an ending to those that are sorted by time, and keeps the first ones.
func keep(sorted []ending, e ending, most int) []ending {
	i := sort.Search(len(sorted), func(i int) bool { return e.at.Before(sorted[i].at) })
	sorted = slices.Insert(sorted, i, e)
	return sorted[:min(len(sorted), most)]
}
