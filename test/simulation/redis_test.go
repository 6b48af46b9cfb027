package simulation_test

import (
	"maps"
	"slices"
	"time"

	"github.com/sluice-qos/sluice/internal/redisbus"
	"github.com/sluice-qos/sluice/pkg/concurrency"
	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

// stored is what Redis has. Its methods are the scripts in internal/redisbus/scripts, which
// TestScripts holds them equal to.
type stored struct {
	heard    map[string]uint64 // the last batch of each agent
	totals   map[pool]int
	accounts map[ratelimit.Key]ratelimit.Account
	slots    map[string]map[string]holding // by user and instance
	alive    map[string]int64              // when an instance was heard of, in milliseconds
	members  map[string]int64              // the same in the registry
	leader   string
	leads    int64 // until then, in milliseconds
}

type pool struct {
	second int64
	key    ratelimit.Key
}

type holding struct {
	concurrency.Holding
	written int64 // in milliseconds
}

func newStored() *stored {
	return &stored{
		heard: make(map[string]uint64), totals: make(map[pool]int), accounts: make(map[ratelimit.Key]ratelimit.Account),
		slots: make(map[string]map[string]holding), alive: make(map[string]int64), members: make(map[string]int64),
	}
}

// copy is what a replica has at this instant.
func (s *stored) copy() *stored {
	c := &stored{
		heard: maps.Clone(s.heard), totals: maps.Clone(s.totals), accounts: maps.Clone(s.accounts), slots: make(map[string]map[string]holding),
		alive: maps.Clone(s.alive), members: maps.Clone(s.members), leader: s.leader, leads: s.leads,
	}
	for user, of := range s.slots {
		c.slots[user] = maps.Clone(of)
	}
	return c
}

// take is scripts/take.lua and scripts/burst.lua. It also returns what is published.
func (s *stored) take(at time.Time, instance string, asks []ratelimit.Ask) (grants []ratelimit.Grant, usage []redisbus.UsageEntry) {
	seq := asks[0].Seq
	again := seq > 0 && seq <= s.heard[instance]
	s.heard[instance] = max(s.heard[instance], seq)
	for _, ask := range asks {
		if again {
			ask = ask.Repeated()
		}
		g, tell := s.takeOne(at, ask, again)
		grants = append(grants, g)
		if tell && !again {
			usage = append(usage, redisbus.UsageEntry{Second: ask.WindowStart, Key: ask.Key, Total: g.Total})
		}
	}
	return grants, usage
}

// takeOne is for one ask, which may come again.
func (s *stored) takeOne(at time.Time, ask ratelimit.Ask, again bool) (g ratelimit.Grant, tell bool) {
	if ask.Burst > 0 {
		_, was := s.accounts[ask.Key].Take(at, ratelimit.Ask{WindowStart: ask.WindowStart, Limit: ask.Limit, Burst: ask.Burst})
		after, g := s.accounts[ask.Key].Take(at, ask)
		s.accounts[ask.Key] = after
		away := ask.WindowStart - after.Second
		return g, away >= -1 && away <= 1 && 2*g.Total >= ask.Limit+ask.Burst && (g.Total != was.Total || ask.Untold && g.Tokens < ask.Need)
	}
	p := pool{ask.WindowStart, ask.Key}
	before, there := s.totals[p]
	if !there {
		before = ask.Reserve
	}
	g = ratelimit.Take(before, ask)
	changed := g.Total != before || !there && ask.Reserve > 0
	if changed && !again {
		s.totals[p] = g.Total
	}
	switch {
	case 2*g.Total >= ask.Limit:
		return g, changed || ask.Untold && g.Tokens < ask.Need
	case ask.Key.Window != limits.Second && changed:
		return g, before == 0 || !there || 32*g.Total/ask.Limit != 32*before/ask.Limit
	}
	return g, false
}

const aliveTimeout, slotsTTL = 1750, 30_000 // milliseconds

// silent is since when who has not been heard is gone: time in which nobody was is no silence.
func (s *stored) silent(now int64) int64 {
	last := now
	if len(s.alive) > 0 {
		last = slices.Max(slices.Collect(maps.Values(s.alive)))
	}
	return min(now, last+aliveTimeout/3) - aliveTimeout
}

// gone reports whether an instance that wrote then is not there any more.
func (s *stored) gone(name string, now, written int64) bool {
	if at, known := s.alive[name]; known && at-now < aliveTimeout {
		if written <= now {
			at = max(at, written)
		}
		return at <= s.silent(now)
	}
	return max(now-written, written-now) >= slotsTTL
}

// expired reports whether nobody has written a user's pool for as long as it lasts.
func (s *stored) expired(user string, now int64) bool {
	for _, h := range s.slots[user] {
		if now-h.written < slotsTTL {
			return false
		}
	}
	return true
}

// slot is scripts/slots.lua for one ask. It also reports whether it is published.
func (s *stored) slot(at time.Time, instance string, known int, ask concurrency.Ask) (g concurrency.Grant, tell bool) {
	now := at.UnixMilli()
	of := s.slots[ask.User]
	if of == nil {
		of = make(map[string]holding)
		s.slots[ask.User] = of
	}
	live := max(1, known)
	if s.expired(ask.User, now) {
		clear(of)
	}
	for name, h := range of {
		if name != instance && now-h.written >= slotsTTL {
			delete(of, name)
		}
	}
	if ask.Portion > 0 {
		heard := 0
		for _, at := range s.alive {
			if at > s.silent(now)-redisbus.AliveEvery(known).Milliseconds()+500 && at < now+aliveTimeout {
				heard++
			}
		}
		live = max(live, heard)
	}
	own, there := of[instance]
	others, unheard := 0, live-1
	for name, h := range of {
		if name != instance {
			others += h.Held
			unheard--
		}
	}
	if 10*(others+ask.Portion*max(0, unheard)+max(ask.Want, ask.Active, own.Held)) >= 7*ask.Limit {
		for name, h := range of {
			if name != instance && max(now-h.written, h.written-now) > 1000 && s.gone(name, now, h.written) {
				delete(of, name)
			}
		}
	}
	before, taken := 0, make(map[string]concurrency.Holding, len(of))
	for name, h := range of {
		before += h.Active
		taken[name] = h.Holding
	}
	g = concurrency.Take(taken, live, instance, ask)
	if there && taken[instance].Seq == own.Seq {
		return g, false
	}
	of[instance] = holding{taken[instance], now}
	return g, 10*max(before, before-own.Active+taken[instance].Active) >= 7*ask.Limit || ask.Refused > 0
}

// tellAlive is scripts/alive.lua.
func (s *stored) tellAlive(at time.Time, instance string) {
	now := at.UnixMilli()
	heard, known := s.alive[instance]
	switch {
	case !known:
		maps.DeleteFunc(s.alive, func(_ string, at int64) bool { return at >= now+aliveTimeout })
	case 3*(now-heard) > aliveTimeout:
		excuse(s.alive, now, aliveTimeout)
	}
	s.alive[instance] = now
}

// excuse counts time in which nobody was heard as nobody's silence.
func excuse(heard map[string]int64, now, lapse int64) {
	if quiet := now - slices.Max(slices.Collect(maps.Values(heard))); 3*quiet > lapse {
		for name := range heard {
			heard[name] += quiet - lapse/3
		}
	}
}

// register is scripts/registry.lua in a small cluster. It returns who is there, and reports whether
// that is news.
func (s *stored) register(at time.Time, op, instance string) (names []string, changed bool) {
	const lapse = 1500
	now := at.UnixMilli()
	before := len(s.members)
	drop := func(gone func(heard int64) bool) {
		maps.DeleteFunc(s.members, func(_ string, heard int64) bool { return gone(heard) })
	}
	drop(func(heard int64) bool { return heard >= now+lapse })
	lapses := int64(1)
	if len(s.members) > 0 {
		_, there := s.members[instance]
		if quiet := now - slices.Max(slices.Collect(maps.Values(s.members))); 3*quiet > lapse {
			switch {
			case op == "register" && there:
				excuse(s.members, now, lapse)
			case op != "register":
				lapses = 2
			}
		}
	}
	drop(func(heard int64) bool { return heard <= now-lapses*lapse })
	changed = len(s.members) != before
	_, there := s.members[instance]
	switch op {
	case "register":
		s.members[instance] = now
		changed = changed || !there
	case "leave":
		delete(s.members, instance)
		changed = changed || there
	}
	return slices.Sorted(maps.Keys(s.members)), changed
}

// lead is scripts/lead.lua as far as it is about the lead: who has it, keeps it.
func (s *stored) lead(at time.Time, polygen string) bool {
	const leadFor = 2000
	now := at.UnixMilli()
	if s.leader == polygen || s.leader == "" || now >= s.leads || s.leads > now+leadFor {
		s.leader, s.leads = polygen, now+leadFor
	}
	return s.leader == polygen
}
