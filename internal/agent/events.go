package agent

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/sluice-qos/sluice/internal/daemon"
	"github.com/sluice-qos/sluice/internal/redisbus"
)

// events makes what the bucket of a second holds of this instance: requests that started
// and ended. HAProxy says how many a user has in progress, and of no end. So requests have
// ended that had started, and are not in progress any more: over time as many end as have
// started, however they end. It is for one goroutine.
type events struct {
	users, tiers map[string]int64 // requests that have started and not ended, as the buckets have it; none is not there
}

func newEvents() events {
	return events{users: make(map[string]int64), tiers: make(map[string]int64)}
}

// countSecond returns the events of a second: of the first maxReported users of the reports, and of
// users with an end that is still to be told; and by tier what all have started, and what was refused.
func (e *events) countSecond(reports []redisbus.Started, started, refused map[series]int64, tierOf func(user string) string) redisbus.Events {
	var events redisbus.Events
	open := make(map[string]int64, len(e.users))
	active := map[string]int64{} // by tier
	for i, u := range reports {
		active[tierOf(u.User)] += int64(u.Active)
		before, followed := e.users[u.User]
		// The bucket has starts of a user who is followed: so the ends must be told, however few they are.
		if i >= maxReported && !followed {
			continue
		}
		ends, left := divideEnded(before+u.Starts, int64(u.Active))
		// The map holds only users with something left, so that it is as large as what is in progress.
		if left > 0 {
			open[u.User] = left
		}
		// Requests that only go on are no event.
		if u.Starts+u.Refused > 0 || ends > 0 {
			events.Users = append(events.Users, redisbus.EventsOf{Name: u.User, Classes: u.Classes, Ends: ends})
		}
	}
	// Users who are not reported any more are left out: the map does not grow with users who have gone.
	e.users = open

	starts := map[string][]redisbus.StartedClass{} // by tier
	sums := map[string]int64{}
	for of, n := range started {
		tier, verb, operation := of[0], of[1], of[2]
		sums[tier] += n
		starts[tier] = addCounts(starts[tier], verb, operation, n, 0)
	}
	for of, n := range refused {
		sums[of[0]] += 0
		starts[of[0]] = addCounts(starts[of[0]], of[1], of[2], 0, n)
	}
	// A tier that has started none may have ended some.
	for tier := range e.tiers {
		sums[tier] += 0
	}
	for tier, n := range sums {
		ends, left := divideEnded(e.tiers[tier]+n, active[tier])
		if e.tiers[tier] = left; left == 0 {
			delete(e.tiers, tier)
		}
		if len(starts[tier]) > 0 || ends > 0 {
			slices.SortFunc(starts[tier], func(a, b redisbus.StartedClass) int { return strings.Compare(a.Class, b.Class) })
			events.Tiers = append(events.Tiers, redisbus.EventsOf{Name: tier, Classes: starts[tier], Ends: ends})
		}
	}
	slices.SortFunc(events.Tiers, func(a, b redisbus.EventsOf) int { return strings.Compare(a.Name, b.Name) })
	return events
}

// divideEnded divides requests that have started into those that have ended, and those that have
// not.
func divideEnded(started, active int64) (ends, left int64) {
	// More may be in progress than have started: those that HAProxy admits by itself are read from its table later.
	ends = max(0, started-active)
	return ends, started - ends
}

// reportStarts sends to polygen and to Redis' bucket of the second, when one has ended, which users have
// started how many requests in it, and have how many in progress, until ctx ends. A report that does not
// arrive is not sent again: the next one says what counts by then.
func (a *Agent) reportStarts(ctx context.Context) error {
	// Agents look at their counts together, and send them one after the other.
	later := rand.N(reportWithin)
	last := time.Now()
	buckets := newEvents()
	for {
		now := a.clock.Now()
		if !daemon.Sleep(ctx, now.Truncate(startsEvery).Add(startsEvery).Sub(now)) {
			return nil
		}
		// The counts stay: the first report after the loss has all of them.
		if a.limiter.allLost() {
			a.readSecond(ctx, a.clock.Now().Unix()-1, nil, nil, nil)
			continue
		}
		second := a.clock.Now().Unix() - 1
		// Polygens take a message about more for malformed (bus.decodeStarts).
		span := min(time.Since(last), time.Hour)
		last = time.Now()
		taken, started, refused := a.starts.take(), a.metrics.started.takeCounts(), a.metrics.refusedByTier.takeCounts()
		a.readSecond(ctx, second, taken, started, refused)
		reports := taken.sorted()
		a.raiseInProgress(reports)
		events := buckets.countSecond(reports, started, refused, func(user string) string { return a.limiter.inForce.limitsOf(user).Tier })
		events.Second = second
		reports = reports[:min(len(reports), maxReported)]
		a.metrics.startedUsers.Set(float64(len(reports)))
		if !daemon.Sleep(ctx, later) {
			return nil
		}
		reachable, all := a.limiter.withoutLost(events)
		err := a.options.Bus.AddEvents(ctx, a.options.Instance, reachable)
		if err != nil || !all {
			a.metrics.eventsLost.Inc()
		}
		err = errors.Join(a.options.Bus.Started(ctx, a.options.Instance, span, reports), err)
		if err != nil && ctx.Err() == nil {
			a.options.Logger.Debug("starts and ends not reported", slog.Any("error", err))
		}
	}
}

// readSecond adds what HAProxy has admitted by itself in a second that has just ended, and what it has answered with a refusal, its
// own and the agent's, to what was taken of the second, or if that is nil, to what is counted now.
func (a *Agent) readSecond(ctx context.Context, second int64, taken secondOfStarts, started, refused map[series]int64) {
	// HAProxy's second of that number: see clusterSecond.
	second -= int64(a.clock.Offset().Round(time.Second) / time.Second)
	if a.seconds == nil || !daemon.Sleep(ctx, time.Until(time.Unix(second+1, 0).Add(readAfter))) {
		return
	}
	add := a.starts.count
	if taken != nil {
		add = taken.add
	}
	a.seconds.read(ctx, second, func(c counted) {
		tier := a.limiter.inForce.limitsOf(c.user).Tier
		of := series{tier, c.kind.verb, c.kind.operation}
		add(c.user, c.kind.verb, c.kind.operation, c.admitted, c.refused)
		if c.admitted > 0 {
			a.metrics.started.addTo(started, of, c.admitted)
			a.metrics.credited.Add(float64(c.admitted))
			a.metrics.byTier.add(outcome(tier, "credit", ""), c.admitted)
		}
		if c.refused > 0 {
			a.metrics.refusedByTier.addTo(refused, of, c.refused)
		}
	})
}

// raiseInProgress sets the requests in progress of users with such a limit to what is believed:
// HAProxy's table does not tell of the requests that one which was replaced still has.
func (a *Agent) raiseInProgress(reports []redisbus.Started) {
	// While the lock is held no request is decided.
	const atOnce = 256
	for some := range slices.Chunk(reports, atOnce) {
		a.limiter.update(func(time.Time) {
			for i := range some {
				some[i].Active = max(some[i].Active, a.limiter.coresOf(some[i].User).slots.InProgress(some[i].User))
			}
		})
	}
}
