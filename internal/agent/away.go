package agent

import (
	"maps"
	"slices"
	"strings"

	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

// away is which instances are without their agents, as far as this one knows. Their HAProxies may go on by
// themselves with an even part of each limit, and for some seconds the others leave that to them, so
// that no agent's restart lets a user have more than their limit.
type away struct {
	names []string                  // of the last list of instances
	until map[string]ratelimit.Away // by the instance's name without what is the agent's own
}

const (
	// awaySpan is how long, in seconds, a restart may take. Where an instance has gone for good users get less for as
	// long, so it is not longer.
	awaySpan = 5
	// backSpan is within how many seconds after an agent has joined its HAProxy asks it again: it waits for a
	// heartbeat before it serves, and HAProxy finds it with its second check, after three quarters of a second together.
	backSpan = 1
	// maxAway bounds how many instances are left something: each costs a step whenever the pool is asked. Of a
	// large cluster no more are restarted at a time.
	maxAway = 16
)

// hostOf is what an agent's instance keeps when the agent is replaced by another one.
func hostOf(instance string) string {
	host, _, _ := strings.Cut(instance, "#")
	return host
}

// follow takes a new list of instances, sorted, in a second.
func (a *away) follow(sec int64, names []string) {
	if slices.Equal(names, a.names) {
		return
	}
	there := make(map[string]bool, len(names))
	for _, name := range names {
		there[hostOf(name)] = true
	}
	for _, name := range a.names {
		if host := hostOf(name); !there[host] {
			a.leaveTo(host, ratelimit.Away{Of: len(a.names), Through: sec + awaySpan})
		}
	}
	for host, o := range a.until {
		if there[host] {
			// Who was alone has no pool of this second, or one in which nothing is reserved.
			o.Through, o.Counted = min(o.Through, sec+backSpan), sec+1
			a.until[host] = o
		}
	}
	a.names = names
}

func (a *away) leaveTo(host string, o ratelimit.Away) {
	if a.until == nil {
		a.until = make(map[string]ratelimit.Away)
	}
	a.until[host] = o
}

// gone is how many of those who are away are not among the instances.
func (a *away) gone() (n int) {
	for _, o := range a.until {
		if o.Counted == 0 {
			n++
		}
	}
	return n
}

// list is who is away in a second or later; it forgets the others.
func (a *away) list(sec int64) []ratelimit.Away {
	maps.DeleteFunc(a.until, func(_ string, o ratelimit.Away) bool { return o.Through < sec || o.Of < 2 })
	for host, o := range a.until {
		// Else a clock that is set back would have users get less for as long.
		o.Through = min(o.Through, sec+awaySpan)
		a.until[host] = o
	}
	return slices.SortedFunc(maps.Values(a.until), func(x, y ratelimit.Away) int { return int(y.Through - x.Through) })[:min(len(a.until), maxAway)]
}
