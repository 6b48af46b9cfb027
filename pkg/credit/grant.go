package credit

import (
	"strings"

	"github.com/sluice-qos/sluice/pkg/limits"
)

const (
	// Unlimited is the credit of a class, or the number of places, without a limit: more than
	// any HAProxy serves. Times the factor it must have 31 bits, for HAProxy compares tickets
	// modulo 2^32.
	Unlimited = 1 << 28
	// downFactor is by how much credit of one of several instances grows while no agent
	// answers: its Portion is a quarter of its even part of the limit.
	downFactor = 4
	// maxClasses bounds the classes of a configuration. HAProxy's arrays have 100 elements.
	maxClasses = 40
)

const _ = uint32(1<<31 - 1 - Unlimited*downFactor) // does not compile if it is too much

// Grant is the credit of one user at one HAProxy, in numbers as its table has them.
type Grant struct {
	Each   []uint32 // tickets a second, for each class of the configuration
	Places uint32   // requests in progress
	Factor uint32   // by which both grow while no agent answers, at least 1
}

// Classes are the classes that have tickets, of what HAProxy's configuration says that it counts: words, up to a bar, where an operation
// class has its verb before it, such as "* PUT GET/LIST | POST".
func Classes(counted string) []string {
	counted, _, _ = strings.Cut(counted, "|")
	classes := strings.Fields(counted)
	for i, class := range classes {
		classes[i] = class[strings.Index(class, "/")+1:]
	}
	return classes
}

// GrantOf is the credit of a user for whom it is Possible, given what HAProxy's
// configuration counts. All places are free in it: of a limit of
// requests in progress only pkg/concurrency knows how many HAProxy may have just now.
//
// ok is false if there can be no credit: HAProxy would not keep a limit of a class that its
// configuration does not count.
func GrantOf(of *limits.Limits, counted string, instances int) (g Grant, ok bool) {
	g = Grant{Places: Unlimited, Factor: 1}
	if instances > 1 {
		g.Factor = downFactor
	}
	uncounted := 0
	// A limit of a class that HAProxy does not count is left over here, and would not be kept.
	for range of.Rates() {
		uncounted++
	}
	for _, class := range Classes(counted) {
		// A class without a limit must not stop a request that has another class's ticket.
		each := uint32(Unlimited)
		if r, limited := of.Rate(class, limits.Second); limited {
			each = uint32(Portion(r.Max, instances))
			uncounted--
		}
		g.Each = append(g.Each, each)
	}
	if uncounted != 0 || len(g.Each) > maxClasses {
		return Grant{}, false
	}
	return g, true
}
