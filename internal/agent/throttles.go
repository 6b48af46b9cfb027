package agent

import (
	"time"

	"github.com/sluice-qos/sluice/internal/agent/peers"
	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

// throttles are the entries of HAProxy's throttle table for windows longer than a
// second. The table has one entry for all windows of a user's class: it is that of
// the window that ends last. The limiter's lock guards them. See newThrottles.
type throttles struct{ recent[throttled] } // by class|user

type throttled struct {
	ratelimit.TableEntry
	taught time.Time
}

// maxThrottles bounds the long throttles that are known. Beyond it a shorter one may
// end a longer one, which the agent then enforces by itself.
const maxThrottles = 100_000

func newThrottles() throttles {
	return throttles{newRecent[throttled](ratelimit.RefuseFor, maxThrottles)}
}

func tableKey(k ratelimit.Key) string { return k.Class + "|" + k.User }

// shouldTeach reports whether a throttle, or a lift, is to be taught: not if a longer one
// holds.
func (t *throttles) shouldTeach(now time.Time, n ratelimit.TableEntry) bool {
	key := tableKey(n.Key)
	held, there := t.get(key)
	there = there && !held.hasEnded(now)
	switch {
	// What is lifted is not what HAProxy refuses by: the other window is still spent.
	case n.Lift && there && held.Key.Window != n.Key.Window:
		return false
	case !n.Lift && there && held.End > n.End:
		return false
	// Many requests may arrive before HAProxy has the entry.
	case !n.Lift && there && held.Limit == 0 && now.Sub(held.taught) < time.Second:
		return false
	// Those of a second are not remembered: they end before any other.
	case !n.Lift && (n.Key.Window != limits.Second || n.Limit == 0):
		t.put(key, throttled{n, now})
	default:
		t.drop(key)
	}
	return true
}

// hasEnded reports whether HAProxy does not know the entry any more.
func (t throttled) hasEnded(now time.Time) bool {
	return now.Sub(t.taught) >= ratelimit.RefuseFor || now.Unix() >= t.End
}

// outdated takes out those whose limits are not those of the set any more.
func (t *throttles) outdated(set *limits.Set) (lift []ratelimit.TableEntry) {
	for _, all := range [...]map[string]throttled{t.young, t.old} {
		for key, n := range all {
			r, ok := set.User(n.Key.User).Rate(n.Key.Class, n.Key.Window)
			// Another limit may admit more, so HAProxy must ask again. If it is spent as well, the next
			// question brings the throttle back.
			if !ok || r.Mode != limits.Enforce || r.Max != n.Limit || r.Max > 0 && !endsAt(r, n.End) {
				delete(all, key)
				n.Lift = true
				lift = append(lift, n.TableEntry)
			}
		}
	}
	return lift
}

// endsAt reports whether a window of a limit ends at a second: after a reload days may end at another time.
func endsAt(r limits.Rate, second int64) bool {
	_, end := r.Bounds(second - 1)
	return end == second
}

// teachThrottle has HAProxy refuse a key by itself, or no longer. Of a limit in a
// dry run, or one that is gone, it hears at most that it holds no longer: polygen may
// speak of keys of which no request has come here.
func (a *Agent) teachThrottle(n ratelimit.TableEntry) {
	r, ok := a.limiter.inForce.limitsOf(n.Key.User).Rate(n.Key.Class, n.Key.Window)
	if !n.Lift && (!ok || r.Mode != limits.Enforce || n.Limit == 0 && r.Max > 0) {
		return
	}
	if !a.limiter.throttles.shouldTeach(a.clock.Now(), n) {
		return
	}
	if n.Lift {
		a.metrics.lifted.Inc()
		a.teach(throttleTable.Name, tableKey(n.Key), peers.Values{}, 2*time.Second)
		return
	}
	a.metrics.throttled.Inc()
	left := min(time.Unix(n.End, 0).Sub(a.clock.Now()), ratelimit.RefuseFor)
	values := peers.Values{
		peers.GPT0: uint64(a.haproxySecond(n.End)), peers.GPC0: uint64(n.Limit), peers.GPC1: uint64(lengthOf(r.Bounds(n.End - 1))),
	}
	// Before 3.2 HAProxy may keep the entry longer than its time, never shorter; it
	// compares the deadline with its own clock.
	a.teach(throttleTable.Name, tableKey(n.Key), values, left)
}
