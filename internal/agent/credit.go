package agent

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/sluice-qos/sluice/internal/agent/spop"
	"github.com/sluice-qos/sluice/pkg/bandwidth"
	"github.com/sluice-qos/sluice/pkg/credit"
	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

type grant struct {
	credit.Grant
	generation uint32
	second     uint32   // in which it was decided, see creditSecond
	share      [2]int64 // of bandwidth, by direction, in bytes per second; 0: not limited
}

func (g *grant) answer(r *spop.Request) {
	r.SetUint("credit", g.generation)
	r.SetUint("granted", g.second)
	r.SetUint("places", g.Places)
	r.SetUint("factor", g.Factor)
	for i, each := range g.Each {
		r.SetUint("each_"+strconv.Itoa(i), each)
	}
	// A direction without the variable is not limited.
	for _, d := range bandwidth.Directions {
		if g.share[d] > 0 {
			r.SetUint("lent_"+d.String(), shareUnits(g.share[d]))
		}
	}
}

// credits is what HAProxy may admit by itself: of whom it has been told, and from whom it
// was taken back. The limiter's lock guards it.
type credits struct {
	generation uint32    // of the credit in force; never 0
	classes    string    // of the configuration that asked last
	rowAt      time.Time // when HAProxy was last told of the generation

	granted     recent[time.Time]      // users whom an answer has just brought credit
	withdrawals map[string]*withdrawal // by user
	processes   int                    // of HAProxy so far: what one said of withdrawals says nothing of the next
	due         []string               // of these, whose credit is to be taken back at once
	polls       map[string]time.Time   // and at which time it is to be looked at others
	wake        chan struct{}          // holds one token when any is due
	reachable   bool                   // HAProxy's runtime API answers
}

const (
	// grantAgain is when credit is given again to a HAProxy that does not seem to have it:
	// its requests say so until the next second.
	grantAgain = 1500 * time.Millisecond
	// maxWithdrawals bounds the users without credit at a time. Those beyond keep theirs,
	// so that the cluster uses a little less of their limits.
	maxWithdrawals = 10_000
	maxGranted     = 100_000
)

type withdrawal struct {
	through int64         // the last second without
	told    int64         // through, as the core of the rates knows it; 0: HAProxy has not confirmed yet
	rest    int           // requests that HAProxy had admitted by itself, still in progress at most
	gap     time.Duration // between two looks at them
}

func newCredits() credits {
	return credits{
		generation: rand.Uint32N(1<<31-1) + 1,
		granted:    newRecent[time.Time](grantAgain, maxGranted), withdrawals: make(map[string]*withdrawal),
		polls: make(map[string]time.Time), wake: make(chan struct{}, 1),
	}
}

// status is what the core of the rates should know of a question about a user who can
// have credit or not.
func (c *haproxyCredit) status(possible bool) ratelimit.Credit {
	switch {
	case !possible:
		return ratelimit.NoCredit
	// Tickets that did not suffice were spent, whatever else HAProxy has. And who can have credit may
	// be given some at any time: without news of any it is withheld.
	case c.spent:
		return ratelimit.Spent
	case c.places.Lent:
		return ratelimit.Uncertain
	}
	return ratelimit.Withheld
}

// grantCredit decides whether HAProxy gets credit for a user whose request was just allowed,
// and tells the cores; l.mu is held. It holds from the next second on: of this one the
// agent has begun to count by itself.
func (l *limiter) grantCredit(now time.Time, q question, of *limits.Limits) *grant {
	c := &l.credits
	// Only what can be taken back is given. A request that was asked about because its credit was spent, or
	// that has waited for a slot, comes of a user who is near a limit: credit would only have to go back.
	if !c.reachable || q.credit.classes == "" || q.credit.spent || q.inLine || c.withdrawals[q.user] != nil {
		return nil
	}
	// The answer before brought it from the next second on: until then questions do not show it.
	if at, just := c.granted.get(q.user); just && now.Sub(at) < grantAgain {
		return nil
	}
	// HAProxy must be able to keep each limit of the user by itself, that of their bodies too.
	can, ok := credit.GrantOf(of, q.credit.classes, int(l.inForce.instances.Load()))
	limit := bandwidthOf(of)
	if !ok || limit.Limited() && !q.credit.shares {
		return nil
	}
	rates := slices.Collect(of.Rates())
	// Of both cores or none: a request needs a ticket and a place, or it is asked about.
	s := l.coresOf(q.user)
	if !s.tokens.Lendable(now, q.user, rates) || of.Concurrent > 0 && !s.slots.Lendable(now, q.user) {
		return nil
	}
	if !c.granted.put(q.user, now) {
		return nil // a withdrawal would not know that an answer is on its way
	}
	// From here on the cores count it as used: invariant 1 of ARCHITECTURE.md, before HAProxy has it.
	s.tokens.Lend(now, q.user, rates, now.Unix()+1)
	if of.Concurrent > 0 {
		can.Places = uint32(s.slots.Lend(now, q.user))
	}
	l.metrics.granted.Inc()
	c.classes = q.credit.classes
	return &grant{Grant: can, generation: c.generation, second: creditSecond(now), share: l.bytes.Lend(limit)}
}

// creditSecond is a second of the cluster's as HAProxy compares those of answers that bring credit
// with those of withdrawals, in 31 bits. Nobody is given credit while it is withdrawn from them,
// nor in a second in which it was. So an answer of the second of a withdrawal, or of one before, was
// on its way then, however late it comes.
func creditSecond(t time.Time) uint32 { return uint32(t.Unix() & (1<<31 - 1)) }

// presentByCredit keeps the place among the names of their own of users who have requests by credit, about
// whom HAProxy does not ask.
func (a *Agent) presentByCredit(user string) {
	// Whom the file names has a place in any case.
	if set := a.limiter.inForce.set.Load(); set != nil && set.MadeUp(user) {
		a.names.hasPlace(a.clock.Now(), user, set.User(user))
	}
}

// forgetPlaces has the core drop places of which HAProxy's table of credit has no entry any more.
// Each part is a turn of its own for the limiter's lock: requests must not wait for all.
func (a *Agent) forgetPlaces(process uint64, began time.Time, shown func(user string) bool) {
	for _, s := range a.limiter.shards {
		for last := false; !last; {
			a.limiter.update(func(now time.Time) {
				a.limiter.touch(s)
				last = s.slots.ForgetPlaces(now, int64(process), now.Add(-time.Since(began)), shown)
			})
		}
	}
}

// takeNativeCounts takes how many requests some users have in progress by credit, and the bytes that
// those ever moved.
func (a *Agent) takeNativeCounts(counts []nativeCount) {
	for _, c := range counts {
		a.starts.inCredit(c.user, int64(c.inProgress))
	}
	a.limiter.update(func(now time.Time) {
		for i := range counts {
			c := &counts[i]
			a.limiter.coresOf(c.user).slots.Natives(now, c.user, c.inProgress)
			// Bytes by credit are demand too: polygen would else give this share to others.
			if limit := bandwidthOf(c.of); limit.Limited() {
				a.limiter.bytes.Lent(now, c.user, limit, a.limiter.bodies.moved.countCredit(now, c.user, c.bytes))
			}
		}
	})
}

// takeInherited takes the requests in progress of a user from whom the agent before this one took
// their credit back. HAProxy tells of them with no question, for it asks about this user without
// their entry: so they are read until they have ended, as after a withdrawal of this agent.
func (a *Agent) takeInherited(user string, n int) {
	a.limiter.update(func(now time.Time) {
		c := &a.limiter.credits
		// One of this agent's own is followed already, and without such a limit nobody needs to know.
		if c.withdrawals[user] != nil || a.limiter.inForce.limitsOf(user).Concurrent == 0 {
			return
		}
		// They count too little then, and the metric says so: the bound is what keeps each look at all of them short.
		if len(c.withdrawals) >= maxWithdrawals {
			a.limiter.metrics.withdrawalsDropped.Inc()
			return
		}
		// HAProxy has no tickets of theirs either, and what it had of this second the agent
		// before has told.
		second := now.Unix()
		w := &withdrawal{through: second, told: second, rest: n}
		c.withdrawals[user] = w
		a.limiter.tellRest(now, user, w)
		notify(c.wake)
	})
}
