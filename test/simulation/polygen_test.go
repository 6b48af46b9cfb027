package simulation_test

import (
	"time"

	"github.com/sluice-qos/sluice/internal/daemon"
	"github.com/sluice-qos/sluice/internal/redisbus"
	"github.com/sluice-qos/sluice/pkg/bandwidth"
	"github.com/sluice-qos/sluice/pkg/concurrency"
	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

// polygen hears what the agents report, and decides: the watches, and what internal/polygen does
// around them. One leads; the others decide the same, and send nothing.
type polygen struct {
	process
	number int
	offset time.Duration
	clock  daemon.Clock
	rates  *ratelimit.Watch
	slots  *concurrency.Watch
	bytes  *bandwidth.Watch
	live   []string

	leadsTo time.Time // by this machine's clock
}

func (p *polygen) start() {
	p.rates, p.slots, p.bytes = ratelimit.NewWatch(false), concurrency.NewWatch(0), bandwidth.NewWatch()
	p.live, p.leadsTo = nil, time.Time{}
	p.clock = daemon.Clock{}
	p.every(100*time.Millisecond, func() { p.slots.Tick(p.now()); p.send() })
	p.every(50*time.Millisecond, func() { p.bytes.Tick(p.now()); p.send() })
	p.every(time.Second, func() { p.rates.Forget(p.now()) })
	p.renew()
	p.every(500*time.Millisecond, p.renew)
}

func (p *polygen) every(d time.Duration, do func()) {
	p.after(d, func() {
		do()
		p.every(d, do)
	})
}

func (p *polygen) now() time.Time { return p.world.Now.Add(p.offset).Add(p.clock.Offset()) }

func (p *polygen) happen(e event, until time.Time) {
	if e.kind == crashPolygen {
		p.life++
		p.world.At(until, func() { p.life++; p.start() })
		return
	}
	p.disturb(e, until)
}

// renew keeps the lead, the clock, and the list of instances.
func (p *polygen) renew() {
	type lead struct {
		registered
		leads bool
	}
	sent := p.world.Now
	call(&p.process, func(s *stored, at time.Time) lead {
		leads := s.lead(at, p.name)
		names, changed := s.register(at, "list", "")
		if changed {
			p.world.announce(registered{names, at})
		}
		return lead{registered{names, at}, leads}
	}, func(l lead, ok bool) {
		if !ok {
			return
		}
		p.clock.Sample(sent.Add(p.offset), p.world.Now.Add(p.offset), l.at)
		p.takeInstances(l.registered)
		if p.leadsTo = (time.Time{}); l.leads {
			p.leadsTo = sent.Add(2 * time.Second)
		}
	})
}

func (p *polygen) takeInstances(r registered) {
	p.live = r.names
	p.slots.Instances(p.now(), r.names)
	p.bytes.Instances(p.now(), r.names)
	p.send()
}

// report brings what a script or an agent publishes to the polygens.
func (w *world) report(hear func(p *polygen)) {
	for _, p := range w.polygens {
		p.hearsay(func() {
			if p.rates != nil {
				hear(p)
				p.send()
			}
		})
	}
}

func (p *polygen) usage(instance string, entries []redisbus.UsageEntry) {
	for _, u := range entries {
		var limit limits.Rate
		for _, r := range p.world.users[userNumber(u.Key.User)].rates {
			if r.Window == u.Key.Window {
				limit = r
			}
		}
		p.rates.Observe(p.now(), instance, u.Key, u.Second, u.Total, limit)
	}
}

func (p *polygen) progress(instance string, asks []concurrency.Ask) {
	for _, a := range asks {
		p.slots.Observe(p.now(), concurrency.Report{Instance: instance, User: a.User, Active: a.Active, Refused: a.Refused, Limit: a.Limit})
	}
}

func (p *polygen) demand(reports []bandwidth.Report) {
	for _, r := range reports {
		p.bytes.Observe(p.now(), r, [2]int64{bandwidth.Down: p.world.users[userNumber(r.User)].down})
	}
}

// send sends what the watches have decided, if this one leads.
func (p *polygen) send() {
	hints, throttles := p.rates.Decisions()
	slots, shares := p.slots.Decisions(), p.bytes.Sharings()
	for _, s := range shares {
		p.world.judge.divided(p, s)
	}
	if !p.world.Now.Before(p.leadsTo) {
		return
	}
	mail := make(map[string][]func(a *agent, now time.Time))
	post := func(to []string, apply func(a *agent, now time.Time)) {
		for _, name := range to {
			mail[name] = append(mail[name], apply)
		}
	}
	for _, user := range slots.Unblocks {
		p.world.judge.told(user, false)
		post(p.live, func(a *agent, now time.Time) { a.slots.Unblock(now, user) })
	}
	for _, t := range throttles {
		post(p.live, func(a *agent, now time.Time) { a.tokens.Throttle(now, t.Key, t.WindowStart, t.Limit) })
	}
	for _, b := range slots.Blocks {
		p.world.judge.told(b.User, true)
		post(p.live, func(a *agent, now time.Time) { a.slots.Block(now, b.User, b.Limit) })
	}
	for _, s := range slots.Sharings {
		if s.Others {
			post(p.live, func(a *agent, now time.Time) { a.slots.Share(now, concurrency.Sharing{User: s.User, Until: s.Until}) })
		}
		post(s.Concerned(), func(a *agent, now time.Time) { a.slots.Share(now, s) })
	}
	for _, s := range shares {
		post(s.Concerned(), func(a *agent, now time.Time) { a.bytes.Share(now, s) })
	}
	for _, h := range hints {
		post(p.live, func(a *agent, now time.Time) { a.tokens.MarkHot(now, h.Key, h.Until, h.Instances) })
	}
	if len(mail) > 0 {
		p.publish(mail)
	}
}

// publish brings policies to the agents.
func (p *polygen) publish(mail map[string][]func(a *agent, now time.Time)) {
	w := p.world
	if w.redis.down {
		return
	}
	p.toRedis(func() {
		for _, e := range w.edges {
			a := e.agent
			if a == nil || len(mail[a.name]) == 0 {
				continue
			}
			policies := mail[a.name]
			a.hearsay(func() {
				for _, apply := range policies {
					a.update(func(now time.Time) { apply(a, now) })
				}
			})
		}
	})
}
