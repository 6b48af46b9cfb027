//go:build !race

package spoa

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/sluice-qos/sluice/internal/bus"
	"github.com/sluice-qos/sluice/internal/policy"
	"github.com/sluice-qos/sluice/pkg/bandwidth"
	"github.com/sluice-qos/sluice/pkg/concurrency"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

const (
	simShards    = 16
	simRoundTrip = 500 * time.Microsecond
)

// The kinds of messages that a simulated fleet counts.
const (
	simTokens = iota // calls of agents
	simSlots
	simAlive
	simHeartbeats
	simDemand
	simStarts
	simEvents
	simUsage // published by scripts, for polygen
	simProgress
	simHot // policies
	simThrottle
	simBlock
	simUnblock
	simSlotShares
	simShares
	simFrames // what Redis adds to messages that carry policies
	simKinds
)

var simNames = [simKinds]string{
	"asks for tokens", "asks for slots", "alive", "heartbeats", "demand", "starts", "events",
	"usage", "progress", "hot", "throttle", "block", "unblock", "slots", "share", "their frames",
}

// simTraffic counts what Redis is sent and what it sends. Items are asks, reports, pools or policies;
// a policy counts once for each agent that it goes to.
type simTraffic struct {
	calls, items           [simKinds]atomic.Int64
	toRedis, toAgents      [simKinds]atomic.Int64 // bytes
	toPolygen              [simKinds]atomic.Int64 // bytes
	shardCalls, shardItems [simShards]atomic.Int64
	shardIn, shardOut      [simShards]atomic.Int64 // bytes
	slotFields             atomic.Int64            // that scripts/slots.lua reads
	published              atomic.Int64
}

func (t *simTraffic) count(kind, calls, items, toRedis, toAgents int) {
	t.calls[kind].Add(int64(calls))
	t.items[kind].Add(int64(items))
	t.toRedis[kind].Add(int64(toRedis))
	t.toAgents[kind].Add(int64(toAgents))
}

func (t *simTraffic) countShard(shard, calls, items, in, out int) {
	t.shardCalls[shard].Add(int64(calls))
	t.shardItems[shard].Add(int64(items))
	t.shardIn[shard].Add(int64(in))
	t.shardOut[shard].Add(int64(out))
}

// simRedis has the pools, which are ratelimit.Take and concurrency.Take, and publishes what the scripts do.
type simRedis struct {
	simTraffic
	instances int
	roundTrip time.Duration
	shards    [simShards]simShard
	publish   func(bus.Event)
}

type simShard struct {
	mu     sync.Mutex
	tokens map[int64]map[ratelimit.Key]int // by second
	slots  map[string]*simSlotPool
}

// simSlotPool is the pool of a user's slots, with its sums, so that an ask need not walk through all instances.
type simSlotPool struct {
	holdings     map[string]concurrency.Holding
	held, active int
}

func newSimRedis(instances int, roundTrip time.Duration) *simRedis {
	r := &simRedis{instances: instances, roundTrip: roundTrip}
	for i := range r.shards {
		r.shards[i] = simShard{tokens: make(map[int64]map[ratelimit.Key]int), slots: make(map[string]*simSlotPool)}
	}
	return r
}

func simShardOf(user string) int { return int(xxhash.Sum64String(user) % simShards) }

// simEventPart is the part of a report that has a user.
func simEventPart(user string) int { return int(xxhash.Sum64String(user) >> 32 % 16) }

// take is Bus.Take: as scripts/take.lua it publishes totals of pools of which half or more is handed out.
func (r *simRedis) take(_ context.Context, instance string, asks []ratelimit.Ask) (bus.Taken, error) {
	time.Sleep(r.roundTrip)
	shard := simShardOf(asks[0].Key.User)
	s := &r.shards[shard]
	taken := bus.Taken{Grants: make([]ratelimit.Grant, 0, len(asks)), Now: time.Now()}
	for rest := asks; len(rest) > 0; {
		call := rest[:min(len(rest), maxTogether)]
		rest = rest[len(call):]
		usage := bus.Usage{Instance: instance}
		out := arrayBytes(2+2*len(call)) + timeBytes()
		s.mu.Lock()
		for i := range call {
			g, tell := s.takeOne(&call[i])
			taken.Grants = append(taken.Grants, g)
			out += integerBytes(g.Tokens) + integerBytes(g.Total)
			if tell {
				usage.Entries = append(usage.Entries, bus.UsageEntry{Second: call[i].WindowStart, Key: call[i].Key, Total: g.Total})
			}
		}
		s.mu.Unlock()
		in := takeBytes(instance, shard, call)
		r.count(simTokens, 1, len(call), in, out)
		r.countShard(shard, 1, len(call), in, out)
		if len(usage.Entries) > 0 {
			r.sayUsage(shard, usage)
		}
	}
	return taken, nil
}

func (s *simShard) takeOne(a *ratelimit.Ask) (g ratelimit.Grant, tell bool) {
	totals := s.tokens[a.WindowStart]
	if totals == nil {
		totals = make(map[ratelimit.Key]int)
		s.tokens[a.WindowStart] = totals
		delete(s.tokens, a.WindowStart-3)
	}
	before, there := totals[a.Key]
	total := before
	if !there {
		total = a.Reserve
	}
	g = ratelimit.Take(total, *a)
	changed := g.Total != before || !there && a.Reserve > 0
	if changed {
		totals[a.Key] = g.Total
	}
	return g, 2*g.Total >= a.Limit && (changed || a.Untold && g.Tokens < a.Need)
}

func (r *simRedis) sayUsage(shard int, u bus.Usage) {
	n := 2 + textBytes(len(u.Instance))
	last := int64(0)
	for i := range u.Entries {
		e := &u.Entries[i]
		if e.Second != last {
			n, last = n+1+10+1+digits(len(u.Entries)), e.Second
		}
		n += 1 + textBytes(fieldBytes(e.Key)) + 1 + digits(e.Total)
	}
	r.sayPolygen(simUsage, channelBytes("usage", shard), len(u.Entries), n, u)
}

// sayPolygen publishes a message for polygen.
func (r *simRedis) sayPolygen(kind, channel, items, length int, e bus.Event) {
	r.published.Add(1)
	r.calls[kind].Add(1)
	r.items[kind].Add(int64(items))
	r.toPolygen[kind].Add(int64(pushBytes(fromShard, channel, length)))
	if e != nil {
		r.publish(e)
	}
}

// hold is Bus.Slots.
func (r *simRedis) hold(_ context.Context, instance string, instances int, asks []concurrency.Ask) (bus.Slotted, error) {
	time.Sleep(r.roundTrip)
	shard := simShardOf(asks[0].User)
	s := &r.shards[shard]
	slotted := bus.Slotted{Grants: make([]concurrency.Grant, 0, len(asks)), Now: time.Now()}
	for rest := asks; len(rest) > 0; {
		call := rest[:min(len(rest), maxTogether)]
		rest = rest[len(call):]
		progress, length, fields := bus.Progress{Instance: instance}, 2+textBytes(len(instance)), 0
		out := arrayBytes(2+2*len(call)) + timeBytes()
		s.mu.Lock()
		for i := range call {
			a := &call[i]
			g, active, read := s.holdOne(instance, instances, a)
			fields += read
			slotted.Grants = append(slotted.Grants, g)
			out += integerBytes(g.Held) + integerBytes(g.Free)
			if 10*active >= 7*a.Limit || a.Refused > 0 {
				progress.Entries = append(progress.Entries, bus.ProgressEntry{User: a.User, Held: g.Held, Active: a.Active, Refused: a.Refused, Limit: a.Limit})
				length += 5 + textBytes(len(a.User)) + digits(g.Held) + digits(a.Active) + digits(a.Refused) + digits(a.Limit)
			}
		}
		s.mu.Unlock()
		in := slotBytes(instance, shard, instances, call)
		r.count(simSlots, 1, len(call), in, out)
		r.countShard(shard, 1, len(call), in, out)
		r.slotFields.Add(int64(fields))
		if len(progress.Entries) > 0 {
			r.sayPolygen(simProgress, channelBytes("progress", shard), len(progress.Entries), length, progress)
		}
	}
	return slotted, nil
}

// holdOne takes an ask for slots. active is what all instances run, the most of before and after it.
func (s *simShard) holdOne(instance string, instances int, a *concurrency.Ask) (g concurrency.Grant, active, fields int) {
	p := s.slots[a.User]
	if p == nil {
		p = &simSlotPool{holdings: make(map[string]concurrency.Holding)}
		s.slots[a.User] = p
	}
	own, there := p.holdings[instance]
	pool := make(map[string]concurrency.Holding, 2)
	others := len(p.holdings)
	if there {
		pool[instance] = own
		others--
	}
	// All others as one of them: it is their sum that counts, and how many they are.
	if others > 0 {
		pool["\x00"] = concurrency.Holding{Held: p.held - own.Held}
		instances -= others - 1
	}
	g = concurrency.Take(pool, instances, instance, *a)
	now := pool[instance]
	active = max(p.active, p.active-own.Active+now.Active)
	p.holdings[instance] = now
	p.held, p.active = p.held-own.Held+now.Held, p.active-own.Active+now.Active
	return g, active, len(p.holdings)
}

// alive is Bus.Alive.
func (r *simRedis) alive(_ context.Context, instance string, shard int) error {
	time.Sleep(r.roundTrip)
	in, out := aliveBytes(instance, shard), integerBytes(1)
	r.count(simAlive, 1, 1, in, out)
	r.countShard(shard, 1, 1, in, out)
	return nil
}

// demand is Bus.Demand.
func (r *simRedis) demand(_ context.Context, instance string, reports []bandwidth.Report) error {
	time.Sleep(r.roundTrip)
	for shard, of := range inShards(reports, func(r bandwidth.Report) string { return r.User }) {
		for rest := of; len(rest) > 0; {
			call := rest[:min(len(rest), maxTogether)]
			rest = rest[len(call):]
			r.sayShard(simDemand, shard, len(call), demandBytes(instance, call), bus.Demand(call))
		}
	}
	return nil
}

// inShards divides what is about users.
func inShards[T any](all []T, user func(T) string) (divided [simShards][]T) {
	for _, one := range all {
		shard := simShardOf(user(one))
		divided[shard] = append(divided[shard], one)
	}
	return divided
}

// sayShard counts a message that an agent publishes over a channel of a shard.
func (r *simRedis) sayShard(kind, shard, items, length int, e bus.Event) {
	channel := channelBytes(simNames[kind], shard)
	in, out := publishBytes(toShard, channel, length), integerBytes(1)
	r.count(kind, 1, items, in, out)
	r.countShard(shard, 1, items, in, out)
	r.published.Add(1)
	r.toPolygen[kind].Add(int64(pushBytes(fromShard, channel, length)))
	if e != nil {
		r.publish(e)
	}
}

// heartbeat counts one of Bus.Register that finds nothing new.
func (r *simRedis) heartbeat(instance string) {
	in, out := heartbeatBytes(instance, r.instances)
	r.count(simHeartbeats, 1, 1, in, out)
}

// started counts what Bus.Started and Bus.AddEvents would send.
func (r *simRedis) started(instance string, number int, users []bus.Started, events *bus.Events) {
	for shard, rest := range inShards(users, func(u bus.Started) string { return u.User }) {
		for len(rest) > 0 {
			n, most := 0, 0
			for most < len(rest) && n < 64<<10 {
				n += startedBytes("", rest[most:most+1])
				most++
			}
			r.sayShard(simStarts, shard, most, startedBytes(instance, rest[:most]), nil)
			rest = rest[most:]
		}
	}
	var parts [simShards + 1][16]int
	for i := range events.Users {
		of := &events.Users[i]
		parts[simShardOf(of.Name)][simEventPart(of.Name)] += eventsBytes(of)
	}
	for i := range events.Tiers {
		parts[simShards][0] += eventsBytes(&events.Tiers[i])
	}
	report := instance + "/" + string(make([]byte, digits(number)))
	for shard := range parts {
		tag := len("cluster")
		if shard < simShards {
			tag = digits(shard)
		}
		if in, out := eventsCallBytes(report, tag, parts[shard][:]); parts[shard] != [16]int{} {
			r.count(simEvents, 1, 1, in, out)
			if shard < simShards {
				r.countShard(shard, 1, 1, in, out)
			}
		}
	}
}

// simKindOf is the kind of a policy.
func simKindOf(m policy.Message) int {
	switch m.(type) {
	case policy.Hot:
		return simHot
	case policy.Throttle:
		return simThrottle
	case policy.Block:
		return simBlock
	case policy.Unblock:
		return simUnblock
	case policy.Slots:
		return simSlotShares
	}
	return simShares
}
