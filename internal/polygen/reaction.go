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
	// reactionSpan is how long the instances have to confirm one.
	reactionSpan = 2 * time.Second
)

// reactions follow some throttles from the limit's being spent to the last HAProxy's
// refusing by itself. The zero value follows none.
type reactions struct {
	instances []string               // that there are, sorted
	spent     map[spending]time.Time // since the last decisions: when, by Redis' clock
	followed  map[spending]*follows  // that instances have still to confirm
	second    time.Time              // that the next counts for
	begun     int                    // in it
}

// spending is a window of a key in which its limit was spent.
type spending struct {
	key    ratelimit.Key
	second int64
}

type follows struct {
	since, asked time.Time
	last         time.Time // when an instance began to refuse
	missing      []string  // instances, sorted
}

// reached takes the moment at which a limit was spent.
func (r *reactions) reached(k ratelimit.Key, second int64, at time.Time) {
	if len(r.spent) >= reactionsPerSecond || at.IsZero() {
		return // more than can be followed, or of an agent that does not say when
	}
	if r.spent == nil {
		r.spent = make(map[spending]time.Time)
	}
	r.spent[spending{k, second}] = at
}

// ask returns the throttles that the instances are to confirm, of those that are sent
// now.
func (r *reactions) ask(now time.Time, set *limits.Set, throttles []ratelimit.Throttle) (ask []policy.Message) {
	defer clear(r.spent)
	if !now.Before(r.second) || r.second.Sub(now) > time.Second {
		r.second, r.begun = now.Add(time.Second), 0
	}
	for _, t := range throttles {
		which := spending{t.Key, t.Second}
		since, known := r.spent[which]
		if !known || r.begun >= reactionsPerSecond || len(r.instances) == 0 || t.Second > now.Unix() || rateMode(set, t.Key) != limits.Enforce {
			continue // one of the next window is spent before it begins
		}
		if endpoint, _ := limits.SplitEndpoint(t.Key.User); endpoint == limits.All {
			continue // the agents refuse by themselves what is over all endpoints together
		}
		r.begun++
		if r.followed == nil {
			r.followed = make(map[spending]*follows)
		}
		r.followed[which] = &follows{since: since, asked: now, missing: slices.Clone(r.instances)}
		ask = append(ask, policy.Confirm{Key: t.Key, Second: t.Second})
	}
	return ask
}

// confirmed takes an instance's word, and returns how long it took if it is the last.
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
	if c.At.After(f.last) {
		f.last = c.At
	}
	if len(f.missing) > 0 {
		return 0, false
	}
	delete(r.followed, which)
	return max(0, f.last.Sub(f.since)), true
}

// giveUp forgets the throttles that were not confirmed everywhere in time, and returns
// how many there were.
func (r *reactions) giveUp(now time.Time) (n int) {
	for which, f := range r.followed {
		if late := now.Sub(f.asked); late >= reactionSpan || late < 0 {
			delete(r.followed, which)
			n++
		}
	}
	return n
}
