package simulation_test

import (
	"slices"
	"time"

	"github.com/sluice-qos/sluice/pkg/bandwidth"
	"github.com/sluice-qos/sluice/pkg/concurrency"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

// lane carries one kind of asks to Redis and the answers back, one batch at a time: tokens, slots or
// what is moved. It is internal/agent/lane.go.
type lane struct {
	agent   *agent
	kind    int
	timer   int // the number of the one that is set
	flushed time.Time
	tried   time.Time
	busy    bool
	due     struct{ flush, urgent, sooner, wakes bool }

	tokens []ratelimit.Ask
	slots  []concurrency.Ask
	bytes  []bandwidth.Report
}

func (l *lane) arm(d time.Duration) {
	l.timer++
	timer := l.timer
	l.agent.after(d, func() {
		if timer == l.timer {
			l.due.flush = true
			l.next()
		}
	})
}

// signal is what the core says after each call.
func (l *lane) signal(urgent, sooner bool) {
	l.due.urgent, l.due.sooner = l.due.urgent || urgent, l.due.sooner || sooner
	if (urgent || sooner) && !l.due.wakes && l.agent.serving {
		l.due.wakes = true
		l.agent.after(0, func() {
			l.due.wakes = false
			l.next()
		})
	}
}

// next does what is due.
func (l *lane) next() {
	now := l.agent.world.Now
	switch {
	case l.busy:
	case l.due.flush:
		l.due.flush, l.flushed = false, now
		l.exchange(true)
	case l.due.sooner:
		l.due.sooner = false
		l.arm(flushEvery - now.Sub(l.flushed))
		l.next()
	case l.due.urgent:
		l.due.urgent = false
		l.exchange(false)
	}
}

func (l *lane) exchange(flush bool) {
	a, now := l.agent, l.agent.world.Now
	l.busy = true
	ask := l.kind == 2 || !a.isLost() || now.Sub(l.tried) >= lostRetry
	if l.collect(flush, ask) == 0 {
		l.done(flush)
		return
	}
	l.tried = now
	answered := false
	if l.kind < 2 {
		a.after(lostAfter, func() {
			if !answered {
				a.loseRedis()
			}
		})
	}
	l.send(func(ok bool) {
		answered = true
		if ok && l.kind < 2 {
			a.measure(a.world.Now.Sub(now))
		}
		l.done(flush)
	})
}

func (l *lane) done(flush bool) {
	l.busy = false
	if flush {
		a := l.agent
		rest := time.Duration(0)
		if l.kind == 2 || !a.isLost() {
			a.update(func(now time.Time) {
				switch l.kind {
				case 0:
					rest = a.tokens.IdleFor(now, longestRest)
				case 1:
					rest = a.slots.IdleFor(now, longestRest)
				case 2:
					rest = a.bytes.IdleFor(now, longestRest)
				}
			})
		}
		l.arm(max(rest, flushEvery-a.world.Now.Sub(l.flushed)))
	}
	l.next()
}

func (l *lane) collect(flush, ask bool) (n int) {
	a := l.agent
	a.update(func(now time.Time) {
		switch l.kind {
		case 0:
			if flush {
				a.tokens.Tick(now)
			}
			if ask {
				l.tokens = a.tokens.Collect(now, flush, nil)
			}
			n = len(l.tokens)
		case 1:
			if flush {
				a.slots.Tick(now)
			}
			if ask {
				l.slots = a.slots.Collect(now, flush, nil)
			}
			n = len(l.slots)
		case 2:
			if flush {
				a.bytes.Tick(now)
			}
			l.bytes = a.bytes.Collect(now, nil)
			n = len(l.bytes)
		}
	})
	return n
}

func (l *lane) send(done func(ok bool)) {
	a, w := l.agent, l.agent.world
	switch l.kind {
	case 0:
		asks := l.tokens
		l.tokens = nil
		call(&a.process, func(s *stored, at time.Time) []ratelimit.Grant {
			grants, usage := s.take(at, a.name, asks)
			w.judge.granted(asks, grants)
			if len(usage) > 0 {
				w.report(func(p *polygen) { p.usage(a.name, usage) })
			}
			return grants
		}, func(grants []ratelimit.Grant, ok bool) {
			answer(a, a.tokens, asks, grants, ok)
			done(ok)
		})
	case 1:
		asks, known := l.slots, a.instances
		l.slots = nil
		call(&a.process, func(s *stored, at time.Time) []concurrency.Grant {
			var grants []concurrency.Grant
			var told []concurrency.Ask
			for _, ask := range asks {
				g, tell := s.slot(at, a.name, known, ask)
				grants = append(grants, g)
				if tell {
					told = append(told, ask)
				}
			}
			if len(told) > 0 {
				w.report(func(p *polygen) { p.progress(a.name, told) })
			}
			return grants
		}, func(grants []concurrency.Grant, ok bool) {
			answer(a, a.slots, asks, grants, ok)
			done(ok)
		})
	case 2:
		reports := slices.Clone(l.bytes)
		l.bytes = nil
		call(&a.process, func(*stored, time.Time) bool {
			w.report(func(p *polygen) { p.demand(reports) })
			return true
		}, func(_, ok bool) { done(ok) })
	}
}

// answer tells a core what came of its asks.
func answer[Ask, Grant any](a *agent, core interface {
	Reply(time.Time, Ask, Grant)
	Fail(time.Time, Ask)
}, asks []Ask, grants []Grant, ok bool) {
	if !ok {
		a.loseRedis()
	}
	a.update(func(now time.Time) {
		for i, ask := range asks {
			if ok {
				core.Reply(now, ask, grants[i])
			} else {
				core.Fail(now, ask)
			}
		}
	})
}

// loss is internal/agent/loss.go.
type loss struct {
	trips   []time.Duration
	longest time.Duration // that a request waits for Redis
	lost    bool
	lostAt  time.Time
	answers int
}

func (a *agent) isLost() bool { return a.lost }

func (a *agent) measure(took time.Duration) {
	a.trips = append(a.trips, took)
	a.trips = a.trips[max(0, len(a.trips)-31):]
	sorted := slices.Sorted(slices.Values(a.trips))
	median := sorted[len(sorted)/2]
	a.longest = min(max(10*time.Millisecond, maxWait/2, 5*median), maxWait)
	a.update(func(time.Time) { a.tokens.RoundTrip(median) })
	switch {
	case took <= maxWait && (!a.lost || a.world.Now.Sub(a.lostAt) < longLoss):
		a.findRedis()
	case median > maxWait:
		a.loseRedis()
	}
}

func (a *agent) heartbeatAnswered(took time.Duration) {
	if !a.lost || took > maxWait {
		return
	}
	a.answers++
	if a.answers > 1 || a.world.Now.Sub(a.lostAt) < longLoss {
		a.findRedis()
	}
}

func (a *agent) loseRedis() {
	if !a.lost {
		a.lost, a.lostAt, a.answers = true, a.world.Now, 0
		a.tellCores()
	}
}

func (a *agent) findRedis() {
	if a.lost {
		a.lost = false
		a.tellCores()
	}
}

func (a *agent) tellCores() {
	a.world.note("%s: Redis lost: %v", a.name, a.lost)
	a.update(func(now time.Time) {
		a.tokens.Lost(now, a.lost)
		a.slots.Lost(now, a.lost)
	})
	a.lanes[0].signal(false, true)
	a.lanes[1].signal(false, true)
}
