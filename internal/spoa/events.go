package spoa

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-qos/sluice/internal/bus"
	"github.com/sluice-qos/sluice/internal/clock"
)

const (
	// maxBusiest is of how many users Redis' bucket of a second tells who are not near a limit.
	maxBusiest = 1000
	// maxUnsent bounds the seconds whose events wait for Redis. polygen reads the bucket of a
	// second for the last time recountAfter that second (internal/polygen), which is later.
	maxUnsent = 10
)

// events makes what the bucket of a second holds of this instance: requests that started
// and ended. HAProxy says how many a user has in progress, and of no end. So those have
// ended that had started, and are not in progress any more: over time as many end as have
// started, however they end. It is for one goroutine.
type events struct {
	users, tiers map[string]int64 // requests that have started and not ended, as the buckets have it; none is not there
	unsent       []unsent         // of the last seconds, oldest first, which Redis has not taken yet
	counted      uint64           // seconds so far
}

// unsent are the events of a second. Their number tells them from others of the same second, of
// which there are some when the cluster's clock is set back.
type unsent struct {
	number uint64
	events bus.Events
}

func newEvents() events {
	return events{users: make(map[string]int64), tiers: make(map[string]int64)}
}

// countSecond returns the events of a second: of the users near a limit, who are the first ones
// of the reports, of the busiest of the others, and of everybody of whom an end is still to
// be told; and by tier what all have started.
func (e *events) countSecond(reports []bus.Started, near int, started map[series]int64, tierOf func(user string) string) bus.Events {
	slices.SortFunc(reports[near:], func(a, b bus.Started) int { return int(b.Starts - a.Starts) })
	var events bus.Events
	open := make(map[string]int64, len(e.users))
	active := map[string]int64{} // by tier
	for i, u := range reports {
		active[tierOf(u.User)] += int64(u.Active)
		before, followed := e.users[u.User]
		// Of a user whom the bucket says to have requests the end must be told, however few they have.
		if i >= near+maxBusiest && !followed {
			continue
		}
		ends, left := divideEnded(before+u.Starts, int64(u.Active))
		// The map holds only users with something left, so that it is as large as what is in progress.
		if left > 0 {
			open[u.User] = left
		}
		// Of those who only go on there is nothing to tell.
		if u.Starts > 0 || ends > 0 {
			events.Users = append(events.Users, bus.EventsOf{Name: u.User, Classes: u.Classes, Ends: ends})
		}
	}
	// Of those who are not reported any more nothing is known, so no end of theirs will be told: the map does not
	// grow with users who have gone.
	e.users = open

	starts := map[string][]bus.StartedClass{} // by tier
	sums := map[string]int64{}
	for of, n := range started {
		tier, verb, operation := of[0], of[1], of[2]
		sums[tier] += n
		starts[tier] = addStarts(addStarts(starts[tier], verb, n), operation, n)
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
		if n > 0 || ends > 0 {
			slices.SortFunc(starts[tier], func(a, b bus.StartedClass) int { return strings.Compare(a.Class, b.Class) })
			events.Tiers = append(events.Tiers, bus.EventsOf{Name: tier, Classes: starts[tier], Ends: ends})
		}
	}
	slices.SortFunc(events.Tiers, func(a, b bus.EventsOf) int { return strings.Compare(a.Name, b.Name) })
	return events
}

// sendAll has Redis take the events of a second, and those before that it has not taken, but for what divide says
// to be away. It returns how many seconds are given up.
func (e *events) sendAll(ctx context.Context, events bus.Events, divide func(bus.Events) (reachable, away bus.Events),
	add func(ctx context.Context, number uint64, events bus.Events) error) (lost int, err error) {
	e.counted++
	// The oldest goes: its bucket is the first one that polygen will not read any more.
	if e.unsent = append(e.unsent, unsent{e.counted, events}); len(e.unsent) > maxUnsent {
		e.unsent, lost = slices.Delete(e.unsent, 0, 1), 1
	}
	for i := range e.unsent {
		u := &e.unsent[i]
		reachable, away := divide(u.events)
		// The others would wait as long for nothing.
		if err = add(ctx, u.number, reachable); err != nil {
			break
		}
		u.events = away
	}
	e.unsent = slices.DeleteFunc(e.unsent, func(u unsent) bool { return len(u.events.Users)+len(u.events.Tiers) == 0 })
	return lost, err
}

// divideEnded divides requests that have started into those that have ended, and those that have
// not.
func divideEnded(started, active int64) (ends, left int64) {
	// More may be in progress than have started: those that HAProxy admits by itself are read from its table later.
	ends = max(0, started-active)
	return ends, started - ends
}

// reportStarts tells polygen and Redis' bucket of the second, when one has ended, who has
// started how many requests in it, and has how many in progress, until ctx ends. To polygen
// a report that does not arrive is not sent again: the next one says what counts by then.
func (a *Agent) reportStarts(ctx context.Context) error {
	// Agents look at their counts together, and tell of them one after the other.
	later := rand.N(reportWithin)
	last := time.Now()
	var reports []bus.Started
	var near int
	buckets := newEvents()
	for {
		now := a.clock.Now()
		if !clock.Sleep(ctx, now.Truncate(startsEvery).Add(startsEvery).Sub(now)) {
			return nil
		}
		// Nothing is taken out of the counts meanwhile: the first report after the loss has all of it.
		if a.limiter.allLost() {
			continue
		}
		second := a.clock.Now().Unix() - 1
		// Polygens take a message about more for malformed (bus.decodeStarts).
		span := min(time.Since(last), time.Hour)
		last = time.Now()
		if a.tallies != nil {
			a.tallies.batches.giveStarts(last)
		}
		reports, near = a.starts.takeReports(reports[:0])
		a.raiseInProgress(reports)
		events := buckets.countSecond(reports, near, a.metrics.started.takeCounts(), func(user string) string { return a.limiter.inForce.limitsOf(user).Tier })
		events.Second = second
		a.metrics.startedUsers.Set(float64(len(reports)))
		if !clock.Sleep(ctx, later) {
			return nil
		}
		lost, err := buckets.sendAll(ctx, events, a.limiter.divideLost, func(ctx context.Context, number uint64, events bus.Events) error {
			return a.options.Bus.AddEvents(ctx, a.options.Instance+"/"+strconv.FormatUint(number, 10), events)
		})
		a.metrics.eventsLost.Add(float64(lost))
		err = errors.Join(a.options.Bus.Started(ctx, a.options.Instance, span, reports), err)
		if err != nil && ctx.Err() == nil {
			a.options.Logger.Debug("starts and ends not reported", slog.Any("error", err))
		}
		// The array is used again, and must not keep names of users who have gone.
		clear(reports)
	}
}

// raiseInProgress sets the requests in progress of users with such a limit to what is believed:
// HAProxy's table does not tell of the requests that one which was replaced still has.
func (a *Agent) raiseInProgress(reports []bus.Started) {
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
