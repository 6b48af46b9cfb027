package polygen

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/sluice-qos/sluice/internal/bus"
	"github.com/sluice-qos/sluice/internal/parts"
	"github.com/sluice-qos/sluice/internal/policy"
	"github.com/sluice-qos/sluice/pkg/bandwidth"
	"github.com/sluice-qos/sluice/pkg/concurrency"
	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

// decide owns the watches: reports of the agents go in, policies come out. Starts, of which none follow, come apart.
func (p *Polygen) decide(ctx context.Context, events, starts <-chan bus.Event) error {
	forget := time.NewTicker(time.Second)
	defer forget.Stop()
	tick := time.NewTicker(tickEvery)
	defer tick.Stop()
	bytes := time.NewTicker(bytesEvery)
	defer bytes.Stop()
	// One goroutine alone touches the watches, so they need no lock. Whoever asks of users reads the view instead,
	// which has one, and holds it for a thousand users at most.
	for {
		var began time.Time
		var heard []bus.Event
		select {
		case <-ctx.Done():
			return nil
		case e := <-events:
			began = time.Now()
			heard = append(heard, p.observe(p.clock.Now(), e))
			// The policies of all that waits are sent in one call, so that more load makes rounds longer, not more.
			// What comes during the round waits for the next one, or a flood would keep policies back for ever.
			for range len(events) {
				heard = append(heard, p.observe(p.clock.Now(), <-events))
			}
		case e := <-starts:
			began = time.Now()
			// One at a time: between two of them a spent pool has its turn.
			heard = append(heard, p.observe(p.clock.Now(), e))
		case <-tick.C:
			began = time.Now()
			p.tickSlots(p.clock.Now())
		case <-bytes.C:
			began = time.Now()
			p.bytes.Tick(p.clock.Now())
		case <-forget.C:
			began = time.Now()
			now := p.clock.Now()
			p.rates.Forget(now)
			p.audience.forget(now)
			p.metrics.keys.Set(float64(p.rates.WatchedKeys()))
			p.countDropped()
			// Here, for the loop wakes each second anyway: an override that is over holds for a second more at most.
			p.expire(now)
			p.review(now)
		}
		sent := p.sendPolicies(ctx)
		// Nothing is decided by the view, so it hears while Redis takes the policies.
		for _, e := range heard {
			p.showEvent(p.clock.Now(), e)
		}
		// One round at a time, or a policy could overtake one that was decided before it.
		<-sent
		p.metrics.loop.Observe(time.Since(began).Seconds())
	}
}

// adoptParts takes up which parts are kept now. The view forgets the users of others with the next event, and the watches by
// themselves, within seconds.
func (p *Polygen) adoptParts() {
	kept := p.division.KnownParts()
	if kept == p.kept {
		return
	}
	// Of the users who are new here this polygen has passed over the reports: an instance that serves one of
	// them, and has not reported them since, would not be told of a block.
	if kept&^p.kept != 0 {
		p.audience.learns.begin(time.Now(), kept&^p.kept)
	}
	p.kept = kept
}

// ownEvent leaves what is about users of the parts that are kept.
func (p *Polygen) ownEvent(e bus.Event) bus.Event {
	// Nearly always, for most clusters have one polygen: no list is walked.
	if p.kept == parts.All {
		return e
	}
	own := p.usersOf(p.kept)
	switch e := e.(type) {
	case bus.Usage:
		e.Entries = ownOf(own, e.Entries, func(u bus.UsageEntry) string { return u.Key.User })
		return e
	case bus.Progress:
		e.Entries = ownOf(own, e.Entries, func(u bus.ProgressEntry) string { return u.User })
		return e
	case bus.Demand:
		return bus.Demand(ownOf(own, e, func(r bandwidth.Report) string { return r.User }))
	case bus.Starts:
		e.Users = ownOf(own, e.Users, func(u bus.Started) string { return u.User })
		return e
	}
	return e
}

// observe lets the watches take an event. It returns what of it is about users of the parts that are kept, for the view.
func (p *Polygen) observe(now time.Time, e bus.Event) bus.Event {
	// Before the event: what it says of users of a part that was just given away must not bring them back.
	p.adoptParts()
	e = p.ownEvent(e)
	set := p.set.Load()
	switch e := e.(type) {
	case bus.Usage:
		for _, u := range e.Entries {
			p.audience.report(u.Key.User, e.Instance)
			// Nothing is throttled by what requests cost: the agents ask the pools about each. The view alone wants it.
			if _, isCost := bus.CostUnit(u.Key); isCost {
				continue
			}
			p.rates.Observe(now, e.Instance, u.Key, u.Second, u.Total, limitOf(set, u.Key))
		}
		p.metrics.usage.Add(float64(len(e.Entries)))
	case bus.Progress:
		for _, u := range e.Entries {
			p.audience.report(u.User, e.Instance)
			p.slots.Observe(now, concurrency.Report{
				Instance: e.Instance, User: u.User, Active: u.Active, Refused: u.Refused, Limit: set.User(u.User).Concurrent,
			})
		}
		p.metrics.progress.Add(float64(len(e.Entries)))
	case bus.Demand:
		for _, r := range e {
			p.audience.report(r.User, r.Instance)
			b := set.User(r.User).Bandwidth
			p.bytes.Observe(now, r, [2]int64{bandwidth.Down: b.Down, bandwidth.Up: b.Up})
		}
		p.metrics.demand.Add(float64(len(e)))
	case bus.Starts:
		// No watch needs them. They are of every user each second, so they tell who serves those whom nothing else
		// is reported of.
		for _, u := range e.Users {
			p.audience.report(u.User, e.Instance)
		}
		p.metrics.starts.Add(float64(len(e.Users)))
	case bus.Unblock:
		p.slots.Unblock(now, e.User)
	case bus.Heard:
		// What was missed may have said who serves a user of that shard. All else is said again: reports are absolute.
		p.audience.learns.hear(time.Now(), p.shards, e)
	case bus.Registry:
		p.audience.live = e.Instances
		// What an instance reported counts until the registry says that it is gone, not until it is silent: what is
		// idle reports nothing.
		p.slots.Instances(now, e.Instances)
		p.bytes.Instances(now, e.Instances)
		p.takeRegistry(e, set.Version())
	}
	return e
}

// countDropped sets the metrics of what the watches had no room for.
func (p *Polygen) countDropped() {
	for i, now := range [...]uint64{p.rates.Dropped(), p.slots.Dropped(), p.bytes.Dropped()} {
		p.metrics.watchDropped.WithLabelValues([...]string{"requests", "concurrent", "bandwidth"}[i]).Add(float64(now - p.dropped[i]))
		p.dropped[i] = now
	}
}

func (p *Polygen) tickSlots(now time.Time) {
	// Blocks lapse in the agents unless they are repeated, also while nothing is reported.
	p.slots.Tick(now)
	users, blocked := p.slots.WatchedUsers()
	p.metrics.users.Set(float64(users))
	p.metrics.blockedUsers.Set(float64(blocked))
}

// limitOf is how many requests the limit of the key's class and window admits in one
// window at most, bursts included, or 0 if there is no limit.
func limitOf(set *limits.Set, k ratelimit.Key) int {
	// A limit in a dry run counts like any other, for operators want to see what it would do. The agents know by
	// the same limits not to refuse for it.
	r, _ := set.User(k.User).Rate(k.Class, k.Window)
	return r.Max + r.Burst
}

// takeDecisions returns what the watches decided about the users of this polygen.
func (p *Polygen) takeDecisions() decisions {
	d := decisions{late: p.rates.Latecomers(), Decisions: p.slots.Decisions(), shares: p.bytes.Sharings()}
	d.hints, d.throttles = p.rates.Decisions()
	// A watch ends what it knew of a user, whose part another polygen has by now, with an unblock or a new
	// division of their limit. The other one knows better.
	d.keep(p.usersOf(p.kept))
	// Remembered and told whether they are sent or not: readers of a polygen that lost a lease should see what it
	// sees, for it may have to decide again.
	begun := p.remember(d.throttles, d.Decisions)
	p.tellPolicies(p.set.Load(), begun, d.hints, d.throttles, d.Decisions, d.shares)
	p.throttledUsers.addThrottles(p.set.Load(), d.throttles)
	// It still knows of parts whose lease lapsed, but two that send about one user would block and unblock them in
	// turns. Leases are held by this machine's clock, not the cluster's.
	d.keep(p.usersOf(p.division.DecidedParts(time.Now())))
	return d
}

// sendPolicies begins to publish what the watches decided. The channel is closed when Redis has taken it, or has not.
func (p *Polygen) sendPolicies(ctx context.Context) (sent <-chan struct{}) {
	done := make(chan struct{})
	d := p.takeDecisions()
	policies := p.address(p.clock.Now(), &d)
	if len(policies) == 0 {
		close(done)
		return done
	}
	go func() {
		defer close(done)
		err := p.options.Bus.PublishTo(ctx, policies)
		if err == nil {
			p.metrics.countSent(p.set.Load(), policies)
			return
		}
		// Dropped, not kept for later: by then a throttle's window may be over. Limits hold without policies, by the
		// agents' leases, and blocks and shares are repeated.
		p.metrics.dropped.Add(float64(len(policies)))
		if ctx.Err() == nil {
			p.options.Logger.Debug("policies not sent", slog.Int("policies", len(policies)), slog.Any("error", err))
		}
	}()
	return done
}

// decisions are what the watches decided in a round.
type decisions struct {
	hints           []ratelimit.Hint
	throttles, late []ratelimit.Throttle
	concurrency.Decisions
	shares []bandwidth.Sharing
}

// users tells who belongs to a set of users.
type users func(user string) bool

// usersOf are the users of some parts.
func (p *Polygen) usersOf(set parts.Set) users {
	return func(user string) bool { return p.shards.HasUser(set, user) }
}

// keep leaves what is about some users.
func (d *decisions) keep(mine users) {
	ofThrottle := func(t ratelimit.Throttle) string { return t.Key.User }
	d.hints = ownOf(mine, d.hints, func(h ratelimit.Hint) string { return h.Key.User })
	d.throttles, d.late = ownOf(mine, d.throttles, ofThrottle), ownOf(mine, d.late, ofThrottle)
	d.shares = ownOf(mine, d.shares, func(s bandwidth.Sharing) string { return s.User })
	d.Blocks = ownOf(mine, d.Blocks, func(b concurrency.Block) string { return b.User })
	d.Unblocks = ownOf(mine, d.Unblocks, func(user string) string { return user })
	d.Sharings = ownOf(mine, d.Sharings, func(s concurrency.Sharing) string { return s.User })
}

func ownOf[T any](mine users, list []T, user func(T) string) []T {
	return slices.DeleteFunc(list, func(v T) bool { return !mine(user(v)) })
}

// address makes the policies of decisions, each with the instances that it concerns, the more urgent ones first.
func (p *Polygen) address(now time.Time, d *decisions) (policies []policy.Addressed) {
	set, a := p.set.Load(), &p.audience
	a.beginRound(time.Now())
	add := func(m policy.Message, to []string) { policies = append(policies, policy.Addressed{Message: m, To: to}) }
	// First, for the user's requests wait for it. A block lapses sooner than who serves the user is forgotten, so
	// all who have it are told.
	for _, user := range d.Unblocks {
		add(policy.Unblock{User: user}, a.serving(user))
	}
	for _, t := range slices.Concat(d.throttles, d.late) {
		add(policy.Throttle{Key: t.Key, Second: t.WindowStart, Limit: t.Limit}, a.ofThrottle(&t))
	}
	for _, b := range d.Blocks {
		add(policy.Block{User: b.User, Limit: b.Max, Release: b.Release}, a.serving(b.User))
	}
	for _, s := range d.Sharings {
		m := policy.Slots{User: s.User, Until: s.Until}
		for _, share := range s.Shares {
			m.Shares = append(m.Shares, policy.SlotShare(share))
		}
		to := a.ofReserved(now, set, appeal{"slots", "", s.User})
		// To each its own part: all parts in a message for all would grow with the square of the instances' number.
		if to == nil {
			to = a.live
		}
		add(m, to)
	}
	for _, s := range d.shares {
		add(policy.Share{User: s.User, Direction: s.Direction, Shares: s.Shares}, a.ofShares(&s))
	}
	// Last, for they only save questions.
	for _, h := range d.hints {
		to := a.ofReserved(now, set, appeal{"hot", limits.RateName(h.Key.Class, h.Key.Window), h.Key.User})
		hot := policy.Hot{Key: h.Key, Until: h.Until, Instances: h.Instances}
		// Others may have begun to serve the user whose asks were not heard yet: told that there is one, each would take itself
		// for that one, and admit the whole limit alone should Redis be lost.
		if !a.knows(h.Key.User) {
			hot.Instances = 0
		}
		add(hot, a.orAll(to))
	}
	return policies
}
