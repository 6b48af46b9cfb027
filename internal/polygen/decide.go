package polygen

import (
	"context"
	"log/slog"
	"time"

	"github.com/sluice-qos/sluice/internal/redisbus"

	"github.com/sluice-qos/sluice/pkg/bandwidth"
	"github.com/sluice-qos/sluice/pkg/concurrency"
	"github.com/sluice-qos/sluice/pkg/credit"
	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

// sendEvery is the least time from one message of policies to the next. At a lone event policies leave at once; in a busy
// cluster each message has those of so long, for it costs every agent a look, and compresses the better the more is in it.
const sendEvery = 10 * time.Millisecond

// decide owns the watches: reports of the agents go in, policies come out. Starts, of which none follow, come apart.
func (p *Polygen) decide(ctx context.Context, events, starts <-chan redisbus.Event) error {
	forget := time.NewTicker(time.Second)
	defer forget.Stop()
	tick := time.NewTicker(tickEvery)
	defer tick.Stop()
	bytes := time.NewTicker(bytesEvery)
	defer bytes.Stop()
	send := time.NewTimer(0)
	defer send.Stop()
	var sentAt, waiting time.Time // when the last message left; since when decisions may wait
	// One goroutine alone touches the watches, so they need no lock. Whoever asks of users reads the view instead,
	// which has one, and holds it for a thousand users at most.
	for {
		var heard []redisbus.Event
		select {
		case <-ctx.Done():
			return nil
		case e := <-events:
			p.observe(p.clock.Now(), e)
			heard = append(heard, e)
			// The policies of all that waits are sent in one call, so that more load makes rounds longer, not more.
			// What comes during the round waits for the next one, or a flood would keep policies back for ever.
			for range len(events) {
				e := <-events
				p.observe(p.clock.Now(), e)
				heard = append(heard, e)
			}
		case e := <-starts:
			// One at a time: between two of them a spent pool has its turn.
			p.observe(p.clock.Now(), e)
			heard = append(heard, e)
		case user := <-p.unblocks:
			p.slots.Unblock(p.clock.Now(), user)
		case <-tick.C:
			p.tickSlots(p.clock.Now())
		case <-bytes.C:
			p.bytes.Tick(p.clock.Now())
		case <-forget.C:
			now := p.clock.Now()
			p.rates.Forget(now)
			p.countDropped()
			// Here, for the loop wakes each second anyway: an override that is over holds for a second more at most.
			p.expire(now)
			p.forgetUsers(now)
		case <-send.C:
		}
		began := time.Now()
		if waiting.IsZero() {
			waiting = began
		}
		// The watches keep what they decide until it is taken.
		if wait := sendEvery - began.Sub(sentAt); wait > 0 {
			p.showEvents(heard)
			send.Reset(wait)
			continue
		}
		sent := p.sendPolicies(ctx)
		// Nothing is decided by the view, so it hears while Redis takes the policies.
		p.showEvents(heard)
		if sent != nil {
			// One message at a time, or a policy could overtake one that was decided before it.
			<-sent
			sentAt = time.Now()
		}
		p.metrics.loop.Observe(time.Since(waiting).Seconds())
		waiting = time.Time{}
	}
}

func (p *Polygen) observe(now time.Time, e redisbus.Event) {
	set := p.set.Load()
	switch e := e.(type) {
	case redisbus.Usage:
		for _, u := range e.Entries {
			// Nothing is throttled by what requests cost: the agents ask the pools about each. The view alone wants it.
			if _, isCost := redisbus.CostUnit(u.Key); isCost {
				continue
			}
			p.rates.Observe(now, e.Instance, u.Key, u.Second, u.Total, rateOf(set, u.Key))
		}
	case redisbus.Progress:
		for _, u := range e.Entries {
			p.slots.Observe(now, concurrency.Report{
				Instance: e.Instance, User: u.User, Active: u.Active, Refused: u.Refused, Limit: set.User(u.User).Concurrent,
			})
		}
	case redisbus.Demand:
		for _, r := range e {
			b := set.User(r.User).Bandwidth
			p.bytes.Observe(now, r, [2]int64{bandwidth.Down: b.Down, bandwidth.Up: b.Up})
		}
	case redisbus.Registry:
		p.instances = len(e.Instances)
		// What an instance reported counts until the registry says that it is gone, not until it is silent: what is
		// idle reports nothing.
		p.slots.Instances(now, e.Instances)
		p.bytes.Instances(now, e.Instances)
		p.takeRegistry(e, set.Version())
	}
}

func (p *Polygen) countDropped() {
	u := p.lockUsers()
	users := u.view.Dropped()
	u.mu.Unlock()
	for i, now := range [...]uint64{p.rates.Dropped(), p.slots.Dropped(), p.bytes.Dropped(), users} {
		p.metrics.watchDropped.WithLabelValues([...]string{"requests", "concurrent", "bandwidth", "users"}[i]).Add(float64(now - p.dropped[i]))
		p.dropped[i] = now
	}
}

func (p *Polygen) tickSlots(now time.Time) {
	// Blocks lapse in the agents unless they are repeated, also while nothing is reported.
	p.slots.Tick(now)
	_, blocked := p.slots.WatchedUsers()
	p.metrics.blockedUsers.Set(float64(blocked))
}

// rateOf is the limit of the key's class and window, a zero one if there is none.
func rateOf(set *limits.Set, k ratelimit.Key) limits.Rate {
	// A limit in a dry run counts like any other, for operators want to see what it would do. The agents know by
	// the same limits not to refuse for it.
	r, _ := set.User(k.User).Rate(k.Class, k.Window)
	return r
}

type decisions struct {
	hints     []ratelimit.Hint
	throttles []ratelimit.Throttle
	concurrency.Decisions
	shares []bandwidth.Sharing
}

func (p *Polygen) takeDecisions() decisions {
	d := decisions{Decisions: p.slots.Decisions(), shares: p.bytes.Sharings()}
	d.hints, d.throttles = p.rates.Decisions()
	// Remembered and told whether they are sent or not: a standby that takes over knows who is throttled.
	begun := p.remember(d.throttles, d.Decisions)
	p.tellPolicies(p.set.Load(), begun, d)
	return d
}

// sendPolicies begins to publish what the watches decided. It returns nil if there is nothing to send, and otherwise a channel
// that is closed when Redis has taken it, or has not.
func (p *Polygen) sendPolicies(ctx context.Context) (sent <-chan struct{}) {
	d := p.takeDecisions()
	all, divided := p.policies(&d)
	// A standby hears and decides the same, and the one that leads sends it.
	if len(all)+len(divided) == 0 || !p.leads() {
		return nil
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		b := p.options.Bus
		err := b.PublishPolicies(ctx, all)
		if err == nil {
			err = b.PublishTo(ctx, divided)
		}
		if err == nil {
			p.metrics.countSent(p.set.Load(), all, divided)
			return
		}
		// Dropped, not kept for later: by then a throttle's window may be over. Limits hold without policies, by the
		// agents' leases, and blocks and shares are repeated.
		p.metrics.dropped.Add(float64(len(all) + len(divided)))
		if ctx.Err() == nil {
			p.options.Logger.Debug("policies not sent", slog.Int("policies", len(all)+len(divided)), slog.Any("error", err))
		}
	}()
	return done
}

// policies are those of decisions: what all instances are sent, the more urgent ones first, and what each gets a part of.
func (p *Polygen) policies(d *decisions) (all []redisbus.Message, divided []redisbus.Addressed) {
	// First, for the user's requests wait for it.
	for _, user := range d.Unblocks {
		all = append(all, redisbus.Unblock{User: user})
	}
	for _, t := range d.throttles {
		all = append(all, redisbus.Throttle{Key: t.Key, Second: t.WindowStart, Limit: t.Limit})
	}
	for _, b := range d.Blocks {
		all = append(all, redisbus.Block{User: b.User, Limit: b.Max, Release: b.Release})
	}
	set := p.set.Load()
	for _, s := range d.Sharings {
		m := redisbus.Slots{User: s.User, Until: s.Until}
		// Any instance may have given its HAProxy some.
		if s.Others && credit.PossibleKey(s.User) && credit.Possible(set.User(s.User), p.instances) {
			all = append(all, m)
		}
		for _, share := range s.Shares {
			m.Shares = append(m.Shares, redisbus.SlotShare(share))
		}
		divided = append(divided, redisbus.Addressed{Message: m, To: s.Concerned()})
	}
	for _, s := range d.shares {
		divided = append(divided, redisbus.Addressed{Message: redisbus.Share{User: s.User, Direction: s.Direction, Shares: s.Shares}, To: s.Concerned()})
	}
	// Last, for they only save questions.
	for _, h := range d.hints {
		all = append(all, redisbus.Hot{Key: h.Key, Until: h.Until, Instances: h.Instances})
	}
	return all, divided
}
