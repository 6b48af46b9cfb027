package polygen

import (
	"slices"
	"time"

	"github.com/sluice-qos/sluice/internal/bus"
	"github.com/sluice-qos/sluice/internal/policy"
	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

const (
	// reactionsPerSecond bounds the throttles that are followed: each costs a message of
	// every instance.
	reactionsPerSecond = 10
	// reactionSpan is how long the instances have to confirm a throttle.
	reactionSpan = 2 * time.Second
)

// reactions follow some throttles from the moment at which the limit is spent until the
// last HAProxy refuses by itself. The zero value follows none.
type reactions struct {
	instances []string               // all instances, sorted
	spent     map[spending]time.Time // limits spent since the last decisions, and when by Redis' clock
	followed  map[spending]*follows  // throttles that some instance has not confirmed yet
	second    time.Time              // end of the second that begun is about
	begun     int                    // throttles that were followed in it
}

// spending is a window of a key in which its limit was spent.
type spending struct {
	key    ratelimit.Key
	second int64
}

type follows struct {
	since, asked time.Time // when the limit was spent, and when the instances were asked
	last         time.Time // when an instance began to refuse
	missing      []string  // instances, sorted
}

// markSpent takes the moment at which a limit was spent.
func (r *reactions) markSpent(k ratelimit.Key, second int64, at time.Time) {
	// More than can be followed, or a message of version 1, which has no time.
	if len(r.spent) >= reactionsPerSecond || at.IsZero() {
		return
	}
	if r.spent == nil {
		r.spent = make(map[spending]time.Time)
	}
	r.spent[spending{k, second}] = at
}

// confirmations returns the throttles that the instances which hear of them are to confirm, of
// those that are sent now. Whom a throttle concerns is nil for all.
func (r *reactions) confirmations(now time.Time, set *limits.Set, throttles []ratelimit.Throttle, concerned func(*ratelimit.Throttle) []string) (ask []policy.Addressed) {
	// What was spent and is not among the throttles was for a polygen that decides about the user.
	defer clear(r.spent)
	// Also when the clock was set back: until then nothing would be followed.
	if !now.Before(r.second) || r.second.Sub(now) > time.Second {
		r.second, r.begun = now.Add(time.Second), 0
	}
	for _, t := range throttles {
		which := spending{t.Key, t.WindowStart}
		since, known := r.spent[which]
		// A window that has not begun may be spent ahead, and nobody refuses for it yet. For a limit in a dry run
		// nobody ever does. Either would be a reaction of seconds, or one that never comes.
		if !known || r.begun >= reactionsPerSecond || len(r.instances) == 0 || t.WindowStart > now.Unix() || rateMode(set, t.Key) != limits.Enforce {
			continue
		}
		// HAProxy has no throttle for limits over all endpoints together: the agents refuse.
		if endpoint, _ := limits.SplitEndpoint(t.Key.User); endpoint == limits.All {
			continue
		}
		r.begun++
		if r.followed == nil {
			r.followed = make(map[spending]*follows)
		}
		to := concerned(&t)
		missing := slices.Clone(to)
		if to == nil {
			missing = slices.Clone(r.instances)
		}
		r.followed[which] = &follows{since: since, asked: now, missing: missing}
		ask = append(ask, policy.Addressed{Message: policy.Confirm{Key: t.Key, Second: t.WindowStart}, To: to})
	}
	return ask
}

// confirmed takes an instance's confirmation. If it is the last one, it returns how long
// the throttle took to reach every HAProxy that was asked.
func (r *reactions) confirmed(c bus.Confirmed) (took time.Duration, done bool) {
	which := spending{c.Key, c.Second}
	f := r.followed[which]
	if f == nil {
		return 0, false
	}
	i, waited := slices.BinarySearch(f.missing, c.Instance)
	if !waited {
		return 0, false
	}
	f.missing = slices.Delete(f.missing, i, i+1)
	// Confirmations need not come in the order of their times: each instance has a connection of its own.
	if c.At.After(f.last) {
		f.last = c.At
	}
	if len(f.missing) > 0 {
		return 0, false
	}
	delete(r.followed, which)
	// An instance's idea of Redis' clock may be a little behind.
	return max(0, f.last.Sub(f.since)), true
}

// isThere reports whether an instance is among those that there are.
func (r *reactions) isThere(instance string) bool {
	_, there := slices.BinarySearch(r.instances, instance)
	return there
}

// giveUp forgets the throttles that were not confirmed everywhere in time, and returns
// how many there were.
func (r *reactions) giveUp(now time.Time) (n int) {
	for which, f := range r.followed {
		// From when they were asked: a throttle that polygen decided late is its own slowness, and is measured. Less
		// than 0 is a clock that was set back, which would keep the throttle for as long.
		if late := now.Sub(f.asked); late >= reactionSpan || late < 0 {
			delete(r.followed, which)
			// Who is gone confirms nothing, and refuses nobody either.
			if slices.ContainsFunc(f.missing, r.isThere) {
				n++
			}
		}
	}
	return n
}
