package agent

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-qos/sluice/internal/agent/peers"
	"github.com/sluice-qos/sluice/internal/redisbus"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

// beatEvery is how often an agent says that it is there.
const beatEvery = redisbus.BeatEvery

// heartbeats keeps the agent in the registry and its clock right.
func (a *Agent) heartbeats(ctx context.Context) error {
	ticker := time.NewTicker(beatEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		a.endDraining()
		a.expire()
		a.forget()
		a.limiter.showCores()
		a.showAway()
		a.names.logShared(time.Now(), a.options.Logger)
		// What is over is dropped first: it must go on while Redis is lost. What came of the heartbeat is
		// noted by part of Redis.
		_, _ = a.heartbeat(ctx)
		names, why := a.limiter.lostParts()
		a.lossLog.note(names, why, &a.options)
		a.lossLog.noteOpen(a.openShards(), &a.options)
	}
}

func (a *Agent) showAway() {
	a.limiter.update(func(now time.Time) { a.metrics.away.Set(float64(len(a.membership.away.list(now.Unix())))) })
}

func (a *Agent) forget() {
	a.limiter.update(func(now time.Time) {
		a.limiter.throttles.forget(now)
		a.limiter.bodies.moved.forget(now)
		a.limiter.forgetWithdrawals(now)
		for _, user := range a.limiter.bodies.transfers.forget(now) {
			// From now on what each verdict says holds. Until then the entry's value must not.
			a.teach(shareTable.Name, user, peers.Values{}, shareLiftFor)
		}
	})
}

// heartbeat registers once, tells the shards that this instance is alive, and returns how many
// instances there are.
func (a *Agent) heartbeat(ctx context.Context) (int, error) {
	// In this order: when a shard is used again, the others have heard that this instance is back.
	instances, err := a.register(ctx)
	if ctx.Err() == nil {
		a.noteRegistry(err)
	}
	// Shards keep a portion of users' slots for each instance that they hear of: one that is not in the cluster must not be
	// among them.
	if !a.membership.registered.Load() {
		return 0, err
	}
	return instances, errors.Join(err, a.tellShards(ctx))
}

// status is what the registry is told: which limits are in force, and why this instance does not fully work.
func (a *Agent) status() (version, problem string) {
	if set := a.limiter.inForce.set.Load(); set != nil {
		version = set.Version()
	}
	if err := a.Ready(); err != nil {
		problem = err.Error()
	} else if lost := a.Lost(); lost != "" {
		problem = "redis lost: shards " + lost
	}
	return version, problem
}

func (a *Agent) register(ctx context.Context) (int, error) {
	m := &a.membership
	m.saying.Lock()
	defer m.saying.Unlock()
	if m.left {
		return int(a.limiter.inForce.instances.Load()), nil
	}
	version, problem := a.status()
	// The answer has Redis' time of some instant between the two: the clock needs both.
	sent := time.Now()
	r, err := a.options.Bus.Register(ctx, a.options.Instance, version, problem)
	if err != nil {
		return 0, err
	}
	m.registered.Store(true)
	a.clock.Sample(sent, time.Now(), r.Now)
	a.metrics.offset.Set(a.clock.Offset().Seconds())
	// A call that was repeated until another master answered has not failed, but the registry was away.
	if time.Since(sent) >= redisbus.Lapse-beatEvery {
		a.limiter.update(func(now time.Time) { a.membership.found = now })
	}
	a.joined(r)
	return len(r.Instances), nil
}

// noteRegistry notes whether the registry has answered. Without it the list of instances stays as it
// was, and no limit depends on more of it.
func (a *Agent) noteRegistry(err error) {
	a.limiter.update(func(time.Time) {
		l := &a.limiter.lost
		if l.registry && err == nil {
			a.membership.found = time.Now()
		}
		if l.registry = err != nil; l.registry {
			l.why = err
		}
		a.limiter.showLost()
	})
}

// tellShards tells shards that this instance is alive: those where it may hold slots every second time
// that it is called, others as seldom as suffices among so many instances, and one that is lost each time.
func (a *Agent) tellShards(ctx context.Context) error {
	held := a.limiter.mayHoldSlots()
	rest := int(redisbus.AliveEvery(int(a.limiter.inForce.instances.Load())) / beatEvery)
	return a.options.Bus.EachShard(func(shard int) error {
		link, untold := a.exchange.links[shard], &a.membership.untold[shard]
		// Slots of an instance that is gone are free within 2 s, so that shard must hear of it more often. The answer is how
		// a lost shard is found again (loss.answered): it is asked for each time.
		if held[shard] {
			*untold = min(*untold, 1)
		}
		if *untold--; *untold >= 0 && !link.isLost() {
			return nil
		}
		sent := time.Now()
		err := a.exchange.alive(ctx, a.options.Instance, shard)
		switch {
		case err == nil:
			// Instances that began together do not tell together for long: between them nobody would be heard.
			*untold = rest - 1 - rand.IntN(max(1, rest/4))
			link.answered(time.Since(sent))
			return nil
		case ctx.Err() == nil:
			link.loseRedis(err)
		}
		// A shard that is away is no error of this instance's: whoever asks it finds out, and when it is back it takes
		// nobody for gone.
		if errors.Is(err, redisbus.ErrUnavailable) {
			return nil
		}
		return err
	})
}

// membership is this instance's place in the cluster. The list of instances comes two
// ways, and the older one of two must not undo the newer one.
type membership struct {
	registered atomic.Bool // once: there is something to leave
	saying     sync.Mutex  // one at a time registers or leaves, or who has left would be put back
	left       bool        // saying guards it
	untold     []int       // by shard: calls of tellShards until it is told again; of the goroutine of the heartbeats

	// The limiter's lock guards these.
	listed time.Time // when, by Redis' clock
	found  time.Time // when the registry last answered after it had been away
	away   away
}

// aheadAtMost is how far a published list may be ahead of the last one: heartbeats are
// answered every quarter of a second, and after a loss of Redis the first of them tells.
const aheadAtMost = 5 * time.Second

func (m *membership) follows(listed time.Time) bool {
	// One that is older than the last list was overtaken. One that is far ahead of it is of a clock that the heartbeats
	// did not see yet, or will not: taken, it would make all that follow look old.
	ahead := listed.Sub(m.listed)
	return ahead >= 0 && ahead < aheadAtMost
}

// overtaken reports whether a published list has overtaken the answer to a heartbeat.
func (m *membership) overtaken(listed time.Time) bool {
	// Then the answer is a moment older than the last list. One that is much older counts: Redis' clock may have been set
	// back, or another master's be behind, and every list from now on would look old.
	back := m.listed.Sub(listed)
	return back > 0 && back < beatEvery
}

// announced takes a list of instances that was published, which is heard sooner than
// the answer to the next heartbeat.
func (a *Agent) announced(r redisbus.Registry) {
	a.limiter.update(func(now time.Time) {
		if a.membership.follows(r.Now) {
			a.takeInstances(now, r)
		}
	})
}

func (a *Agent) joined(r redisbus.Registry) {
	a.limiter.update(func(now time.Time) {
		if !a.membership.overtaken(r.Now) {
			a.takeInstances(now, r)
		}
	})
}

// mayBeForgotten reports whether the registry may not know all instances; the limiter's lock is held. To take one
// for gone who is not would have all others admit that one's part of each limit too.
func (a *Agent) mayBeForgotten() bool {
	// Instances that the registry has forgotten register again when it is back, as do those that have not reached it yet: with
	// their next heartbeat, after their last call to the lost registry.
	return a.limiter.lost.registry || time.Since(a.membership.found) < redisbus.Lapse+CallTimeout(a.options.MaxWait)
}

// takeInstances puts a list of instances into force; the limiter's lock is held.
func (a *Agent) takeInstances(now time.Time, r redisbus.Registry) {
	// A list that this instance is missing from says only that Redis has forgotten it: the next heartbeat puts it back.
	rank, there := slices.BinarySearch(r.Instances, a.options.Instance)
	if !there {
		return
	}
	if len(r.Instances) < int(a.limiter.inForce.instances.Load()) && a.mayBeForgotten() {
		return
	}
	a.membership.listed = r.Now
	a.metrics.instances.Set(float64(len(r.Instances)))
	// Each part of a limit is another one from here on: credit of the old parts must end with this second.
	if n := int64(len(r.Instances)); a.limiter.inForce.instances.Swap(n) != n {
		a.nextGeneration()
	} else if c := &a.limiter.credits; now.Sub(c.rowAt) >= creditTable.Expire/2 {
		a.teachCredit() // HAProxy forgets the row
	}
	m := &a.membership
	m.away.follow(now.Unix(), r.Instances)
	if !a.Serving() {
		// Until now its HAProxy has gone on by itself.
		m.away.leaveTo(hostOf(a.options.Instance), ratelimit.Away{Of: len(r.Instances), Through: now.Unix() + backSpan, Counted: now.Unix() + 1})
	}
	without, gone := m.away.list(now.Unix()), m.away.gone()
	for _, s := range a.limiter.allCores() {
		s.tokens.Away(without)
		s.tokens.Cluster(now, len(r.Instances), rank)
		s.costs.Cluster(len(r.Instances), rank)
		// Their requests go on, and what is alone would not ask whose slots they are.
		s.slots.Cluster(now, len(r.Instances)+gone, rank)
	}
	a.limiter.bytes.Cluster(now, len(r.Instances))
}
