//go:build !race

package spoa

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/sluice-qos/sluice/pkg/credit"
)

// simLoad is who sends how many requests to which instances.
type simLoad struct {
	demand    []float64     // requests a second of each user, those with most first
	busy      int           // users who are at a limit or over it; see busyRank
	servedBy  int           // instances that see a user; 0: all
	limits    string        // the file
	roundTrip time.Duration // of Redis; 0: simRoundTrip

	limit, concurrent []int // of the busy users: requests a second, and in progress

	// next, if it is there, asks the questions of a benchmark instead, of which HAProxy admits
	// and refuses none by itself.
	next func(agents int) (user int32, agent int)
	rate float64 // of these
}

// The kinds of limits that busy users are at, in turns.
const (
	atGET = iota
	atAll
	atConcurrent
	atBandwidth
)

const (
	// One of so many users is at a limit, until there are as many of these as there should be.
	busyEvery = 10
	// Of the others each may send so many times as much as they do, at least; those whom the
	// default tier gives more than that are not named.
	ampleFactor  = 16
	defaultLimit = 2000
	simDefault   = `version: 1
default_tier: free
tiers:
  free: {requests: {GET: 2000, "*": 3000}, concurrent: 2000}
`
)

func busyRank(i int) int { return busyEvery*i + busyEvery - 1 }

func (l *simLoad) isBusy(rank int) bool {
	return rank%busyEvery == busyEvery-1 && rank < busyEvery*l.busy
}

func simUser(rank int) string { return fmt.Sprintf("user-%06d", rank) }

// newSimLoad has users of Zipf's distribution. The busy ones ask for once or twice what one of their
// limits allows, in turns: GET, "*", in progress, bandwidth; of the others they use half at most.
func newSimLoad(rate float64, users, busy, servedBy int) *simLoad {
	l := &simLoad{demand: make([]float64, users), busy: busy, servedBy: servedBy}
	sum := 0.0
	for rank := range l.demand {
		l.demand[rank] = math.Pow(float64(rank+1), -scaleExponent)
		sum += l.demand[rank]
	}
	tiers, named := "", strings.Builder{}
	known := make(map[string]bool)
	for rank := range l.demand {
		l.demand[rank] *= rate / sum
		half := floorPower(l.demand[rank])
		tier := fmt.Sprint("ample-", half)
		text := fmt.Sprintf(`{requests: {GET: %d, "*": %d}, concurrent: %d}`, ampleFactor*half, 2*ampleFactor*half, ampleFactor*half)
		switch {
		case l.isBusy(rank):
			kind := rank / busyEvery % 4
			tier = fmt.Sprintf("at%d-%d", kind, half)
			text = l.addBusy(kind, half)
		case l.ample(rank) == defaultLimit:
			continue
		}
		if !known[tier] {
			known[tier] = true
			tiers += "  " + tier + ": " + text + "\n"
		}
		fmt.Fprintf(&named, "  %s: %s\n", simUser(rank), tier)
	}
	l.limits = simDefault + tiers + "users:\n" + named.String()
	return l
}

// ample is the limit of a user who is not busy.
func (l *simLoad) ample(rank int) int {
	return max(defaultLimit, ampleFactor*floorPower(l.demand[rank]))
}

// addBusy makes limits of which one is at most what a user asks for, who sends from half to 2*half requests a second.
func (l *simLoad) addBusy(kind, half int) (tier string) {
	get, all, bytes := 4*half, 4*half, ""
	concurrent := max(8, half/2)
	switch kind {
	case atGET:
		get, all = half, 2*half
	case atAll:
		get, all = 2*half, half
	case atConcurrent:
		concurrent = max(1, floorPower(float64(half)*requestTakes.Seconds()))
	case atBandwidth:
		bytes = fmt.Sprintf(", bandwidth: {down: %d}", half*requestBytes)
	}
	l.limit, l.concurrent = append(l.limit, min(get, all)), append(l.concurrent, concurrent)
	return fmt.Sprintf(`{requests: {GET: %d, "*": %d}, concurrent: %d%s}`, get, all, concurrent, bytes)
}

// floorPower is the largest power of two that is not above a number, and 1 at least.
func floorPower(x float64) int { return 1 << max(0, int(math.Floor(math.Log2(x)))) }

// serves is the i-th instance that serves a user.
func (l *simLoad) serves(rank, i, instances int) int { return (rank*7919 + i) % instances }

// simArrivals draws the busy users' requests at one instance.
type simArrivals struct {
	rate  float64 // a second
	users []int32
	sums  []float64 // of the users' rates
}

// arrivals are those of each instance, which share them if all see all users.
func (l *simLoad) arrivals(instances int) []*simArrivals {
	all := make([]*simArrivals, instances)
	for i := range all {
		all[i] = &simArrivals{}
	}
	for b := range l.busy {
		rank := busyRank(b)
		if l.servedBy == 0 {
			all[0].add(b, l.demand[rank]/float64(instances))
			continue
		}
		for i := range l.servedBy {
			all[l.serves(rank, i, instances)].add(b, l.demand[rank]/float64(l.servedBy))
		}
	}
	for i := 1; l.servedBy == 0 && i < instances; i++ {
		all[i] = all[0]
	}
	return all
}

func (a *simArrivals) add(rank int, rate float64) {
	a.rate += rate
	a.users = append(a.users, int32(rank))
	a.sums = append(a.sums, a.rate)
}

func (a *simArrivals) draw(random *rand.Rand) int {
	x := random.Float64() * a.rate
	return int(a.users[min(sort.SearchFloat64s(a.sums, x), len(a.users)-1)])
}

// poisson draws a number of that mean.
func poisson(random *rand.Rand, mean float64) int {
	if mean > 50 {
		return max(0, int(math.Round(mean+math.Sqrt(mean)*random.NormFloat64())))
	}
	n := 0
	for product := random.Float64(); product > math.Exp(-mean); n++ {
		product *= random.Float64()
	}
	return n
}

// others draws a second's requests of the users who are not busy. HAProxy has credit for them, so many
// tickets a second at each instance: nobody sees the requests that suffice for, and of each user they
// are only counted. For each other one ask is called.
func (l *simLoad) others(random *rand.Rand, instances int, ask func(rank, instance, tickets int)) (admitted int64) {
	var at []int
	for rank, demand := range l.demand {
		if l.isBusy(rank) {
			continue
		}
		at = at[:0]
		for range poisson(random, demand) {
			if l.servedBy == 0 {
				at = append(at, random.IntN(instances))
			} else {
				at = append(at, l.serves(rank, random.IntN(l.servedBy), instances))
			}
		}
		slices.Sort(at)
		tickets := credit.Portion(l.ample(rank), instances)
		for i, run := 0, 0; i < len(at); i++ {
			if i == 0 || at[i] != at[i-1] {
				run = 0
			}
			if run++; run > tickets {
				ask(rank, at[i], tickets)
			} else {
				admitted++
			}
		}
	}
	return admitted
}
