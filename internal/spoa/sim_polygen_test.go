//go:build !race

package spoa

import (
	"context"
	"math/bits"
	"sync"
	"time"

	"github.com/sluice-qos/sluice/internal/bus"
	"github.com/sluice-qos/sluice/internal/clock"
	"github.com/sluice-qos/sluice/internal/policy"
	"github.com/sluice-qos/sluice/pkg/bandwidth"
	"github.com/sluice-qos/sluice/pkg/concurrency"
	"github.com/sluice-qos/sluice/pkg/credit"
	"github.com/sluice-qos/sluice/pkg/limits"
	"github.com/sluice-qos/sluice/pkg/ratelimit"
)

const (
	// simRound is how long one round of polygen's loop takes. The real one takes as long as it works.
	simRound = time.Millisecond
	// Those of internal/polygen.
	simTick, simBytesTick  = 100 * time.Millisecond, 50 * time.Millisecond
	simAudience, simAppeal = 3 * time.Second, 1500 * time.Millisecond
	simFewServe            = 8
)

// simPolygen is polygen: the watches, and what internal/polygen does around them. The daemons do not
// know each other, so decide.go and audience.go are written here once more.
type simPolygen struct {
	redis *simRedis
	set   *limits.Set
	names []string // of the instances, sorted
	hear  func(instance int, policies []policy.Message)

	mu    sync.Mutex
	inbox []bus.Event

	rates         *ratelimit.Watch
	slots         *concurrency.Watch
	bytes         *bandwidth.Watch
	heard, before map[string][]uint64 // who serves a user: a bit for each instance
	appeals       map[simAppealed]time.Time
	mail          []simMail // of this round, by instance; the last one is for all
}

// simMail is what an instance is sent in a round.
type simMail struct {
	policies []policy.Message
	bytes    int
}

type simAppealed struct{ kind, class, user string }

func newSimPolygen(r *simRedis, set *limits.Set, names []string) *simPolygen {
	return &simPolygen{
		redis: r, set: set, names: names,
		rates: ratelimit.NewWatch(false), slots: concurrency.NewWatch(0), bytes: bandwidth.NewWatch(),
		heard: make(map[string][]uint64), before: make(map[string][]uint64), appeals: make(map[simAppealed]time.Time),
		mail: make([]simMail, len(names)+1),
	}
}

// receive takes a message that was published.
func (p *simPolygen) receive(e bus.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.inbox = append(p.inbox, e)
}

func (p *simPolygen) run(ctx context.Context) {
	p.slots.Instances(time.Now(), p.names)
	p.bytes.Instances(time.Now(), p.names)
	for round := 1; clock.Sleep(ctx, simRound); round++ {
		now := time.Now()
		p.mu.Lock()
		events := p.inbox
		p.inbox = nil
		p.mu.Unlock()
		for _, e := range events {
			p.observe(now, e)
		}
		every := func(d time.Duration) bool { return round%int(d/simRound) == 0 }
		if every(simTick) {
			p.slots.Tick(now)
		}
		if every(simBytesTick) {
			p.bytes.Tick(now)
		}
		if every(time.Second) {
			p.rates.Forget(now)
		}
		if every(simAudience) {
			p.before, p.heard = p.heard, make(map[string][]uint64)
		}
		p.send(now)
	}
}

func (p *simPolygen) report(user, instance string) {
	serve := p.heard[user]
	if serve == nil {
		serve = make([]uint64, (len(p.names)+63)/64)
		p.heard[user] = serve
	}
	i := simInstance(instance)
	serve[i/64] |= 1 << (i % 64)
}

func (p *simPolygen) observe(now time.Time, e bus.Event) {
	switch e := e.(type) {
	case bus.Usage:
		for _, u := range e.Entries {
			p.report(u.Key.User, e.Instance)
			r, _ := p.set.User(u.Key.User).Rate(u.Key.Class, u.Key.Window)
			p.rates.Observe(now, e.Instance, u.Key, u.Second, u.Total, r.Max+r.Burst)
		}
	case bus.Progress:
		for _, u := range e.Entries {
			p.report(u.User, e.Instance)
			p.slots.Observe(now, concurrency.Report{Instance: e.Instance, User: u.User, Active: u.Active, Refused: u.Refused, Limit: u.Limit})
		}
	case bus.Demand:
		for _, r := range e {
			p.report(r.User, r.Instance)
			b := p.set.User(r.User).Bandwidth
			p.bytes.Observe(now, r, [2]int64{bandwidth.Down: b.Down, bandwidth.Up: b.Up})
		}
	}
}

// serving is who serves a user; nil stands for all instances.
func (p *simPolygen) serving(user string) (serve []int) {
	heard, before := p.heard[user], p.before[user]
	for i := range (len(p.names) + 63) / 64 {
		var both uint64
		if heard != nil {
			both = heard[i]
		}
		if before != nil {
			both |= before[i]
		}
		for ; both != 0; both &= both - 1 {
			serve = append(serve, 64*i+bits.TrailingZeros64(both))
		}
	}
	return serve
}

// concerned is serving, or all if that is most of them.
func (p *simPolygen) concerned(user string) []int { return p.orAll(p.serving(user)) }

func (p *simPolygen) orAll(serve []int) []int {
	if len(serve) >= simFewServe && 2*len(serve) >= len(p.names) {
		return nil
	}
	return serve
}

// ofThrottle is whom a throttle concerns.
func (p *simPolygen) ofThrottle(t *ratelimit.Throttle) (to []int) {
	if t.Instances == nil {
		return p.concerned(t.Key.User)
	}
	for _, instance := range t.Instances {
		to = append(to, simInstance(instance))
	}
	return to
}

// ofReserved is serving, or now and then all, where all instances hold a part.
func (p *simPolygen) ofReserved(now time.Time, told simAppealed) []int {
	if !credit.Possible(p.set.User(told.user), len(p.names)) {
		return p.serving(told.user)
	}
	if at, ok := p.appeals[told]; ok && now.Sub(at) < simAppeal {
		return p.serving(told.user)
	}
	p.appeals[told] = now
	return nil
}

// everybody is all instances, each with a message of its own.
func (p *simPolygen) everybody() (all []int) {
	for i := range p.names {
		all = append(all, i)
	}
	return all
}

// send addresses what the watches have decided, in the order of internal/polygen.
func (p *simPolygen) send(now time.Time) {
	hints, throttles := p.rates.Decisions()
	slots := p.slots.Decisions()
	for _, user := range slots.Unblocks {
		p.post(policy.Unblock{User: user}, p.serving(user))
	}
	for _, t := range throttles {
		p.post(policy.Throttle{Key: t.Key, Second: t.WindowStart, Limit: t.Limit}, p.ofThrottle(&t))
	}
	for _, t := range p.rates.Latecomers() {
		p.post(policy.Throttle{Key: t.Key, Second: t.WindowStart, Limit: t.Limit}, p.ofThrottle(&t))
	}
	for _, b := range slots.Blocks {
		p.post(policy.Block{User: b.User, Limit: b.Max, Release: b.Release}, p.serving(b.User))
	}
	for _, s := range slots.Sharings {
		m := policy.Slots{User: s.User, Until: s.Until}
		for _, share := range s.Shares {
			m.Shares = append(m.Shares, policy.SlotShare(share))
		}
		to := p.ofReserved(now, simAppealed{"slots", "", s.User})
		if to == nil {
			to = p.everybody()
		}
		p.post(m, to)
	}
	for _, s := range p.bytes.Sharings() {
		var to []int
		for _, instance := range s.Concerned() {
			to = append(to, simInstance(instance))
		}
		p.post(policy.Share{User: s.User, Direction: s.Direction, Shares: s.Shares}, to)
	}
	for _, h := range hints {
		p.post(policy.Hot{Key: h.Key, Until: h.Until, Instances: h.Instances}, p.orAll(p.ofReserved(now, simAppealed{"hot", h.Key.Class, h.Key.User})))
	}
	p.publish()
}

// post puts a policy into the mail of instances; nil: into that for all.
func (p *simPolygen) post(m policy.Message, to []int) {
	kind, all := simKindOf(m), len(p.names)
	line := len(policy.Append(nil, m))
	if to == nil {
		p.redis.count(kind, 0, all, line, line*all)
		p.mail[all].add(m, line)
		return
	}
	for _, i := range to {
		said, length := m, line
		if policy.IsDivided(m) {
			said = policy.For(m, p.names[i])
			length = len(policy.Append(nil, said))
		}
		p.redis.count(kind, 0, 1, length, length)
		p.mail[i].add(said, length)
	}
}

func (m *simMail) add(said policy.Message, length int) {
	m.policies, m.bytes = append(m.policies, said), m.bytes+length
}

// publish sends the mail of this round: that for all first, and then each instance its own.
func (p *simPolygen) publish() {
	all := &p.mail[len(p.names)]
	if len(all.policies) > 0 {
		frame := pushBytes("message", len(bus.PoliciesChannel), all.bytes) - all.bytes
		p.redis.published.Add(1)
		p.redis.count(simFrames, 1, len(p.names), frame, frame*len(p.names))
		for i := range p.names {
			p.hear(i, all.policies)
		}
		*all = simMail{}
	}
	for i := range p.names {
		mail := &p.mail[i]
		if len(mail.policies) == 0 {
			continue
		}
		channel := len(bus.PoliciesChannel) + 1 + len(p.names[i])
		frame := pushBytes(fromShard, channel, mail.bytes) - mail.bytes
		p.redis.published.Add(1)
		p.redis.count(simFrames, 1, 1, frame, frame)
		p.hear(i, mail.policies)
		*mail = simMail{policies: mail.policies[:0]}
	}
}

// simInstance is the number of an instance, by its name.
func simInstance(name string) (n int) {
	for _, digit := range name[len("edge-") : len("edge-")+4] {
		n = 10*n + int(digit-'0')
	}
	return n
}
