package redisbus

import (
	"context"
	"fmt"
	"maps"
	"slices"
)

// maxTogether bounds the messages for single instances that are sent in one round trip.
const maxTogether = 512

// PublishPolicies sends policies to all agents, in order and compressed: as one message unless they
// are larger than policy.MaxBatch. A policy longer than policy.MaxLine, which no agent would read, is
// left out, and PublishPolicies fails after it has sent the others.
func (b *Bus) PublishPolicies(ctx context.Context, policies []Message) error {
	p := newPost()
	for _, m := range policies {
		p.add("", m)
	}
	if batches := p.to[""]; len(batches) > 0 {
		messages := make([]any, len(batches))
		for i, batch := range batches {
			messages[i] = Pack(batch)
		}
		// By a script, so that one node carries all of them in their order; see scripts/publish.lua.
		_, err := b.runScripts(ctx, "publish_policies", "publish policies", call{script: publishScript, keys: []string{limitsKey}, args: messages})
		if err != nil {
			return err
		}
	}
	return b.posted(p)
}

// PublishTo sends to each instance its own part of policies that are divided, in order, over its own channel. Of
// policies that are too long see PublishPolicies.
func (b *Bus) PublishTo(ctx context.Context, policies []Addressed) error {
	p := newPost()
	for _, m := range policies {
		for _, instance := range m.To {
			p.add(instance, For(m.Message, instance))
		}
	}
	var all []published
	for _, instance := range slices.Sorted(maps.Keys(p.to)) {
		for _, batch := range p.to[instance] {
			all = append(all, published{ownChannel(instance), batch})
		}
	}
	for some := range slices.Chunk(all, maxTogether) {
		if err := b.publishSharded(ctx, "publish_policies", "publish policies", some...); err != nil {
			return err
		}
	}
	return b.posted(p)
}

// A post is policies by the instance that they are sent to, or "" for all.
type post struct {
	to      map[string][][]byte // batches of lines
	sent    lineCounts
	tooLong int
}

func newPost() *post { return &post{to: make(map[string][][]byte), sent: make(lineCounts)} }

func (p *post) add(instance string, m Message) {
	line := Append(nil, m)
	if len(line) > MaxLine {
		p.tooLong++
		return
	}
	batches := p.to[instance]
	if n := len(batches); n == 0 || len(batches[n-1])+len(line) > MaxBatch {
		batches = append(batches, nil)
	}
	last := len(batches) - 1
	batches[last] = append(batches[last], line...)
	p.to[instance] = batches
	p.sent.add(line)
}

// posted counts what was sent, and tells of what was not.
func (b *Bus) posted(p *post) error {
	b.countPolicies(p.sent)
	if p.tooLong > 0 {
		return fmt.Errorf("publish policies: %d are longer than %d bytes", p.tooLong, MaxLine)
	}
	return nil
}

// lineCounts are how many lines of policies there are of each kind, and how many bytes they have.
type lineCounts map[string]lineCount

type lineCount struct{ lines, bytes int }

func (c lineCounts) add(line []byte) {
	kind := KindOf(line)
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
