package bus

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-qos/sluice/internal/policy"
)

// maxPublish bounds the bytes of one published batch of policies. A longer one
// would delay what is published after it.
const maxPublish = 64 << 10

// maxTogether bounds the messages for single instances that are sent in one round trip.
const maxTogether = 512

// deafFor is for how long an instance that did not hear its own channel is told over the
// one of all instances, before its own is tried again.
const deafFor = 5 * time.Second

// PublishPolicies sends policies to all agents, in order. A policy longer than
// policy.MaxLine, which no agent would read, is left out, and PublishPolicies fails after
// it has sent the others.
func (b *Bus) PublishPolicies(ctx context.Context, policies []policy.Message) error {
	addressed := make([]policy.Addressed, len(policies))
	for i, m := range policies {
		addressed[i].Message = m
	}
	return b.PublishTo(ctx, addressed)
}

// PublishTo sends policies to the instances that each of them concerns, in order, those for
// one instance together over its own channel. Of policies that are too long see PublishPolicies.
//
// An instance whose own channel nobody hears may not subscribe to it, or has lost its
// connection: what concerns it is sent to all instances.
func (b *Bus) PublishTo(ctx context.Context, policies []policy.Addressed) error {
	m := b.divideMail(policies)
	defer func() { b.countPolicies(m.sent) }()
	if err := b.publishToAll(ctx, &m, m.toAll); err != nil {
		return err
	}
	missed, silent := b.publishToEach(ctx, &m)
	// Redis is away if this fails, so nobody is known to be deaf.
	if err := b.publishToAll(ctx, &m, missed); err != nil {
		return err
	}
	b.deaf.remember(silent)
	b.unheard.Add(float64(len(silent)))
	// At last: one that is too long holds up no other.
	if len(m.tooLong) > 0 {
		return fmt.Errorf("publish policies: %d are longer than %d bytes", len(m.tooLong), policy.MaxLine)
	}
	return nil
}

// mail is policies by whom they are sent to. The numbers are indices.
type mail struct {
	policies  []policy.Addressed
	toAll     []int
	instances []string // with a message of their own, sorted
	toEach    map[string][]int
	tooLong   map[int]bool
	lines     [][]byte // of the policies that say the same to everybody, once they are needed
	sent      lineCounts
}

// divideMail divides policies.
func (b *Bus) divideMail(policies []policy.Addressed) mail {
	m := mail{policies: policies, toEach: make(map[string][]int), tooLong: make(map[int]bool), lines: make([][]byte, len(policies)), sent: make(lineCounts)}
	deaf := b.deaf.current()
	for i, p := range policies {
		// What one deaf instance needs all hear, so nobody needs it over their own channel.
		if p.To == nil || len(deaf) > 0 && slices.ContainsFunc(p.To, func(to string) bool { return deaf[to] }) {
			m.toAll = append(m.toAll, i)
			continue
		}
		for _, to := range p.To {
			m.toEach[to] = append(m.toEach[to], i)
		}
	}
	m.instances = slices.Sorted(maps.Keys(m.toEach))
	return m
}

// publishToAll sends some of the policies to all instances.
func (b *Bus) publishToAll(ctx context.Context, m *mail, which []int) error {
	batches := m.encode(which, "")
	// Mostly so: what concerns all is rare, and a round trip for nothing would delay what concerns each.
	if len(batches) == 0 {
		return nil
	}
	// By a script, so that one node carries all of them in their order; see scripts/publish.lua.
	_, err := b.runScripts(ctx, "publish_policies", "publish policies", call{script: publishScript, keys: []string{limitsKey}, args: batches})
	return err
}

// publishToEach sends each instance what concerns it alone. It returns the policies that not
// all of these heard, and who did not.
func (b *Bus) publishToEach(ctx context.Context, m *mail) (missed []int, silent []string) {
	unheard := map[int]bool{}
	for instances := range slices.Chunk(m.instances, maxTogether) {
		// By the last batch: one connection carries them in their order, and what matters is repeated to a new one.
		heard := make([]*redis.IntCmd, len(instances))
		// The calls that failed say so one by one.
		_ = b.callRedis(ctx, "publish_policies", "publish policies", func(ctx context.Context) error {
			pipe := b.client.Pipeline()
			for i, instance := range instances {
				for _, batch := range m.encode(m.toEach[instance], instance) {
					heard[i] = b.publishOwn(ctx, pipe, instance, batch)
				}
			}
			_, err := pipe.Exec(ctx)
			return err
		})
		for i, instance := range instances {
			// Without any batch all of it was too long, and nobody has missed it for being deaf.
			if c := heard[i]; c == nil || c.Err() == nil && c.Val() > 0 {
				continue
			}
			silent = append(silent, instance)
			for _, which := range m.toEach[instance] {
				unheard[which] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(unheard)), silent
}

// publishOwn publishes over an instance's own channel.
func (b *Bus) publishOwn(ctx context.Context, pipe redis.Pipeliner, instance string, batch any) *redis.IntCmd {
	// Only the nodes of the channel's slot carry it. Any other message goes to all nodes of a cluster.
	if b.sharded() {
		return pipe.SPublish(ctx, ownChannel(instance), batch)
	}
	return pipe.Publish(ctx, ownChannel(instance), batch)
}

// sharded reports whether channels of single instances are channels of shards.
func (b *Bus) sharded() bool {
	_, cluster := b.client.(*redis.ClusterClient)
	return cluster
}

// deaf are the instances that did not hear their own channels lately.
type deaf struct {
	mu    sync.Mutex
	until map[string]time.Time
}

func (d *deaf) remember(instances []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, instance := range instances {
		if d.until == nil {
			d.until = make(map[string]time.Time)
		}
		// By this machine's clock, which need not agree with any other: it is how long to do without an attempt.
		d.until[instance] = time.Now().Add(deafFor)
	}
}

// current is whom they are now; it forgets the others.
func (d *deaf) current() map[string]bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	names := make(map[string]bool, len(d.until))
	for name, until := range d.until {
		// Its own channel is tried again: it may have connected since.
		if time.Now().After(until) {
			delete(d.until, name)
			continue
		}
		names[name] = true
	}
	return names
}

// encode joins some of the policies to batches of about maxPublish bytes: for an instance, or
// for all ("").
func (m *mail) encode(which []int, instance string) (batches []any) {
	var batch []byte
	for _, i := range which {
		line := m.lineFor(i, instance)
		if len(line) > policy.MaxLine {
			m.tooLong[i] = true
			continue
		}
		m.sent.add(line)
		if batch = append(batch, line...); len(batch) >= maxPublish {
			batches = append(batches, batch)
			batch = nil
		}
	}
	if len(batch) > 0 {
		batches = append(batches, batch)
	}
	return batches
}

// lineFor is what a policy says to an instance, or to all ("").
func (m *mail) lineFor(i int, instance string) []byte {
	said := m.policies[i].Message
	// Its own part of what is divided: messages for a user whom all instances serve would else grow with the square of
	// their number.
	if instance != "" && policy.IsDivided(said) {
		return policy.Append(nil, policy.For(said, instance))
	}
	if m.lines[i] == nil {
		m.lines[i] = policy.Append(nil, said)
	}
	return m.lines[i]
}

// lineCounts are how many lines of policies there are of each kind, and how many bytes they have.
type lineCounts map[string]lineCount

type lineCount struct{ lines, bytes int }

func (c lineCounts) add(line []byte) {
	kind := policy.KindOf(line)
	n := c[kind]
	c[kind] = lineCount{n.lines + 1, n.bytes + len(line)}
}

// countPolicies counts the lines of policies that were sent or received together: to find a metric takes as long as
// to write a line.
func (b *Bus) countPolicies(counts lineCounts) {
	for kind, n := range counts {
		b.policyLines.WithLabelValues(kind).Add(float64(n.lines))
		b.policyBytes.WithLabelValues(kind).Add(float64(n.bytes))
	}
}
